# Two targets matter: `make serve` starts the application, `make test` runs every test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CONFIG ?= configs/pocket.yaml

.PHONY: env serve test lint types clean

env: $(STAMP)

$(STAMP): requirements/cpu.txt pyproject.toml tools/bootstrap.sh llm/cpu/build.py $(wildcard llm/cpu/kernels/*.[ch]*)
	@PYTHON=$(PYTHON) bash tools/bootstrap.sh $(VENV) requirements/cpu.txt
	@touch $@

serve: env
	@OMNISERVE_CONFIG=$(CONFIG) $(BIN)/python -m app.serve

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

test: env
	@$(BIN)/python -m pytest

clean:
	rm -rf $(VENV)
