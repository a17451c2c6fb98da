#!/usr/bin/env bash
# Makes an environment for each peer that `make bench-peers` compares Tidelake with, under build/peers. Nothing of
# them gets into .venv. What is there already is kept. What cannot be installed is said, and left out: this
# script never fails.
set -uo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
  [deltalake]="deltalake==1.6.6"
  [pyiceberg]="pyiceberg[sql-sqlite,pyarrow]==0.12.0"
  [duckdb]="duckdb==2.0.1"
  [lance]="pylance==14.0.2"
  [pypaimon]="pypaimon==2.1.0"
  [slatedb]="slatedb==0.17.0"
)
python="${PYTHON:-.venv/bin/python}"
limit_s=300
mkdir -p build/peers

for peer in "${@:-${!packages[@]}}"; do
  for one in $peer; do
    place="build/peers/$one"
    [ -d "$place" ] && continue
    echo "setup: installing ${packages[$one]} in an environment of its own" >&2
    new="$place.new"
    rm -rf "$new"
    if "$python" -m venv "$new" >"$place.log" 2>&1 &&
      timeout "$limit_s" "$new/bin/python" -m pip install --disable-pip-version-check pyarrow "${packages[$one]}" >>"$place.log" 2>&1; then
      mv "$new" "$place"
    else
      echo "setup: ${packages[$one]} cannot be installed and is left out: see $place.log" >&2
    fi
  done
done
