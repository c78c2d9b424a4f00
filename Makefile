# Two commands for a fresh clone: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
PROGRAMS := .venv-programs

# The Python of `make gpu-test`: one with a CUDA build of PyTorch and the tools of the extra `dev`.
GPU_PYTHON ?= python3

.PHONY: demo test test-lowest test-programs gpu-test docs torture mutants lint types browser clean

demo: $(VENV)/.installed
	$(BIN)/kenyon run digits --method finetune,ewc,caf-ewc --seeds 5 --out demo-results

test: $(VENV)/.installed-dev lint types browser
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# A part of the tests with the oldest packages that pyproject.toml allows, except for PyTorch: see tests/lowest.py. What
# old packages say of newer ones beside them is not held against them: Python does not show it to users either.
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal \
	  -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning $$($(LOWEST)/bin/python tests/lowest.py --tests)

# On a machine with a GPU: every test marked gpu or kernels, in some minutes. The summary is part of benchmarks/soundness.json.
gpu-test:
	OMP_NUM_THREADS=1 KENYON_RECORD="gpu-tests: tests of kernels and of training on a GPU" PYTHONPATH=src:.:$$PYTHONPATH \
	  $(GPU_PYTHON) -m pytest -m "(gpu or kernels) and not torture" -n 10 --dist worksteal -p no:benchmark

# The integrations against Lightning, transformers, Accelerate and datasets themselves, in a venv of their own: `make test`
# skips what is not installed. PyTorch comes first, so that none of them chooses another. The count is in
# benchmarks/soundness.json.
test-programs: $(PROGRAMS)/.installed
	OMP_NUM_THREADS=1 $(PROGRAMS)/bin/python benchmarks/programs.py

# The site, in build/site/index.html. Warnings are errors.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Up to an hour: 50 kills in a row, 100,000 hostile inputs, faults at thousands of file-system calls, and the emulations
# that take long. What it did is in benchmarks/torture.json and benchmarks/soundness.json.
torture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 KENYON_TORTURE=benchmarks/torture.json $(BIN)/python -m pytest -m torture

# Most of an hour: about 460 small faults, one at a time, which the tests have to notice. It goes on where it was stopped;
# results are in build/mutants and, when all have been tried, in benchmarks/soundness.json.
mutants: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python -m tests.mutation --record mutants

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The tests of the report's page need a Chromium and are skipped without one. Only a CI machine gets it installed.
browser:
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && ! command -v chromium >/dev/null; then \
	  timeout 150 sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y chromium' \
	  >/dev/null 2>&1 || echo "No Chromium could be installed: the tests in a browser are skipped."; \
	fi

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[dev]'
	$(BIN)/pip install -q -e '.[docs]' || echo "The tools of the site could not be installed: its tests are skipped."
	touch $@

$(LOWEST)/.installed: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python tests/lowest.py > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/pip install -q -e . -r $(LOWEST)/requirements.txt
	touch $@

$(PROGRAMS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/pip install -q -e .
	$(PROGRAMS)/bin/pip install -q -e '.[hf,lightning,transformers]' pytest hypothesis
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(PROGRAMS) demo-results build/site
