# Everything runs from .venv, which setup/venv.sh makes from requirements.lock; setup/java.sh finds Java
# for Spark. ARGS is passed on: make test ARGS="-k frontier".
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-cdc test check fix full bench bench-peers bench-peers-spark bench-spark bench-stores bench-views soak sim docs docs-site lock clean venv

ARGS ?=
RUN := .venv/bin/python -m
WITH_JAVA := JAVA_HOME="$$(setup/java.sh)" && export JAVA_HOME &&
SPARK_CLASSES := SPARK_SUBMIT_OPTS="$$(setup/spark_classes.sh)" && export SPARK_SUBMIT_OPTS &&
# Tests flush thousands of files, which takes minutes on a slow disk: they are in memory if 8 GiB are free there.
IN_MEMORY := $(shell df -m /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 >= 8192 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')
PYTEST := $(WITH_JAVA) $(IN_MEMORY) $(RUN) pytest
# Each worker that gets tests of Spark starts a session of its own.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

help:   ## this list
	@sed -n 's/^\([a-z-]*\): *[a-z]* *## /\1	/p' Makefile | expand -t 14

demo: venv   ## show what Tidelake does, in a few minutes
	@$(WITH_JAVA) $(RUN) demo $(ARGS)

demo-cdc: venv   ## follow a PostgreSQL through Debezium, Kafka and Spark, each of which is killed amid it
	@setup/servers.sh postgresql kafka spark-kafka debezium >/dev/null
	@$(WITH_JAVA) PYTHONPATH=.:tests:tests/spark $(RUN) tests.cdc $(ARGS)

test: venv   ## the fast tests
	@$(PYTEST) $(PARALLEL) $(ARGS)

check: venv   ## lint, format, types and layers
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@.venv/bin/lint-imports --no-logo

fix: venv   ## fix what lint and format can fix
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

full: venv   ## the slow tests that CI runs after the fast ones
	@setup/servers.sh >/dev/null
	@setup/sparks.sh 3.5 4.1 >/dev/null
	@setup/peers.sh deltalake duckdb ducklake tpc spark-delta spark-iceberg
	@$(SPARK_CLASSES) $(PYTEST) $(PARALLEL) -m "(full or grows) and not soak" --hypothesis-profile full $(ARGS)

bench: venv   ## the measurements of docs/benchmarks.md
	@$(WITH_JAVA) $(RUN) bench $(ARGS)

bench-peers: venv   ## beside other tables and engines, each in an environment of its own: make bench-peers ARGS="--rows 100000"
	@setup/peers.sh
	@$(RUN) bench.peers $(ARGS)

bench-peers-spark: venv   ## the same on Spark, beside Delta Lake and Iceberg: make bench-peers-spark ARGS="--rows 100000"
	@setup/sparks.sh 4.1 >/dev/null
	@setup/peers.sh spark-delta spark-iceberg
	@$(WITH_JAVA) $(RUN) bench.peers.spark $(ARGS)

bench-spark: venv   ## the measurements with Spark: make bench-spark SCALE=0.1 for a tenth of the rows
	@$(WITH_JAVA) $(RUN) bench --only spark --only spark_first --only spark_writes --only spark_ingest --only spark_tables --only spark_history --only spark_views --scale $(or $(SCALE),1) $(ARGS)

bench-stores: venv   ## a lake in an object store against the store itself: make bench-stores ROWS=100000
	@setup/servers.sh >/dev/null
	@$(RUN) bench.stores $(or $(ROWS),1000000)

bench-views: venv   ## refreshes of views beside DuckDB's recompute: make bench-views ROWS=10000000
	@$(RUN) bench.views $(or $(ROWS),1000000)

soak: venv   ## the tests that run for hours, with fresh random choices
	@setup/servers.sh >/dev/null
	@setup/sparks.sh >/dev/null
	@setup/peers.sh tpc spark-delta spark-iceberg
	@$(SPARK_CLASSES) $(PYTEST) $(PARALLEL) -m "soak or grows" --hypothesis-profile soak --timeout 0 $(ARGS)

sim: venv   ## simulate clients and faults: make sim SEED=7 STEPS=2000 SEEDS=1000
	@$(RUN) simulation --seed $(or $(SEED),0) --steps $(or $(STEPS),2000) --seeds $(or $(SEEDS),1)

docs: venv   ## run the examples of README.md and docs/, check their links
	@$(PYTEST) $(PARALLEL) tests/test_docs.py $(ARGS)

docs-site:   ## build the documentation site in build/site/html; its tools have an environment of their own
	@$(or $(PYTHON),python3) setup/site/build.py

LOCKED := pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
lock: venv   ## write requirements.lock from pyproject.toml, and the lock of the site; ARGS=--upgrade takes newer versions
	@$(RUN) pip install --quiet --disable-pip-version-check uv
	@$(RUN) uv $(LOCKED) --extra spark --extra pipelines --extra cloud --extra postgres --extra sql --extra polars --extra metrics --extra otel --extra web --extra plot --extra delta --extra iceberg --extra avro --extra protobuf --group dev --group bench \
	  --output-file requirements.lock $(ARGS) pyproject.toml >/dev/null
	@$(RUN) uv $(LOCKED) --output-file setup/site/requirements.txt $(ARGS) setup/site/requirements.in >/dev/null

clean:   ## remove .venv and everything else that was made here
	@rm -rf .venv build dist demo-lake bench-out spark-warehouse .pytest_cache .mypy_cache .ruff_cache \
	  .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@setup/venv.sh
