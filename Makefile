# `make run` shows the whole system at work; `make test` proves it. Both install what they need into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
PROVIDER_PORT ?= 8001
WORKERS ?= auto
PYTEST_ARGS ?=

export PORT PROVIDER_PORT

.PHONY: run install test lint stop clean

run: install
	@exec $(BIN)/python -m config.devstack

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml config/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; name one with make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint config/constraints.txt --editable '.[dev]'
	@touch $@

test: install
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .data staticfiles *.egg-info
