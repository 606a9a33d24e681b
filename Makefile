# Every target brings its own environment into .venv first; a second call finds it ready.
#
#   make demo [SECONDS=30]      the whole system with simulated aircraft
#   make test [ARGS="-k java"]  every static check and every test
#   make quick                  the tests that start neither Spark nor a server
#   make check                  the static checks alone
#   make plants [PLANT=name]    put each known mistake back, show which test finds it
#   make sim [SEEDS=100]        the whole cluster on virtual time while everything goes wrong
#   make soak [ROUNDS=20]       repartition under load, with somebody killed or frozen each time;
#                               the wheel by itself; pages left open for an hour (PART=… is one)
#   make minutes                what the suite's minutes go to, into CONTRIBUTING.md
#   make bench                  the quick benchmarks
#   make screenshots            the pictures of the dashboard in docs/screenshots
#   make proto                  compile the messages of the gRPC transport
#   make lock                   resolve the dependencies again
#   make clean                  remove everything that make made
#
# PYTHON=python3.13 chooses the interpreter of a new environment.

BIN := .venv/bin
# Four runs of tests side by side, also where there are two cores: most of their time they wait for other processes.
WORKERS := 4

# What one process of a run has compiled, the others load.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test linted-tests tests quick minutes check lint types plants sim soak bench screenshots format proto lock clean setup

help:
	@sed -n 's/^#   //p' Makefile

demo: setup
	@$(BIN)/headgate demo $(if $(SECONDS),--seconds $(SECONDS))

# Types are checked beside the rest: on two cores neither waits for the other.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 types linted-tests

linted-tests: lint
	@$(MAKE) --no-print-directory tests

tests: setup
	@$(BIN)/pytest --numprocesses $(WORKERS) $(ARGS)

quick: setup
	@$(BIN)/pytest --numprocesses $(WORKERS) --quick $(ARGS)

# From the last runs of the tests, whichever those were.
minutes: setup
	@$(BIN)/python -m tests.minutes

check: lint types

types: setup
	@$(BIN)/mypy

lint: setup
	@$(BIN)/ruff format --check --quiet --output-format concise . || { echo "Run 'make format'." >&2; exit 1; }
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/python scripts/check_tasks.py src
	@contracts=$$($(BIN)/lint-imports --no-logo) || { echo "$$contracts"; exit 1; }

plants: setup
	@$(BIN)/python -m tests.plants $(PLANT)

# SEEDS=N [BASE=b] or MINUTES=M runs many, SEED=x [TRACE=1] one, SHRINK=x makes a failing one smaller,
# PLANTS="name …" counts the seeds until each of these mistakes is found.
sim: setup
	@$(BIN)/python -m tests.sim $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(BASE),--base $(BASE)) $(if $(SEED),--seed $(SEED)) $(if $(TRACE),--trace) \
	  $(if $(SHRINK),--shrink $(SHRINK)) $(if $(PLANTS),--plants $(PLANTS))

# SEED=x repeats counts, faults and moments; SPARK=1 adds a streaming query to those who read.
# PART=rounds, transaction, wheel or pages is one of the four; ROWS=n sizes the transaction, and
# MINUTES=60 is how long the pages are left open.
PART := rounds transaction wheel pages
soak: setup
ifneq ($(filter rounds,$(PART)),)
	@$(BIN)/python -m tests.system.soak $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SPARK),--spark)
endif
ifneq ($(filter transaction,$(PART)),)
	@$(BIN)/python -m tests.system.soaking.large_transaction $(ROWS)
endif
ifneq ($(filter wheel,$(PART)),)
	@$(BIN)/python -m tests.system.soaking.wheel
endif
ifneq ($(filter pages,$(PART)),)
	@$(BIN)/python -m tests.browser.left_open $(if $(MINUTES),--minutes $(MINUTES))
endif

bench: setup
	@$(BIN)/headgate bench --quick

# URL=… takes them of a system that runs already; ALL=folder puts every page there, in every look.
screenshots: setup
	@$(BIN)/python -m tests.browser.screenshots $(URL) $(if $(ALL),--all $(ALL))

format: setup
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

proto: setup
	@sh scripts/proto.sh

lock: setup
	@sh scripts/lock.sh

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@PYTHON="$(PYTHON)" sh scripts/setup.sh
