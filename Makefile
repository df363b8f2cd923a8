# CONTRIBUTING.md describes the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes from this tree: without bytecode files each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test test-changed test-all lint format simulate soak bench bench-kubernetes e2e lock clean

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m ottla_pipeline.prefetch
	$(BIN)/python -m ottla.local.zookeeper
	touch $(READY)

run: setup
	$(BIN)/python -m demo.run

# File by file in the given order: the long ones first, so that both processes end at the same time.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Each part of the system and each family of oracles once.
test: setup
	$(PYTEST) $$($(BIN)/python -m tests.selection core)

# The test files that the change since BASE=COMMIT exercises and `test` leaves out.
test-changed: setup
	@files=$$($(BIN)/python -m tests.selection changed $(BASE)) && \
	  if [ -n "$$files" ]; then echo "$$files" && $(PYTEST) $$files; else echo "the change concerns no slow test file"; fi

# All tests. Records the duration of each file, for the choice of `test-changed`.
test-all: setup
	$(PYTEST) --junitxml=build/test-all.xml
	$(BIN)/python -m tests.selection record build/test-all.xml
	$(MAKE) e2e

# On a real Kubernetes: OTTLA_KUBE=…/kube.sh, or a KUBECONFIG. Skipped with a message without both.
e2e: setup
	$(BIN)/python -m pytest tests/e2e

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m ottla_operator.resources.crds --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A run of the simulation: SEED=7, or many on all cores: SEEDS=10000 from FIRST=1, resumed by RESULTS=FILE.
simulate: setup
	$(BIN)/python -m ottla.simulation run $(SEED) $(ARGS)

soak: setup
	mkdir -p build
	$(BIN)/python -m ottla.simulation soak $(or $(FIRST),1) $(or $(SEEDS),1000) --results $(or $(RESULTS),build/soak.jsonl) $(ARGS)

bench: setup
	$(BIN)/python -m bench

bench-kubernetes: setup
	$(BIN)/python -m tests.e2e.measure

# Hashed, with no index host in it: all extras for development; what builds the wheel; the operator's for the image of
# brokers, the pipeline's and the broker's for that of Spark, both with security's.
COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

lock: setup
	$(BIN)/pip install --quiet pip-tools
	$(COMPILE) --all-extras --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for wheel --constraint requirements/dev.txt --output-file requirements/build.txt pyproject.toml
	$(COMPILE) --extra operator --extra security --output-file requirements/runtime.txt pyproject.toml
	$(COMPILE) --extra broker --extra pipeline --extra security --output-file requirements/spark.txt pyproject.toml

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
