# Each of `make demo` and `make test` works as the first command on a machine with Python 3.11+ and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTOS := $(wildcard protos/turnkeeper/v1/*.proto)
# Bytecode is kept, whatever the caller prefers: every command of ours is a process of its own.
unexport PYTHONDONTWRITEBYTECODE
PACKAGES := turnkeeper task_runner agent_runtime
# The page's server and others give way to the daemons. Under workers of normal priority they would get next to no time.
TESTS := nice -n 19 $(BIN)/python -m

.PHONY: demo demo-cluster test test-clients test-postgres test-langgraph-suite check docs reference pictures bench bench-base bench-check protos protos-check test-services wheel lock simulate schedules fit test-fit test-fit-short format clean

demo: $(READY)  ## The whole product in a minute, in a throwaway home.
	@$(BIN)/python -m examples.demo

demo-cluster: $(READY)  ## The same on several machines: processes that share a throwaway PostgreSQL, and are killed.
	@$(BIN)/python -m examples.demo --cluster

test: $(READY)  ## Every test but those of test-clients and test-postgres; what needs an absent server skips with a reason.
	@$(TESTS) pytest -n 6 --no-loadscope-reorder $(PYTEST_ARGS)

test-clients: $(READY)  ## The page in Chromium, and LangGraph's JavaScript SDKs in Node: make test-services installs both.
	@$(TESTS) pytest -n 2 --clients tests/acceptance $(PYTEST_ARGS)

test-postgres: $(READY)  ## The tests of the stores, on a PostgreSQL server that they start.
	@$(TESTS) pytest -n 3 --database postgres $(PYTEST_ARGS)

test-langgraph-suite: $(READY)  ## The suites of LangGraph's SDK and of aegra, unmodified, against /lg: make test-services downloads them.
	@$(TESTS) tests.langgraph_suite $(PYTEST_ARGS)

check: $(READY) protos-check docs  ## Format, lint, import contracts, types, generated code, the site.
	@$(BIN)/ruff format --check --quiet . || (echo "run: make format" && false)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/mypy $(addprefix -p ,$(PACKAGES)) -p examples.demo
	@$(BIN)/python -m pytest -q tests/test_tidy.py

docs: $(READY)  ## The site of the documents, in build/site; fails on a link or an anchor that leads nowhere.
	@said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) || (echo "$$said" && false)  # with --quiet it counts no warnings

pictures: $(READY)  ## Make the README's pictures from a real run; needs Chromium (make test-services).
	@$(BIN)/python -m examples.pictures

reference: $(READY)  ## Write docs/reference from the program and from tests/requirements.toml.
	@$(BIN)/python -m tests.reference

bench: $(READY)  ## Ours beside peers in one run, on an idle machine; writes benchmarks/RESULTS.md.
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: $(READY)  ## The CPU of a fire and of a turn beside what the last make bench recorded; names what slipped.
	@$(BIN)/python -m benchmarks --check

REV ?=
bench-base:  ## Check REV out beside this build, in .base, with an environment of its own: make bench compares with it.
	@test -n "$(REV)" || (echo "say which build: make bench-base REV=v0.1.0" && false)
	@test -d .base || git clone --quiet --shared . .base
	@git -C .base fetch --quiet origin && git -C .base checkout --quiet --detach "$(REV)"
	@$(MAKE) --no-print-directory -C .base .venv/.ready

MINUTES ?= 5
RUNS ?= 60
chaos: $(READY)  ## Faults of the machine under load on a small disk, then the checker; needs root or unshare, and strace.
	@$(BIN)/python -m tests.integration.lifecycle.chaos --minutes $(MINUTES) $(CHAOS_ARGS)
	@$(BIN)/python -m tests.integration.lifecycle.intermittent --runs $(RUNS)

SEEDS ?= 0:20
simulate: $(READY)  ## Both daemons in virtual time under faults, by seeds; prints the smallest script of a seed that fails.
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(SIMULATE_ARGS)

schedules: $(READY)  ## Units of several sessions of PostgreSQL, in the orders of statements that seeds draw.
	@SEEDS=$(SEEDS) $(TESTS) pytest --database postgres --timeout 3600 tests/integration/cluster/test_schedules.py

chaos-cluster: $(READY)  ## Kills, stops, cuts and restarts of a cluster under load for MINUTES, then the checker.
	@$(BIN)/python -m tests.integration.cluster.chaos --minutes $(MINUTES) $(CHAOS_ARGS)

protos: $(READY)  ## Generate the stubs of the contract into turnkeeper/v1.
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTOS)

protos-check: protos  ## The committed stubs are what the contract generates.
	@git diff --exit-code --stat -- turnkeeper/v1 || (echo "the stubs differ from the contract: commit what make protos wrote" && false)

test-services: $(READY)  ## Install the optional real servers that some tests use (Debian), and download the suites of LangGraph's SDK and aegra.
	@tests/install_services.sh
	@tests/langgraph_suite/download.sh

wheel: $(READY)
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

EXTRAS := dev openai anthropic notify calendars web-fetch postgres parquet otel web mcp
RESOLVE = $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header
RESOLVE_ALL = $(RESOLVE) $(addprefix --extra ,$(EXTRAS))
LOWEST = --no-config --resolution lowest-direct --only-binary :all:
lock: $(BIN)/uv  ## Resolve the newest versions that go together, the lowest ones with all extras and with few, and the newest beside langgraph dev.
	@$(RESOLVE_ALL) --extra bench --extra stubs --extra docs pyproject.toml -o requirements.lock
	@$(RESOLVE_ALL) $(LOWEST) pyproject.toml -o tests/fit/lowest.lock
	@$(RESOLVE) $(LOWEST) --extra postgres --extra web pyproject.toml tests/fit/short.in -o tests/fit/bare.lock
	@echo "langgraph-cli[inmem]>=0.4" | $(RESOLVE_ALL) --no-config pyproject.toml - -o tests/fit/beside.lock

test-fit: $(BIN)/uv  ## The suite's core on the lowest versions, beside langgraph dev, and on Python 3.12 and 3.13 where they are installed.
	@nice -n 19 tests/fit/legs.sh $(LEGS)

test-fit-short: $(BIN)/uv  ## A fire, an approval and kill -9 on each of them, in two minutes.
	@nice -n 19 tests/fit/legs.sh --short $(LEGS)

fit: $(BIN)/uv  ## Resolve us beside packages and projects that agents use; asks the package index.
	@$(BIN)/python -m tests.fit

format: $(READY)
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

clean:
	@rm -rf $(VENV) .venv-* dist build .mypy_cache .ruff_cache .pytest_cache

$(BIN)/uv: | $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(READY): requirements.lock pyproject.toml
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
