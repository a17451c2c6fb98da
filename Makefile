# Everything runs from .venv, which setup/venv.sh makes from requirements.lock; setup/java.sh finds Java
# for Spark. ARGS is handed on: make test ARGS="-k frontier".
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test check fix full bench bench-spark soak sim docs lock clean venv

ARGS ?=
RUN := .venv/bin/python -m
WITH_JAVA := JAVA_HOME="$$(setup/java.sh)" && export JAVA_HOME &&
PYTEST := $(WITH_JAVA) $(RUN) pytest
# Each worker that gets tests of Spark starts a session of its own.
PARALLEL := --numprocesses auto --maxprocesses 4

help:   ## this list
	@sed -n 's/^\([a-z-]*\): *[a-z]* *## /\1	/p' Makefile | expand -t 14

demo: venv   ## show what Tidelake does, in a few minutes
	@$(WITH_JAVA) .venv/bin/tidelake demo $(ARGS)

test: venv   ## the fast tests
	@$(PYTEST) $(PARALLEL) $(ARGS)

check: venv   ## lint, format, types and layers
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@.venv/bin/lint-imports --no-logo

fix: venv   ## mend what lint and format can mend
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

full: venv   ## the slow tests that CI runs after the fast ones
	@$(PYTEST) $(PARALLEL) -m full $(ARGS)

bench: venv   ## the measurements of docs/benchmarks.md
	@$(WITH_JAVA) $(RUN) bench $(ARGS)

bench-spark: venv   ## the measurements with Spark: make bench-spark SCALE=0.1 for a tenth of the rows
	@$(WITH_JAVA) $(RUN) bench --only spark --only spark_writes --scale $(or $(SCALE),1) $(ARGS)

soak: venv   ## the tests that run for hours, with fresh random choices
	@$(PYTEST) $(PARALLEL) -m soak --hypothesis-profile explore --timeout 0 $(ARGS)

sim: venv   ## simulate clients and faults: make sim SEED=7 STEPS=2000 SEEDS=1000
	@$(RUN) tidelake.testing.simulation --seed $(or $(SEED),0) --steps $(or $(STEPS),2000) --seeds $(or $(SEEDS),1)

docs: venv   ## run the examples of README.md and docs/, check their links
	@$(PYTEST) $(PARALLEL) tests/test_docs.py $(ARGS)

lock: venv   ## write requirements.lock anew from pyproject.toml; ARGS=--upgrade takes newer versions
	@$(RUN) pip install --quiet --disable-pip-version-check uv
	@$(RUN) uv pip compile --quiet --universal --python-version 3.11 --extra spark --extra pipelines --group dev --group bench \
	  --generate-hashes --no-header --no-annotate --output-file requirements.lock $(ARGS) pyproject.toml >/dev/null

clean:   ## remove .venv and everything else that was made here
	@rm -rf .venv build dist demo-lake bench-out spark-warehouse .pytest_cache .mypy_cache .ruff_cache \
	  .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@setup/venv.sh
