# make run   do the main job: an engine, the gateway, a key to use
# make demo  the incident on a model of the engine, in the dashboard: no GPU, no model
# make test  everything CI checks (the README's test command)
PYTHON ?= python3
VENV := .venv
ENGINE_LOCKS := serve/install/locks
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-header --quiet
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev

.PHONY: run demo test check fast format lock engine-locks clean

run: $(INSTALLED)
	$(BIN)/governor up

demo: $(INSTALLED)
	$(BIN)/governor demo

test: check
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: $(STAMP)
	$(BIN)/pytest -m "not clients and not embedded and not postgres and not sglang and not slow"

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(STAMP)
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile $(LOCK_OPTIONS) pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile $(LOCK_OPTIONS) --group dev pyproject.toml -o requirements-dev.lock

engine-locks: $(STAMP)
	$(BIN)/pip install -q uv
	for lock in sglang-base tiny-model gfx1100; do \
	  $(BIN)/uv pip compile $(LOCK_OPTIONS) --no-annotate --no-deps $(ENGINE_LOCKS)/$$lock.in -o $(ENGINE_LOCKS)/$$lock.txt; \
	done
	$(BIN)/uv pip compile --python-version 3.11 --python-platform x86_64-manylinux_2_35 --prerelease allow \
	  --generate-hashes --no-header --no-annotate --quiet $(ENGINE_LOCKS)/sglang-cuda.in -o $(ENGINE_LOCKS)/sglang-cuda.txt

clean:
	rm -rf $(VENV)

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps -e .
	touch $@

$(STAMP): $(INSTALLED) requirements-dev.lock
	$(PIP) --require-hashes -r requirements-dev.lock
	touch $@
