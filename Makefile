# Everything a contributor needs; `make` alone lists the targets.
# Works on a bare Debian 12 that has Python 3.11 and make.

PYTHON ?= python3
BIN := .venv/bin

# The environment is made anew when the project's metadata, the checkout's place or the interpreter changes. It begins
# with what serving needs; the development tools are added to that where a target needs them.
KEY := $(shell { cat pyproject.toml; pwd; $(PYTHON) --version; } | sha256sum | cut -c 1-16)
SERVES := .venv/serves-$(KEY)
INSTALLED := .venv/installed-$(KEY)
INSTALL := $(BIN)/python scripts/install-packages
# What is imported is compiled once for the hundreds of programs that tests start: importing openreward takes 12 s without.
unexport PYTHONDONTWRITEBYTECODE

# Sandboxes, and what families of terminal tasks are about.
PROGRAMS := bubblewrap uidmap git sqlite3
PROGRAMS_OF_LONG_TESTS := chromium podman runc containernetworking-plugins iptables debootstrap haproxy nginx postgresql \
	prometheus strace

.DEFAULT_GOAL := help
.PHONY: help venv lint docs types format test tests-sandboxes tests-terminal tests-others apptainer test-all \
	long-environments long-others serve bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Make .venv with the package (editable) and the tools of the `dev` extra

$(SERVES):
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || scripts/debian-packages python3-venv
	$(PYTHON) -m venv --clear .venv
	$(INSTALL) --editable '.[openreward]'
	@touch $@

$(INSTALLED): $(SERVES)
	$(INSTALL) --editable '.[dev]'
	@touch $@

lint: venv ## Check style, formatting, prose, timings in tests, rooms, imports, descriptors, and the table of mutants
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/check-house
	$(BIN)/python scripts/check-prose
	$(BIN)/python scripts/check-timings
	$(BIN)/python scripts/mutants --check

docs: venv ## Build the documentation's site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

types: venv ## Check types (pyright, strict)
	$(BIN)/pyright

format: venv ## Repair style and formatting in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: venv ## Lint, build the documentation, check types and run every test but the long ones
	@scripts/debian-packages $(PROGRAMS) || echo "Going on without: the tests that need them are skipped."
	@mkdir -p build && : >$(NOT_RUN)
	@# Beside each other: the checks keep one processor busy for minutes, and tests wait for half of theirs.
	$(MAKE) --no-print-directory --keep-going --jobs=4 --output-sync=target lint $(TESTS) docs types; $(SHOW_NOT_RUN)

# The processes that run the tests; each takes about as long as the others. The last has what the others have not.
TESTS := tests-sandboxes tests-terminal tests-others
SANDBOXES := $(addprefix tests/,benchmarks cli containers server/rollouts)
TERMINAL := $(addprefix tests/,environments server/protocol server/sandbox_service)

# Each process adds what it left out, and why (tests/conftest.py); shown at the end, whatever the tests' status.
export NOT_RUN := build/not-run
SHOW_NOT_RUN := status=$$?; echo; echo "Not run, of all processes:"; cat $(NOT_RUN); exit $$status

tests-sandboxes: venv
	$(BIN)/pytest $(SANDBOXES)

tests-terminal: venv
	$(BIN)/pytest $(TERMINAL)

tests-others: venv
	$(BIN)/pytest $(addprefix --ignore=,$(SANDBOXES) $(TERMINAL))

apptainer: ## Install Apptainer for the tests that run it, where that can be done
	-scripts/install-apptainer

test-all: apptainer test ## Also build and run the container images and train with TRL
	-scripts/debian-packages $(PROGRAMS_OF_LONG_TESTS)
	-$(INSTALL) --editable '.[dev,ray]'
	@# Beside each other too: an hour each, so what they print is mixed.
	$(MAKE) --no-print-directory --keep-going --jobs=2 long-environments long-others; $(SHOW_NOT_RUN)

LONG_ENVIRONMENTS := tests/environments tests/server

long-environments: venv
	$(BIN)/pytest -m long $(LONG_ENVIRONMENTS)

long-others: venv
	$(BIN)/pytest -m long $(addprefix --ignore=,$(LONG_ENVIRONMENTS))

serve: $(SERVES) ## Serve the bundled environments on http://127.0.0.1:8080
	@scripts/debian-packages $(PROGRAMS) || echo "Going on without: what needs them is not served."
	$(BIN)/ors-server serve echo terminal

bench: venv ## The short forms of all benchmarks, with one summary page in build/bench
	$(BIN)/python -m ors_benchmarks.summary build/bench

clean: ## Remove what the other targets made
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
