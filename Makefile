# Two commands do everything on a fresh machine with Python 3.11+, make and git: `make demo` and `make test`.

PYTHON ?= python3
SEEDS ?= 0
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: venv demo test test-slow test-slurm test-all lint bench timelines results clean
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
	$(BIN)/python -m pytest -n auto -m "not slow and not slurm"

test-slow: venv
	$(BIN)/python -m pytest -n auto -m slow

# On a Slurm of this machine's own; as root, and apt-get installs it where it is missing.
test-slurm: venv
	tests/slurm/cluster.sh up
	$(BIN)/python -m pytest tests/slurm -m slurm; code=$$?; tests/slurm/cluster.sh down; exit $$code

test-all: venv
	$(BIN)/python -m pytest -n auto -m "not slurm"

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# All but the two that ask for ten minutes, or for a GPU.
bench: venv
	@for file in $(filter-out %/soak.py %/gpu_check.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The figure of docs/schedules.md: what two ranks did, beside what their schedules would have them do. Wants an idle machine.
timelines: venv
	rm -rf runs/timelines
	$(BIN)/python -m asyncpp.train -m pipeline=1f1b,2bw pipeline.num_stages=2 trainer.num_micro_batches=4 model.num_layers=5 \
		data.sequence_length=256 trainer.num_steps=20 trainer.eval_every=null pipeline.trace_batches=4 sweep_name=timelines
	$(BIN)/python -m asyncpp.trace "run=[$$(ls -d runs/timelines/*-sync-*),$$(ls -d runs/timelines/*-one_step-*)]" \
		out=docs/timelines.svg

# docs/results-tiny again, from the reduced runs that lie there (analysis/collect.py put them there).
results: venv
	$(BIN)/python analysis/make_figures.py runs=docs/results-tiny/runs out=docs/results-tiny
	$(BIN)/python analysis/make_tables.py runs=docs/results-tiny/runs out=docs/results-tiny
	$(BIN)/python analysis/claims.py runs=docs/results-tiny/runs out=docs/results-tiny
	$(BIN)/python analysis/make_report.py runs=docs/results-tiny/runs out=docs/results-tiny
	$(BIN)/python analysis/lr_search.py runs=docs/results-tiny/runs out=docs/lr-search-tiny.md

clean:
	rm -rf runs results .pytest_cache .ruff_cache .hypothesis .import_linter_cache
