"""The examples with other libraries do what they promise. `make test-slow` installs these."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "needs", "arguments", "least", "most"),
    [
        ("hub", "huggingface_hub", (), 0.0, 1e-6),
        ("lightning_module", "lightning", (2,), 0.0, 5.0),
        ("torchrl_policy", "torchrl", (20,), 0.5, 1.0),
        ("sb3_recurrent_ppo", "sb3_contrib", (30_000,), 0.5, 1.0),
    ],
)
def test_it_does_what_it_promises(name, needs, arguments, least, most):
    pytest.importorskip(needs)
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert least <= float(done.stdout.split()[-1].rstrip("%")) <= most, done.stdout
