# The two main commands: `make demo` and `make test`. Each sets up everything that it needs; the next run is quick.

PYTHON  ?= python3
# Four more than there are cores: a test waits for servers and deadlines half of its time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 4)

BIN   := .venv/bin
VENV  := .venv/.stamp-venv
CLI   := .venv/.stamp-cli
ACTS  := .venv/.stamp-examples
WEB   := .venv/.stamp-web
DEV   := .venv/.stamp-dev
READ  := .venv/.stamp-read
BENCH := .venv/.stamp-bench
DOCS  := .venv/.stamp-docs
RELEASE := .venv/.stamp-release
BUILT := build/compiled
TESTED := build/tested
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

# Some containers forbid Python to keep what it compiled. The tests start hundreds of programs: each would compile anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo demo-web quick test rewritten test-clients test-compiled test-servers lowest newest wheels matrix lint types format bench bench-check compiled chaos model mutants docs release-check fresh clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

ALL := $(filter --all,$(ARGS))

demo: $(CLI) $(if $(ALL),$(ACTS)) ## run a flash sale without the gate, then with it; ARGS=--all also runs what is in examples/; REDIS_URL=redis://… takes your Redis
	@$(BIN)/fastdedup demo $${REDIS_URL:+--url "$$REDIS_URL"} $(filter-out --all,$(ARGS))
	@$(if $(ALL),RABBITMQ="$$(.ci/demo-rabbitmq.sh)"; export RABBITMQ; \
	  for each in sale payments sidecar messages; do echo; $(BIN)/python -m examples.$$each || exit 1; done)

demo-web: $(WEB) redis-server ## open the sale as a shop for your browser; ARGS='--port 8000 --workers 2'
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" $(BIN)/python -m examples.shop $(ARGS)

# The loop while you write: no program but redis-server is needed. tests/marks.py says which tests have a mark.
quick: lint types redis-server ## lint, type check, and the tests of units, model and contract on memory and one Redis
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" MODEL_DEPTH=quick $(BIN)/pytest -n $(WORKERS) --dist worksteal -q \
	  -m "not servers and not browser and not compiled and not slow" tests/unit tests/model tests/contract $(PYTEST_ARGS)

# The servers, the browser and the compiler come first: without them the tests cannot pass. They are got, and the package is
# compiled, while pip installs, which takes one core. pytest comes last: its last line is the verdict. worksteal keeps neighbours
# together, so each worker starts fewer of the servers that a file shares. With PYTEST_ARGS only some tests run, and
# no coverage is measured.
test: ## lint, type check and test, with at least 95 % branch coverage
	@.ci/announce.sh
	@$(MAKE) --no-print-directory --jobs 3 servers lint $(TESTED)/.stamp $(if $(PYTEST_ARGS),$(READ),rewritten)
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" CHROMIUM="$$(.ci/chromium.sh)" NGINX="$$(.ci/nginx.sh)" \
	  POSTGRESQL="$$(.ci/postgresql.sh)" MARIADB="$$(.ci/mariadb.sh)" RABBITMQ="$$(.ci/rabbitmq.sh)" VALKEY="$$(.ci/valkey.sh)" \
	  COMPILED_FOLDER=$(TESTED) \
	  $(BIN)/pytest -n $(WORKERS) --dist worksteal $(if $(PYTEST_ARGS),,--cov --cov-fail-under=95) $(PYTEST_ARGS)

# pytest rewrites the assertions of each file and keeps the result. Here that is done once, while pip installs; else each worker
# would do it for all files, which takes it 8 s.
rewritten: $(DEV)
	@$(BIN)/pytest --collect-only -qq --no-cov >/dev/null || true

# Go and Java are 200 MB to download, so `make test` runs the other three.
test-clients: $(DEV) redis-server ## test the clients in Node, Go, PHP, Ruby and Java of examples/clients; installs all five
	@.ci/languages.sh php ruby go java
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" CLIENT_LANGUAGES="node go php ruby java" \
	  $(BIN)/pytest tests/sidecar/test_languages.py $(PYTEST_ARGS)

test-compiled: $(DEV) redis-server compiler ## test the compiled package with more tests than make test does
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" COMPILED_TESTS=all $(BIN)/pytest tests/test_compiled.py $(PYTEST_ARGS)

# What depends on the server: its scripts, its Cluster, its Sentinel, its WAIT. Not TLS, which some builds do not have.
SERVER_TESTS = --ignore tests/contract/test_transports.py --ignore tests/regression/test_another_hosts_certificate.py \
	--ignore tests/regression/test_tls_contexts.py \
	tests/contract tests/model/test_closure.py tests/model/test_simulation_on_a_server.py \
	tests/outage/test_cluster.py tests/outage/test_sentinel.py tests/outage/test_replicas.py tests/outage/test_lost_replies.py \
	tests/regression

# Not Valkey 9 yet: a node of its Cluster that has forgotten the others knows them again within two seconds, so the test of a
# subscription at such a node fails there now and then. The rest passes on 9.1.2.
test-servers: $(DEV) compiler ## test on Redis 6.2, Redis 8.2 and Valkey 8 what depends on the server
	@for server in $$(PYTHON=$(BIN)/python .ci/other-servers.sh redis-6.2 redis-8.2 valkey-8); do \
	  "$$server" --version; \
	  PATH="$$(dirname "$$server"):$$PATH" $(BIN)/pytest -n $(WORKERS) -q $(SERVER_TESTS) $(PYTEST_ARGS) || exit 1; \
	done

# In an environment of its own. Old packages warn of what newer Pythons deprecate, so no such warning is an error here.
# A Cluster and Sentinel speak by the same redis-py, and take most of the time. PYTEST_ARGS names a selection.
LOWEST = build/lowest
LOWEST_TESTS = tests/unit tests/contract tests/sidecar tests/integrations tests/test_cli.py -k "not cluster and not sentinel"

lowest: $(LOWEST)/.stamp redis-server ## test with the lowest version of each package that pyproject.toml allows
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" CHROMIUM="$$(.ci/chromium.sh)" NGINX="$$(.ci/nginx.sh)" \
	  $(LOWEST)/venv/bin/python -m pytest -n $(WORKERS) -q -W default::DeprecationWarning -p no:cacheprovider \
	  $(LOWEST_TESTS) $(PYTEST_ARGS)

$(LOWEST)/.stamp: $(VENV) pyproject.toml .ci/lowest.py
	@echo "Installing the lowest versions into $(LOWEST)/venv ..."
	@mkdir -p $(LOWEST) && $(BIN)/python .ci/lowest.py >$(LOWEST)/constraints.txt
	@$(BIN)/python -m venv $(LOWEST)/venv
	@$(LOWEST)/venv/bin/python -m pip --disable-pip-version-check install --quiet -c $(LOWEST)/constraints.txt --editable '.[dev]'
	@touch $@

# Makes its environment anew each time, because what is newest changes. Also with what the lowest leave out: databases and brokers.
NEWEST = build/newest
NEWEST_TESTS = $(filter tests/%,$(LOWEST_TESTS)) tests/sql tests/messages -k "not cluster and not sentinel"

newest: $(VENV) servers ## test with the newest version of each package that pyproject.toml allows
	@echo "Installing the newest versions into $(NEWEST)/venv ..."
	@$(BIN)/python -m venv --clear $(NEWEST)/venv
	@$(NEWEST)/venv/bin/python -m pip --disable-pip-version-check install --quiet --upgrade --upgrade-strategy eager --editable '.[dev,examples]'
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" CHROMIUM="$$(.ci/chromium.sh)" NGINX="$$(.ci/nginx.sh)" \
	  POSTGRESQL="$$(.ci/postgresql.sh)" MARIADB="$$(.ci/mariadb.sh)" RABBITMQ="$$(.ci/rabbitmq.sh)" \
	  $(NEWEST)/venv/bin/python -m pytest -n $(WORKERS) -q -W default::DeprecationWarning -p no:cacheprovider \
	  $(NEWEST_TESTS) $(PYTEST_ARGS)

wheels: $(VENV) ## build compiled wheels for the Pythons 3.11 to 3.14 found here, and ask each one in a fresh environment
	@PYTHON=$(BIN)/python .ci/compiler.sh >/dev/null
	@.ci/wheels.sh $(PYTHONS)

# CELLS names some: CELLS='3.13:redis-8.2 3.12:valkey-8'. Each cell's line goes to build/matrix.md, for docs/versions.md.
matrix: $(DEV) redis-server compiler ## run the contract, outage and ledger tests on Redis 6.2 to 8.2 and Valkey 8, under Python 3.11 to 3.13
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" BIN=$(BIN) WORKERS=$(WORKERS) .ci/matrix.sh $(CELLS)

lint: $(DEV) ## ruff: rules and format; that fastdedup/sync/ repeats the asynchronous API; the picture of the house; and plain words in docstrings, texts and pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/write_sync.py --check
	@$(BIN)/python -m scripts.draw_house --check
	@$(BIN)/python scripts/check_english.py

types: $(DEV) ## mypy in strict mode
	@$(BIN)/mypy

format: $(DEV) ## let ruff fix and format the code, write what fastdedup/sync/ repeats, and draw the house
	@$(BIN)/python scripts/write_sync.py
	@$(BIN)/python -m scripts.draw_house
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Run no other program meanwhile, or the figures mean little. ARGS='--quick' is a short trial; see bench/README.md.
bench: $(BUILT)/.stamp redis-server ## measure fastdedup and its peers, in half an hour; writes bench/results
	@$(MEASURE) $(ARGS)

bench-check: $(BUILT)/.stamp redis-server ## measure, print each target with pass or short, fail if a target is short
	@$(MEASURE) check $(ARGS)

# PYTHONPATH puts the compiled package before the checkout's, which Python would otherwise import.
MEASURE = PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" POSTGRESQL="$$(.ci/postgresql.sh)" \
	  MARIADB="$$(.ci/mariadb.sh)" PYTHONSAFEPATH=1 PYTHONPATH="$(BUILT):$(CURDIR)" \
	  $(BIN)/python -m bench

compiled: $(BUILT)/.stamp ## compile the package into build/compiled, as FASTDEDUP_COMPILE=1 pip install does

# Without a C compiler the checkout is measured in pure Python, and the report says so.
$(BUILT)/.stamp: $(BENCH) scripts/hatch_build.py $(shell find fastdedup lua -name '*.py' -o -name '*.lua')
	@rm -rf $(BUILT) && mkdir -p $(BUILT)
	@if command -v "$${CC:-cc}" >/dev/null; then \
	  echo "Compiling fastdedup ..." && FASTDEDUP_COMPILE=1 $(PIP) --no-deps --target $(BUILT) .; \
	else echo "No C compiler: this measures pure Python. With one (Debian: gcc) it would measure the compiled package."; fi
	@touch $@

# The wheel of tests/test_compiled.py: not optimised, which takes a minute more.
$(TESTED)/.stamp: pyproject.toml scripts/hatch_build.py scripts/hatch_docstrings.py $(shell find fastdedup lua -name '*.py' -o -name '*.lua') | $(VENV) compiler
	@rm -rf $(TESTED) && mkdir -p $(TESTED)
	@FASTDEDUP_COMPILE=1 MYPYC_OPT_LEVEL=0 $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir $(TESTED) .
	@touch $@

# ARGS='-k transition' tries one scenario, half a minute for the shortest.
model: $(DEV) redis-server compiler ## simulate the gate over a network with two faults at a time, for hours
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" MODEL_DEPTH=nightly \
	  $(BIN)/pytest -n $(WORKERS) tests/model/test_simulation.py tests/model/test_simulation_on_a_server.py \
	  tests/model/test_simulation_on_a_cluster.py tests/model/test_simulation_with_sentinels.py $(ARGS)

# ARGS='12 undo' tries some: by their numbers in the table, or by words of what they break. See tests/mutants/.
mutants: $(DEV) redis-server ## put each fault of a table into copies of the code, one at a time, and see that the model finds them; half an hour
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" $(BIN)/python -m tests.mutants $(ARGS)

# Prints its seed first; ARGS='--seed N' repeats a run, ARGS=--quick takes a minute. See tests/chaos/README.md.
chaos: $(DEV) redis-server libfaketime ## break real servers under load for about 10 minutes, and check every answer
	@PATH="$$(dirname "$$(.ci/redis-server.sh)"):$$PATH" $(BIN)/python -m tests.chaos $(ARGS)

docs: $(DOCS) ## write the documentation to build/site; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "The documentation is in build/site: open build/site/index.html, or, to search in it: $(BIN)/python -m http.server -d build/site"

# FASTDEDUP_REPOSITORY=https://host/owner/name gives the README of the package its links; GitHub's runners need no such word.
release-check: $(RELEASE) ## build sdist and wheel into dist/, check both, their README and the age of the figures
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/python scripts/check_figures.py

# A developer's machine has what a fresh one lacks. An hour and more without TARGETS='bench docs', which names some.
fresh: ## run each target of this list in a clone and an environment of its own, measurements shortened
	@.ci/fresh.sh $(TARGETS)

clean: ## remove the virtual environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .coverage .coverage.* dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: servers redis-server libfaketime compiler
# One after the other: two apt-get would lock each other out.
servers: compiler
	@for program in redis-server valkey chromium nginx postgresql mariadb rabbitmq; do .ci/$$program.sh >/dev/null || exit 1; done
	@.ci/languages.sh php ruby

redis-server:
	@.ci/redis-server.sh >/dev/null

libfaketime:
	@.ci/libfaketime.sh >/dev/null

compiler: $(VENV)
	@PYTHON=$(BIN)/python .ci/compiler.sh >/dev/null

$(VENV):
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "fastdedup needs Python 3.11 or later; name one with: make PYTHON=python3.12 ...")'
	@echo "Setting up .venv ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) --upgrade pip || true # the one that a Python of 2023 brings takes half as long again
	@touch $@

$(CLI): $(VENV) pyproject.toml
	@echo "Installing fastdedup[cli] ..."
	@$(PIP) --editable '.[cli]'
	@touch $@

$(ACTS): $(VENV) pyproject.toml
	@echo "Installing fastdedup[sidecar,rabbitmq,aiosqlite,faststream] ..."
	@$(PIP) --editable '.[sidecar,rabbitmq,aiosqlite,faststream]'
	@touch $(CLI) $@

$(WEB): $(VENV) pyproject.toml
	@echo "Installing fastdedup[sidecar,web] ..."
	@$(PIP) --editable '.[sidecar,web]'
	@touch $@

$(DEV): $(VENV) pyproject.toml
	@echo "Installing fastdedup[dev,examples] ..."
	@$(PIP) --editable '.[dev,examples]'
	@touch $(CLI) $(ACTS) $(WEB) $@

# Python compiles the packages and the tests while the C compiler takes the other core: else each of pytest's workers would, at
# the same time. What fails here, pytest says in its own run.
$(READ): $(DEV)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true
	@touch $@

$(BENCH): $(VENV) pyproject.toml
	@echo "Installing fastdedup[bench] ..."
	@$(PIP) --editable '.[bench]'
	@touch $(WEB) $@

$(DOCS): $(VENV) pyproject.toml
	@echo "Installing fastdedup[docs] ..."
	@$(PIP) --editable '.[docs]'
	@touch $@

$(RELEASE): $(VENV) pyproject.toml
	@echo "Installing fastdedup[release] ..."
	@$(PIP) --editable '.[release]'
	@touch $@
