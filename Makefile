# Every target works on a fresh clone: what is missing is installed into .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test lint bench clean

help:
	@echo "make install   make .venv with the package and the tools to work on it"
	@echo "make demo      train the layer on a small retrieval task and see what it learned (20 s)"
	@echo "make test      lint, types and tests"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     speed, side by side with nn.LSTM and nn.RNN"
	@echo "make clean     remove .venv and all caches"

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fastweights needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: install
	$(BIN)/python examples/retrieval.py

test: lint
	$(BIN)/pytest -n 2

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src
	$(BIN)/mypy examples benchmarks

bench: install
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
