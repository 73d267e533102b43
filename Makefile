# Everything a newcomer runs. `make help` lists it.

PYTHON ?= $(shell command -v python3.11 || echo python3)
# tensorflow-cpu, or tensorflow for machines with a GPU.
TENSORFLOW ?= tensorflow-cpu
VENV := .venv
BIN := $(VENV)/bin
# What is imported is compiled then; the packages hold much more.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
  --no-compile
# A file stays on one worker, for its fixtures; the folders with the longest
# files come first, so that both workers end together.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
  --no-loadscope-reorder
DOCS := requirements/docs.txt
# Tests make an environment of its own for it.
TRACKERS := requirements/trackers.txt
REQUIREMENTS := $(filter-out $(DOCS) $(TRACKERS),$(wildcard requirements/*.txt)) \
  pyproject.toml
# TensorFlow's C++ code logs its build options at every start otherwise.
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Each process that a test starts would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo quick test test-full nightly coverage docs docs-check proofs format lint \
  types clean

help:  ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

env: $(VENV)/.installed  ## Create .venv with everything in it.

$(VENV)/.installed: $(REQUIREMENTS)
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), \
	  "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/$(TENSORFLOW).txt -r requirements/runtime.txt \
	  -r requirements/dev.txt
	# Its tensorflow-text needs the package `tensorflow`, whose files would
	# overwrite those of tensorflow-cpu; models without tokenizers do not.
	$(PIP) --no-deps -r requirements/keras_hub.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

demo: env  ## Train a private income classifier on census data.
	TF_CPP_MIN_LOG_LEVEL=1 $(BIN)/python tutorials/adult_income.py

quick: env  ## Run the unit tests that need no TensorFlow, within a minute.
	$(PYTEST) --tier quick keras_dp tests/unit

test: env format lint types  ## Check style and types, run all but the longest tests.
	$(PYTEST) --tier standard

# In two runs: the graphs that TensorFlow keeps grow to 14 GB in a worker.
test-full: env format lint types  ## Check style and types, run all but the nightly cases.
	$(PYTEST) --tier full keras_dp tests/integration
	$(PYTEST) --tier full tests/oracle tests/property tests/statistical tests/unit

nightly: env  ## Run what test-full leaves out, and search for counterexamples.
	$(PYTEST) -m nightly tests
	$(PYTEST) --hypothesis-profile search tests/property

proofs:  ## Check the proofs of docs/finite_precision.md; needs coqc (Debian's coq).
	mkdir -p out
	cd out && coqc -no-glob -o FinitePrecision.vo ../proofs/FinitePrecision.v

coverage: env  ## Measure which lines of the package `make test` runs.
	$(PYTEST) --tier standard --cov keras_dp --cov-report term:skip-covered

docs: $(VENV)/.docs-installed  ## Build the site in out/site, offline.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open out/site/index.html"

docs-check: docs  ## Look at the site in Chromium: its search, its width on a telephone.
	$(BIN)/python docs/_site/browser.py

$(VENV)/.docs-installed: $(VENV)/.installed $(DOCS)
	$(PIP) -r $(DOCS)
	@touch $@

format:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

clean:  ## Remove what the other targets made.
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache
