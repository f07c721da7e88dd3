# Two commands do everything on a fresh machine: make run, make test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WORKERS ?= 2
# more than there are cores: half of what the longer tests do is waiting for processes to start
WAITERS ?= 4
# tests start hundreds of Python processes; each would compile all it imports again
unexport PYTHONDONTWRITEBYTECODE
# in the order of tests/conftest.py, so that the last files are short ones and no core is idle at the end; a test that
# waits for ever ends its worker (pyproject.toml), and a run that lost a worker ends too, instead of trying that test again
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 20

WEBCLIENTS := tests/webclients/node_modules/.installed
ARCHIVE    := $(VENV)/spark.jsa

.PHONY: run simulate mutants channel test check coverage bench fmt install web services java clean

run: java               ## orders on their way to a table while a peer and the shop are killed; ARGS="--keep"
	@$(BIN)/avow demo $(ARGS)

simulate: install       ## simulate clusters with queues of both strategies and say whether the promises held
	@$(BIN)/avow simulate --seeds 600 $(ARGS)
	@$(BIN)/avow simulate --strategy two-phase --seeds 300 $(ARGS)
	@$(BIN)/avow simulate --strategy pub-sub --seeds 300 $(ARGS)

mutants: install        ## break every rule on purpose, one at a time, and see it noticed; then some in real processes
	@$(BIN)/avow simulate --mutations $(ARGS)
	@$(BIN)/python -m avow_lab.campaigns.peers.mutants

channel: install        ## the channel's state machine at full length: 3,000 runs of 80 steps
	@AVOW_CHANNEL_EXAMPLES=3000 $(BIN)/pytest -q tests/simulation/test_channel_machine.py

# Blocks of a page configure frameworks that can be configured once in a process (Django), as other tests do
PAGES := tests/docs/test_pages.py

test: check web services $(ARCHIVE) ## everything: static checks, then every test, longest files first; no file is split
	@$(BIN)/mypy tests
	@$(BIN)/pytest -n $(WAITERS) $(BY_FILE) tests/integration tests/spark tests/docs tests/e2e tests/contract tests/simulation \
	  tests/dashboard tests/packaging --ignore $(PAGES)
	@$(BIN)/pytest -n $(WORKERS) --max-worker-restart 0 $(PAGES)

# Unit tests in three processes of about the same length: each imports only its own part of them. A new folder belongs to
# the last.
UNIT   := $(BIN)/pytest -q -p no:xdist -p no:schemathesis
UNIT_A := $(wildcard $(addprefix tests/unit/,queue/ pledge/ client/ channel/))
UNIT_B := $(wildcard $(addprefix tests/unit/,wire/ server/ replication/))
UNIT_C := $(filter-out $(UNIT_A) $(UNIT_B),$(wildcard tests/unit/*/)) tests/scenarios/

check: install          ## the fast loop: format, lint, layers, types, unit tests, transcripts
	@$(BIN)/python -m tools.parallel $(WORKERS) "$(BIN)/mypy" "$(UNIT) $(UNIT_A)" "$(UNIT) $(UNIT_B)" "$(UNIT) $(UNIT_C)" \
	  "$(BIN)/lint-imports" "$(BIN)/ruff check src tests benchmarks examples tools" \
	  "$(BIN)/ruff format --check src tests benchmarks examples tools"

# coverage counts only what runs inside of pytest: of tests that start peers it would see the client alone
COVERED ?= tests/unit tests/scenarios
coverage: install       ## which lines the in-process tests run; a report, it never fails because of a percentage
	@$(BIN)/pytest -q -n $(WORKERS) --cov --cov-report=term:skip-covered $(COVERED)

bench: install          ## measured figures, as ratios within one run where a disk is involved
	@$(BIN)/python -m benchmarks

fmt: install
	@$(BIN)/ruff format src tests benchmarks examples tools
	@$(BIN)/ruff check --fix src tests benchmarks examples tools

web: $(WEBCLIENTS)       ## what tests in a browser need: Chromium, and published WebChannel clients
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing Debian's chromium ..." && { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; }; }; } \
	  || { echo "make: tests in a browser need Chromium; install it (apt-get install chromium) and call make again"; exit 1; }

services:               ## databases that tests start for themselves: PostgreSQL, MariaDB, Redis
	@{ { ls /usr/lib/postgresql/*/bin/postgres || command -v postgres; } && { command -v mariadbd || ls /usr/sbin/mariadbd; } && command -v redis-server; } >/dev/null 2>&1 \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing Debian's postgresql, mariadb-server and redis-server ..." && { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql mariadb-server redis-server >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql mariadb-server redis-server >/dev/null; }; }; } \
	  || { echo "make: tests need PostgreSQL, MariaDB and Redis; install them (apt-get install postgresql mariadb-server redis-server) and call make again"; exit 1; }

java: install           ## what Spark runs on: Java 17 or newer
	@$(BIN)/python -c 'from avow.spark.java import find_java; find_java()' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing Debian's Java ..." && { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null; }; }; } \
	  || { echo "make: Spark needs Java 17 or newer; install it (apt-get install default-jre-headless) and call make again"; exit 1; }

$(ARCHIVE): tests/spark/class_archive.py $(STAMP) | java
	@echo "making an archive of Spark's classes: its tests start in half the time ..."
	@$(BIN)/python tests/spark/class_archive.py $(ARCHIVE) >/dev/null 2>&1 || echo "make: it could not be made; the tests only take longer"

$(WEBCLIENTS): tests/webclients/package.json tests/webclients/package-lock.json
	@command -v npm >/dev/null || { echo "make: no npm found; the tests of browser clients need Node 20 or newer"; exit 1; }
	@echo "installing pinned WebChannel clients ..."
	@cd tests/webclients && npm ci --silent
	@touch $(WEBCLIENTS)

install: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) found; install Python 3.11 or newer, or call make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Avow needs Python 3.11 or newer; $(PYTHON) is older. Call make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage build dist
