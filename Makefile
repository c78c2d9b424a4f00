# Two commands for a fresh clone: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROGRAMS := .venv-programs

.PHONY: demo test test-programs docs torture lint types browser clean

demo: $(VENV)/.installed
	$(BIN)/kenyon run digits --method finetune,ewc,caf-ewc --seeds 5 --out demo-results

test: $(VENV)/.installed-dev lint types browser
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# The integrations against Lightning, transformers, Accelerate and datasets themselves, in a venv of their own: `make test`
# skips what is not installed. PyTorch comes first, so that none of them chooses another. The count is in
# benchmarks/soundness.json.
test-programs: $(PROGRAMS)/.installed
	OMP_NUM_THREADS=1 $(PROGRAMS)/bin/python benchmarks/programs.py

# The site, in build/site/index.html. Warnings are errors.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Minutes: 50 kills in a row, 100,000 hostile inputs, and the emulations that take long. What it did is in
# benchmarks/torture.json.
torture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 KENYON_TORTURE=benchmarks/torture.json $(BIN)/python -m pytest -m torture

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

$(PROGRAMS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/pip install -q -e .
	$(PROGRAMS)/bin/pip install -q -e '.[hf,lightning,transformers]' pytest hypothesis
	touch $@

clean:
	rm -rf $(VENV) $(PROGRAMS) demo-results build/site
