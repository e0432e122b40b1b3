# Trunkline. `make run` starts a broker, `make test` runs everything; both set up what they need first.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup run demo test spark unit lint format bench crash generate lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Trunkline needs Python 3.11 or newer; none was found. On Debian: apt-get install python3 python3-venv"; exit 1; }
	@echo "==> creating an isolated environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "could not create $(VENV). On Debian: apt-get install python3-venv"; exit 1; }

# The modules that mypyc compiles, as listed in compiled.py: the install is repeated when one of them changes.
CODECS := $(shell sed -n 's/^    "\(trunkline\..*\)",$$/\1/p' src/trunkline/compiled.py | tr . / | sed 's/.*/src\/&.py/')

$(VENV)/.core: requirements/core.lock pyproject.toml $(CODECS) | $(BIN)/python
	@echo "==> installing Trunkline"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/core.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(BIN)/python tools/compile_codecs.py --report
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.core
	@echo "==> installing what the tests need (clients, linters)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.lock
	@touch $@

setup: $(VENV)/.dev ## Install everything the tests need
	@sh tools/system_packages.sh kcat java mvn rabbitmq-server node npm mosquitto mosquitto_pub postgres chromium chromedriver
	@echo "==> ready. Next: make test, make run, or $(BIN)/trunkline --help"

run: $(VENV)/.core ## Start a broker with its log in ./trunkline-data
	@$(BIN)/trunkline serve

demo: $(VENV)/.dev ## Show two pipelines at work, live: IoT alerts and event sourcing; under three minutes
	@sh tools/system_packages.sh java
	@$(BIN)/python examples/pipelines/demo.py
	@echo "==> done. Next: examples/pipelines/README.md, docs/pipelines.md"

test: setup ## Run every test
	@echo "==> running the tests ($(WORKERS) at a time)"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 1 --ignore tests/spark
	@echo "==> running the tests on Spark (one session, one after the other)"
	@$(BIN)/python -m pytest tests/spark
	@echo "==> all tests passed. Next: make run, make bench, make crash"

spark: setup ## Run the tests on real Spark only
	@$(BIN)/python -m pytest tests/spark

unit: $(VENV)/.dev ## Run the fast tests only
	@$(BIN)/python -m pytest -n $(WORKERS) tests/unit

lint: $(VENV)/.dev ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## Measure us beside Apache Kafka, RabbitMQ and Mosquitto
	@$(BIN)/trunkline bench kafka --peer
	@$(BIN)/trunkline bench amqp --peer
	@$(BIN)/trunkline bench mqtt --peer
	@$(BIN)/trunkline bench share --peer

crash: setup ## Kill brokers a few hundred times and check every promise of durability
	@$(BIN)/python -m tests.crash --cycles 300
	@$(BIN)/python -m tests.crash --cycles 100 --protocol kafka-java
	@$(BIN)/python -m tests.crash --cycles 200 --protocol amqp
	@$(BIN)/python -m tests.crash --cycles 100 --protocol share
	@$(BIN)/python -m tests.crash --cycles 100 --protocol sqs
	@$(BIN)/python -m tests.crash --cycles 100 --protocol mixed

generate: $(VENV)/.dev ## Write the Kafka message classes from their declarations
	@$(BIN)/python tools/generate_kafka_messages.py

lock: $(VENV)/.dev ## Bring the lock files up to date with pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --upgrade --generate-hashes pyproject.toml -o requirements/core.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --upgrade --generate-hashes pyproject.toml --extra dev -c requirements/core.lock -o requirements/dev.lock

clean: ## Remove the environment and caches
	@find src -name '*.so' -delete
	@rm -f src/trunkline/compiled*.txt
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
