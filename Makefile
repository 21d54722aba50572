# make setup | train | test | test-slow | lint.  Needs Python 3.11 or newer, and make.
# Another interpreter:  make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS ?= embedded,test
# Test processes; each file's tests run in one of them. 0 runs all in this one.
WORKERS ?= 2
SPREAD := $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadfile)

.PHONY: setup train test test-slow lint readme clean

setup: $(READY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "expected Python 3.11 or newer, got '$$($(PYTHON) --version 2>&1)';" \
	    "name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; Debian and Ubuntu need the package" \
	    "python3-venv" >&2; exit 1; }

# The stamp is written last, so a broken install is tried again. pycosat, which only
# some puzzles of reasoning-gym call, comes as C source: without a compiler it is left
# out.
$(READY): $(BIN)/python setup.cfg pyproject.toml $(wildcard constraints-py*.txt)
	@set -e; \
	pins=constraints-py$$($(BIN)/python -c \
	  'import sys; print("%d%d" % sys.version_info[:2])').txt; \
	if test -f $$pins; then pins="-c $$pins"; else \
	  echo "no $$pins: installing the newest versions that setup.cfg allows"; \
	  pins=; fi; \
	what="$$pins -e .[$(EXTRAS)]"; \
	uv="$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode"; \
	echo "pycosat; sys_platform == 'none'" > $(VENV)/no-compiler.txt; \
	if $(BIN)/python -m pip install --quiet uv && { $$uv $$what || { \
	  echo "trying without pycosat, which needs a C compiler"; \
	  $$uv --override $(VENV)/no-compiler.txt $$what; }; }; \
	then :; else \
	  echo "uv could not install the packages; trying pip"; \
	  $(BIN)/python -m pip install $$what; fi
	$(BIN)/metaharness models get smollm2-135m
	@touch $@

train: setup
	$(BIN)/metaharness train

test: setup
	$(BIN)/python -m pytest -q -m "not slow" $(SPREAD)

# Status 5 means that no test is marked slow.
test-slow: setup
	$(BIN)/python -m pytest -q -m slow || test $$? -eq 5

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

readme: setup
	$(BIN)/python -P tests/readme_code.py README.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache \
	  .import_linter_cache
