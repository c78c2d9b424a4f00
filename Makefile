# Two commands for a fresh clone: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types clean

demo: $(VENV)/.installed
	$(BIN)/kenyon run digits --method finetune,ewc,caf-ewc --seeds 5 --out demo-results

test: $(VENV)/.installed-dev lint types
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-results
