# make run   do the main job: an engine, the gateway, a key to use
# make test  everything CI checks (the README's test command)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check fast format lock clean

run: $(STAMP)
	$(BIN)/governor up

test: check
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: $(STAMP)
	$(BIN)/pytest -m "not clients and not embedded and not slow and not postgres"

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(STAMP)
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --group dev --no-header -q pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	touch $(STAMP)
