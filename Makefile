# One entrance for everything. A bare machine needs python3 (3.11 to 3.15), make and a network.

PYTHON ?= python3
# More words for pytest, for example: make test ARGS="-k header -x".
ARGS ?=

# Where `make docs` puts the pages.
SITE ?= $(CURDIR)/site

BIN := .venv/bin
# The applications of the guides, each with its patch.
ADOPTED := examples/existing/adopted
SOURCES := src examples/task_service/src
PACKAGES := -e . -e examples/task_service
PYTHONS := 3.11 3.12 3.13 3.14 3.15
# Those that `make test-pythons` adds to the one of .venv.
OTHERS := 3.11 3.15

# pyright runs on the node of its own wheel, and asks no registry whether it is the newest.
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

# Compiled modules are kept, whatever the shell says: the tests start the service dozens of times.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test coverage test-envs test-clients test-pythons test-threads test-pages test-faults mutants check check-all audit release format docs bench requirements clean

help:  ## Show what can be made (this list)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: $(BIN)/.run  ## Serve the task service on this machine
	exec $(BIN)/task-service serve

test: $(BIN)/.dev  ## Run the tests, without those of test-pages and test-faults
	$(BIN)/pytest $(or $(ARGS),-n auto --dist loadfile --no-loadscope-reorder)

coverage: $(BIN)/.dev  ## Fail below the limits of coverage, on the newest Python
	.ci/coverage

test-envs: $(BIN)/.dev  ## Run the tests with each framework alone, and with none, on the oldest versions; the adapters' on the pinned ones too
	.ci/environments

test-clients: $(BIN)/.dev  ## Exchange tokens with Node's jose, try the gate of MCP servers with MCP's own programs, fuzz the service by its OpenAPI document, and try clients generated from it
	.ci/clients

test-pythons: $(BIN)/.dev  ## Run the library's tests on the oldest and the newest Python
	.ci/pythons $(filter-out $(shell $(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'),$(OTHERS))

test-threads:  ## Run the tests of several threads on PYTHON, such as a free-threaded build
	PYTHON=$(PYTHON) .ci/threads

test-pages: $(BIN)/.dev  ## Use every page of the service in a browser, and examine them and the documentation: accessibility, layout, size, search
	$(BIN)/pytest -m pages -n 2 --dist loadfile $(ARGS)

test-faults: $(BIN)/.dev  ## Run the tests that kill, freeze and starve processes, and the slow ones that rarely fail
	$(BIN)/pytest -m faults -n 2 --dist loadfile $(ARGS)

# Some of the modules, such as ARGS="core.policy leases".
mutants: $(BIN)/.mutants  ## Change the code that decides in thousands of small ways, and fail where no test notices
	$(BIN)/python -m tests.mutation.check $(ARGS)

check: $(BIN)/.dev  ## Check format, lint, the generated code, types, import contracts, spelling and the docs build
	$(BIN)/python -m docs.tools.existing
	$(BIN)/ruff format --check . $(ADOPTED)
	$(BIN)/ruff check . $(ADOPTED)
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/mypy
	$(BIN)/pyright --warnings
	.ci/types
	$(BIN)/lint-imports
	$(BIN)/typos
	$(MAKE) docs

check-all: $(BIN)/.dev  ## Build twice, and install everywhere: each extra, Python 3.11 to 3.15, old and new
	mkdir -p .nox/pythons
	for version in $(PYTHONS); do ln -sf "$$(.ci/python $$version)" .nox/pythons/python$$version || exit; done
	PATH="$(CURDIR)/.nox/pythons:$(CURDIR)/$(BIN):$$PATH" $(BIN)/nox $(ARGS)

# With TAG=v1.2.3 also what holds only for the commit that has the tag: a clean tree, and the changes under their number.
release: $(BIN)/.release  ## Check and build all that a release needs, and publish nothing
	.ci/release $(TAG)

audit: $(BIN)/.venv  ## List known vulnerabilities of the service's dependencies (needs a network that knows them)
	$(BIN)/uv tool run pip-audit==2.10.1 --strict --disable-pip --require-hashes --requirement requirements/run.txt

format: $(BIN)/.dev  ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(BIN)/.dev  ## Build the documentation into site/, the handbook of the service into site/service/
	$(BIN)/mkdocs build --strict --site-dir $(SITE)
	$(BIN)/mkdocs build --strict --site-dir $(SITE)/service --config-file mkdocs.service.yml
	$(BIN)/python -m docs.tools.built_site $(SITE)

# Names, or --write to keep the results for the documentation: make bench ARGS="verification --write"
bench: $(BIN)/.dev  ## Measure verification and refusals, in a few minutes
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(findstring --write,$(ARGS)),$(BIN)/python docs/tools/parts.py)

# --universal makes one file serve every platform and Python; nothing in it may name an index or a host.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-package msk-auth --no-emit-package task-service
PROJECTS := pyproject.toml examples/task_service/pyproject.toml

requirements: $(BIN)/.run  ## Resolve the pinned requirements anew (UPGRADE=1: to the newest)
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) $(PROJECTS) \
		--extra fastapi --extra sqlalchemy --extra argon2 --extra opentelemetry -o requirements/run.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/build.in \
		--constraint requirements/run.txt -o requirements/build.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/build.in requirements/dev.in $(PROJECTS) \
		--all-extras --constraint requirements/run.txt --constraint requirements/build.txt -o requirements/dev.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/mutants.in \
		--constraint requirements/dev.txt -o requirements/mutants.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/release.in \
		--constraint requirements/dev.txt -o requirements/release.txt
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/clients.in -o requirements/clients.txt

clean:  ## Remove the environment, build results and caches (never a service's data)
	rm -rf .venv .nox dist site htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		$(ADOPTED) .mutants .mypy_cache .pytest_cache .ruff_cache examples/task_service/dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. Each stamp is touched last, so an interrupted step is simply done again.
# uv installs in seconds; where it is missing or fails, pip does the same work with the same hashes.

define install
{ $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1); }
endef

$(BIN)/.venv: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] < (3, 16) else \
		f"Python 3.11 to 3.15 is needed; $(PYTHON) is {sys.version.split()[0]}. Try: make PYTHON=python3.12 …")'
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/bootstrap.txt || echo "uv does not install here; pip takes its place."
	@touch $@

$(BIN)/.run: $(BIN)/.venv requirements/run.txt requirements/build.txt $(PROJECTS)
	@echo "Installing what the service needs"
	@$(call install,--require-hashes -r requirements/run.txt -r requirements/build.txt)
	@$(call install,--no-deps --no-build-isolation $(PACKAGES))
	@touch $@

$(BIN)/.dev: $(BIN)/.run requirements/dev.txt
	@echo "Installing what the tests and checks need"
	@$(call install,--require-hashes -r requirements/dev.txt)
	@touch $@

$(BIN)/.mutants: $(BIN)/.dev requirements/mutants.txt
	@echo "Installing what changes the code"
	@$(call install,--require-hashes -r requirements/mutants.txt)
	@touch $@

$(BIN)/.release: $(BIN)/.dev requirements/release.txt
	@echo "Installing what writes bills of materials"
	@$(call install,--require-hashes -r requirements/release.txt)
	@touch $@
