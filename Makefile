# make demo | test | check | lint | types | docs | picture | bench | whole-step | measured | study | data-table | site: each sets up what it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DATA := problems/data
TRACE := $(DATA)/transformer_ddp_gloo_rank0.json.gz
COSTS := $(DATA)/gloo_loopback_costs.json

.PHONY: measured study site data-table hta torch demo test torch-test lint types docs check picture bench whole-step clean

demo: $(STAMP)
	@mkdir -p demo
	$(BIN)/commsched plan $(TRACE) --costs $(COSTS) --picture demo/timeline.png --out demo/plan.json
	@echo
	$(BIN)/commsched verify demo/plan.json $(TRACE) --costs $(COSTS)
	@echo
	@echo "the picture is demo/timeline.png, the plan is demo/plan.json"

test: $(STAMP)
	$(BIN)/pytest -n 2 -q $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/pytest -q --doctest-modules models problems optimizer $(filter-out commsched/__main__.py,$(wildcard commsched/*.py)) \
		commsched/export commsched/report
	$(BIN)/pytest -q tests/docs_examples.py

check: test lint types docs

picture: $(STAMP)
	$(BIN)/commsched plan $(TRACE) --costs $(COSTS) --picture docs/timeline.png > /dev/null
	$(BIN)/commsched compare $(TRACE) --costs $(COSTS) --picture docs/rules.png > /dev/null

bench: $(STAMP)
	$(BIN)/python benchmarks/planning_speed.py

whole-step: $(STAMP)
	$(BIN)/python benchmarks/whole_step.py --write
	$(BIN)/python benchmarks/whole_step.py --plain --write

torch-test: torch
	$(BIN)/pytest -q -m torch $(PYTEST_ARGS)

measured: torch
	$(BIN)/python benchmarks/emulated_link.py --write

$(STAMP): requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python3 needs its venv module (Debian: apt-get install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

hta: $(STAMP)
	$(BIN)/python -c "import hta" 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --no-deps -r requirements/hta.txt

torch: $(STAMP)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0

site: $(STAMP)
	$(BIN)/python -c "import mkdocs, mkdocstrings" 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --no-deps -r requirements/docs.txt
	$(BIN)/mkdocs build --quiet --strict --site-dir site

data-table: $(STAMP)
	$(BIN)/python benchmarks/read_everything.py --write

study: $(STAMP)
	$(BIN)/python benchmarks/rules_study.py

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
