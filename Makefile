# Two commands for a newcomer: `make train` and `make test`. Both make $(VENV) first.

PYTHON ?= python3
VENV ?= .venv
# The one place where torch is pinned: kernels, and with them the bits of a run, change between
# releases. On Linux the ordinary index serves a CUDA build of it (about 3 GB with its libraries);
# for PyTorch's CPU build (about 200 MB) see the README's line with PIP_ARGS.
TORCH ?= torch==2.13.0
PIP_ARGS ?=
PRESET ?= arithmetic

export OMP_WAIT_POLICY ?= PASSIVE
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test lint check-python results bench bench-sandbox load clean

train: $(VENV)/.train-installed
	$(BIN)/veriward train $(PRESET)

test: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -n auto --dist worksteal tests

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The figures of docs/results.md; hours on two cores, run by hand.
results: $(VENV)/.train-installed
	$(BIN)/python -m bench.results --work runs/results

bench: $(VENV)/.dev-installed
	$(PIP) -e '.[bench]'
	$(BIN)/python -m bench.trainer_vs_trl

# With bubblewrap where it is installed, and Docker where DOCKER_HOST has an engine.
bench-sandbox: $(VENV)/.dev-installed
	$(BIN)/python -m bench.sandbox

# Some minutes on two cores: 20,000 jobs while the server and its slots are killed.
load: $(VENV)/.dev-installed
	$(BIN)/python -m bench.load

check-python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or newer, or give PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; Veriward needs Python 3.11 or newer (give PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }

$(BIN)/python: | check-python
	$(PYTHON) -m venv $(VENV)

# A stamp is only written after its install ended well, so an interrupted one is repeated.
$(VENV)/.train-installed: pyproject.toml Makefile | $(BIN)/python
	$(PIP) $(PIP_ARGS) '$(TORCH)'
	$(PIP) $(PIP_ARGS) -e '.[train]'
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.train-installed
	$(PIP) $(PIP_ARGS) -e '.[train,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
