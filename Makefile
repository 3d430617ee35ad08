# Two commands do everything on a fresh machine with Python 3.11+, make and git: `make demo` and `make test`.

PYTHON ?= python3
SEEDS ?= 0
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: venv demo test test-slow test-all lint bench clean
.DELETE_ON_ERROR:

venv: $(STAMP)

# torch goes first and alone: on a machine without a GPU the pinned version is then the CPU build wherever one is served.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: PYTHON=$(PYTHON): expected Python 3.11 or newer"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing torch (about a minute) ..."
	$(BIN)/pip install --disable-pip-version-check --quiet $$(grep '^torch==' constraints.txt)
	@echo "installing the rest (about two minutes) ..."
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/python -m asyncpp.sweep run demo seeds=[$(SEEDS)]
	$(BIN)/python analysis/make_figures.py runs=runs/demo
	$(BIN)/python analysis/make_tables.py runs=runs/demo

test: venv
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: venv
	$(BIN)/python -m pytest -n auto -m slow

test-all: venv
	$(BIN)/python -m pytest -n auto

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: venv
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf runs results .pytest_cache .ruff_cache .hypothesis .import_linter_cache
