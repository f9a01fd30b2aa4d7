"""The tests' environment: kernels for a GPU run on the CPU, where there is Triton to run them."""

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports the kernels
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/fastweights/memory/triton/*"]
