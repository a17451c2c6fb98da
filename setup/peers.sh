#!/usr/bin/env bash
# Makes an environment for each peer that `make bench-peers` compares Tidelake with, under build/peers. Nothing of
# them gets into .venv. `spark-delta` and `spark-iceberg`, which `make bench-peers-spark` asks for, are folders
# of jars instead, which Maven fetches. What is there already is kept. What cannot be installed is said, and left
# out: this script never fails.
set -uo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
  [deltalake]="deltalake==1.6.6"
  [pyiceberg]="pyiceberg[sql-sqlite,pyarrow]==0.12.0"
  [duckdb]="duckdb==2.0.1"
  [lance]="pylance==14.0.2"
  [pypaimon]="pypaimon==2.1.0"
  [slatedb]="slatedb==0.17.0"
  # Of the newest version that has these extensions as packages.
  [ducklake]="duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 duckdb-extension-delta==1.5.5 duckdb-extension-iceberg==1.5.5
    duckdb-extension-avro==1.5.5 duckdb-extension-httpfs==1.5.5 duckdb-extension-parquet==1.5.5"
  # No peer: the texts of benchmarks.
  [tpc]="duckdb==1.5.5 duckdb-extension-tpch==1.5.5 duckdb-extension-tpcds==1.5.5"
)
declare -A jars=(
  [spark-delta]=4.4.0
  [spark-iceberg]=1.12.0
)
python="${PYTHON:-.venv/bin/python}"
limit_s=300
mkdir -p build/peers

# Makes an environment $1 with the packages $2.
install() {
  local wanted
  read -rd '' -a wanted <<<"$2"
  "$python" -m venv "$1" &&
    timeout "$limit_s" "$1/bin/python" -m pip install --disable-pip-version-check pyarrow "${wanted[@]}"
}

# Copies the jars of setup/maven/$2.xml, in version $3, into the folder $1.
copy_jars() {
  timeout "$limit_s" mvn --batch-mode --file "setup/maven/$2.xml" "-Dwanted=$3" "-DoutputDirectory=$PWD/$1" \
    -DincludeScope=runtime org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies
}

# Makes the folder $1 by the command that follows, whole or not at all.
make_place() {
  local place="$1"
  shift
  [ -d "$place" ] && return
  echo "setup: installing $place, $*" >&2
  rm -rf "$place.new"
  if "$1" "$place.new" "${@:2}" >"$place.log" 2>&1; then
    mv "$place.new" "$place"
  else
    echo "setup: $place cannot be installed and is left out: see $place.log" >&2
  fi
}

for peer in "${@:-${!packages[@]}}"; do
  for one in $peer; do
    if [ -n "${jars[$one]:-}" ]; then
      make_place "build/peers/$one" copy_jars "$one" "${jars[$one]}"
    else
      make_place "build/peers/$one" install "${packages[$one]}"
    fi
  done
done
