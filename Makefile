# Every target works on a fresh clone: what is missing is installed into .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test test-slow test-oldest docs wheel lint build/sanitize sanitize arm malformed aliasing interrupts flips triton compiled bench clean

help:
	@echo "make install   make .venv with the package and the tools to work on it"
	@echo "make demo      train fast weights and an LSTM side by side on the paper's first task (under 3 minutes)"
	@echo "make test      lint, types and tests"
	@echo "make test-slow the examples with torchrl, sb3-contrib, Lightning and the Hugging Face Hub"
	@echo "make test-oldest  the layer's tests with the oldest torch that is supported, in .venv-oldest"
	@echo "make docs      the site, in build/site"
	@echo "make wheel     a wheel and the sdist, checked, in dist"
	@echo "make lint      ruff and mypy alone"
	@echo "make sanitize  the kernel's tests under the address and undefined-behaviour sanitizers"
	@echo "make arm       the kernel built for 64-bit ARM, run under qemu-user, beside the oracle"
	@echo "make malformed CALLS=100000  calls with arguments that do not fit, under the sanitizers; none may crash"
	@echo "make aliasing COUNT=20000   change tensors after a call; nothing may follow from them"
	@echo "make interrupts COUNT=300   interrupt real commands at random moments; nothing may be lost"
	@echo "make flips COUNT=1000       alter single bytes of a run's files; each must be noticed"
	@echo "make triton EXAMPLES=300    the GPU kernels in Triton's interpreter, against the equations"
	@echo "make compiled  the GPU kernels compiled for GPUs that need not be here, into docs/gpu.md"
	@echo "make bench     speed, side by side with nn.LSTM and nn.RNN, and of agents"
	@echo "make clean     remove .venv and all caches"

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt $(wildcard src/fastweights/memory/kernel/*.cpp src/fastweights/memory/kernel/*.h src/fastweights/memory/kernel/CMakeLists.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fastweights needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: install
	$(BIN)/fastweights reproduce table1 --quick --cells fast-weights/50 lstm/50
	$(BIN)/fastweights ask runs/table1-quick/tuned/fast-weights-50/seed-0 'c9k8j3f1??c'

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

.venv/integrations: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,integrations]"
	@touch $@

test-slow: .venv/integrations
	$(BIN)/pytest -n 2 -m slow

OLDEST := $(shell sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)

.venv-oldest:
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet "torch==$(OLDEST).*" --index-url https://download.pytorch.org/whl/cpu
	$@/bin/pip install --quiet numpy pytest pytest-xdist hypothesis safetensors scikit-build-core hatch-fancy-pypi-readme

# Warnings of an old torch at its own code are not ours; nothing is exported or distributed with it.
test-oldest: .venv-oldest
	.venv-oldest/bin/pip install --quiet --no-deps .
	.venv-oldest/bin/python -m fastweights
	.venv-oldest/bin/pytest -n 2 -o filterwarnings= tests/memory --ignore tests/memory/test_export.py --ignore tests/memory/test_distributed.py

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	@touch $@

docs: .venv/docs
	rm -rf build/site build/published
	mkdir -p build/published && cp -r results build/published/results
	$(BIN)/fastweights play --out build/published/play
	OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 \
		docs build/site >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }
	$(BIN)/python docs/links.py build/site

wheel: install
	rm -rf dist
	$(BIN)/pip install --quiet build twine
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src
	$(BIN)/mypy examples benchmarks

# The kernel built to stop at any wrong address or undefined behaviour, for its tests and for calls that do not fit.
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	FASTWEIGHTS_KERNEL=$(CURDIR)/build/sanitize CI=true

build/sanitize: install
	rm -rf build/sanitize
	cmake -S src/fastweights/memory/kernel -B build/sanitize -DFASTWEIGHTS_SANITIZE=ON >/dev/null
	cmake --build build/sanitize --parallel 2

sanitize: build/sanitize
	$(SANITIZED) $(BIN)/pytest -n 2 tests/memory/test_kernel.py tests/memory/test_cell.py

malformed: build/sanitize
	$(SANITIZED) $(BIN)/python tests/malformed.py --calls $(or $(CALLS),100000)

# The kernel on another CPU: built for 64-bit ARM, run by qemu, compared with the oracle's numbers.
ARM := aarch64-linux-gnu-g++ -std=gnu++17 -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi -fopenmp -static

arm: install
	@mkdir -p build
	$(BIN)/python tests/vectors.py build/vectors.bin
	$(ARM) tests/vectors.cpp src/fastweights/memory/kernel/*.cpp -o build/vectors-arm
	qemu-aarch64 build/vectors-arm build/vectors.bin

aliasing: install
	$(BIN)/python tests/aliasing.py --cases $(or $(COUNT),20000)

interrupts: install
	$(BIN)/python tests/interrupts.py --count $(or $(COUNT),300)

flips: install
	$(BIN)/python tests/flips.py --count $(or $(COUNT),1000)

triton: install
	TRITON_INTERPRET=1 EXAMPLES=$(or $(EXAMPLES),300) $(BIN)/pytest -n 2 tests/memory/triton
	TRITON_INTERPRET=0 $(BIN)/python tests/memory/triton/forms.py

compiled: install
	$(BIN)/python benchmarks/compiled.py --write docs/gpu.md

bench: install
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/paths.py
	$(BIN)/python benchmarks/agents.py

clean:
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
