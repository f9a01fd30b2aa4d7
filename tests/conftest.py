import os

import pytest
import torch
from hypothesis import HealthCheck, settings

checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
settings.register_profile("search", deadline=None, print_blob=True, suppress_health_check=checks)
settings.register_profile("ci", settings.get_profile("search"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "search")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: the tests run side by side


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
