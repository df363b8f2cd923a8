# CONTRIBUTING.md describes the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes from this tree: without bytecode files each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run tools oracles check test test-changed interop cluster coverage e2e kind test-all dist bundle charts lint docs format simulate soak \
  screenshots bench bench-kubernetes lock clean

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt
	@echo "Creating $(VENV), 2 GB on disk. pip prints nothing for some minutes: PySpark alone is a download of 400 MB."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m ottla_pipeline.prefetch
	$(BIN)/python -m ottla.local.zookeeper
	touch $(READY)

# CONSOLE=1: with the web console, until Ctrl-C.
run: setup
	$(BIN)/python -m demo.run $(if $(CONSOLE),--console)

# File by file in the given order: the long ones first, so that all processes end at the same time.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder
SELECTED := $(BIN)/python -m tests.selection

# Other people's clients, tools and brokers, that the tests ask. A missing one is named by the tests that it skips.
tools:
	.ci/tools

oracles: tools setup
	$(BIN)/python -m tests.oracles

# Under a minute: the unit tests of what changed since BASE=COMMIT.
check: lint
	@files=$$($(SELECTED) unit $(BASE)) && \
	  if [ -n "$$files" ]; then $(PYTEST) -q $$files; else echo "the change concerns no unit test"; fi

# All unit tests, the simulation, and each family of oracles once.
test: oracles
	$(PYTEST) $$($(SELECTED) core)

# The interop tests that the change since BASE=COMMIT exercises and `test` leaves out.
test-changed: oracles
	@files=$$($(SELECTED) changed $(BASE)) && \
	  if [ -n "$$files" ]; then echo "$$files" && $(PYTEST) $$files; else echo "the change concerns no slow test file"; fi

# All tests beside other people's programs; one shard by SHARD=spark (the folders of tests/interop).
interop: oracles
	$(PYTEST) $$($(SELECTED) shard $(SHARD))

# Clusters of real processes, and what kills them.
cluster: oracles
	$(PYTEST) tests/cluster --junitxml=build/cluster.xml

# Lines and branches that `test` runs, or other tests: TESTS="tests/cluster tests/interop tests/unit".
coverage: oracles
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/coverage run -m $(subst $(BIN)/python -m,,$(PYTEST)) $(or $(TESTS),$$($(SELECTED) core))
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --sort=cover --skip-covered

# On a real Kubernetes: OTTLA_KUBE=…/kube.sh, or a KUBECONFIG. Skipped with a message without both.
e2e: setup
	$(BIN)/python -m pytest tests/e2e

# A kind cluster with the operator, a cluster and a smoke; .ci/kind says what it needs, and its variables.
kind:
	.ci/kind

# Everything. Records the duration of each file, for the choices above.
test-all: cluster
	$(PYTEST) $$($(SELECTED) shard) tests/unit --junitxml=build/rest.xml
	$(SELECTED) record build/cluster.xml build/rest.xml
	$(MAKE) e2e

# The wheel and the sdist of the commit that is checked out, checked, in dist/; prints their digests.
dist: setup
	$(BIN)/python -m release.dist

# The operator's bundle for OLM, in build/bundle.
bundle: setup
	$(BIN)/python -m release.bundle

# The charts as packages, in build/charts.
HELM ?= helm
charts:
	rm -rf build/charts
	for chart in ottla ottla-cluster; do \
	  $(HELM) lint --strict charts/$$chart && $(HELM) package charts/$$chart --destination build/charts || exit 1; done
	cd build/charts && sha256sum *

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m tests.pages build/pages
	$(BIN)/ruff check build/pages
	$(BIN)/ruff format --check build/pages
	$(BIN)/mypy build/pages
	$(BIN)/python -c "import ottla, importlinter.cli as linter; linter.lint_imports_command()"  # both folders of ottla
	$(BIN)/python -m ottla_operator.resources.crds --check
	$(BIN)/python -m charts.dashboards --check
	$(BIN)/python -m charts.metadata --check
	$(BIN)/python -m release.version --check
	$(BIN)/python -m references --check

# The documentation site, in build/site: a page without a place in mkdocs.yml, a broken link or a missing anchor is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A run of the simulation: SEED=7, or many on all cores: SEEDS=10000 from FIRST=1, resumed by RESULTS=FILE.
simulate: setup
	$(BIN)/python -m ottla.simulation run $(SEED) $(ARGS)

soak: setup
	mkdir -p build
	$(BIN)/python -m ottla.simulation soak $(or $(FIRST),1) $(or $(SEEDS),1000) --results $(or $(RESULTS),build/soak.jsonl) $(ARGS)

# The pictures of the console in README and docs/guides/console.md; look at each of them.
screenshots: setup
	$(BIN)/python -m tests.screenshots

# Beside Apache Kafka; PAGE=FOLDER: where the page with the figures and plots is written.
bench: setup
	$(BIN)/python -m bench --page $(or $(PAGE),build/bench)

bench-kubernetes: setup
	$(BIN)/python -m tests.e2e.measure

# Hashed, with no index host in it: all extras for development; what builds the wheel, and lists an image's packages; those of operator and console (with schemas) for the
# image of brokers, of pipeline and broker for that of Spark, both with security's.
COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

lock: setup
	$(BIN)/pip install --quiet pip-tools
	$(COMPILE) --all-extras --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for wheel --constraint requirements/dev.txt --output-file requirements/build.txt pyproject.toml
	echo cyclonedx-bom | $(COMPILE) --constraint requirements/dev.txt --output-file requirements/sbom.txt -
	$(COMPILE) --extra console --extra operator --extra schemas --extra security --extra tracing --output-file requirements/runtime.txt pyproject.toml
	$(COMPILE) --extra broker --extra pipeline --extra security --output-file requirements/spark.txt pyproject.toml

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
