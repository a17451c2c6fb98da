#!/usr/bin/env bash
# Makes .venv with the packages of requirements.lock and Tidelake itself, editable.
# The stamp says for which place, lock and settings that was done; while it holds, this returns at
# once and needs no network. An interrupted run leaves the word "unfinished" there and starts afresh.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/setup-stamp
wanted="$(pwd -P; cksum requirements.lock pyproject.toml setup/venv.sh)"
stamped="$(cat "$stamp" 2>/dev/null || true)"
if [ "$stamped" = "$wanted" ] && [ -x .venv/bin/python ]; then
  exit 0
fi

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }

version_fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }
makes_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Prints the Python to use: the one in $PYTHON, else the first that fits, preferring one that can make
# virtual environments.
find_python() {
  local name second=""
  if [ -n "${PYTHON:-}" ]; then
    printf '%s\n' "$PYTHON"
    version_fits "$PYTHON"
    return
  fi
  for name in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if version_fits "$name"; then
      if makes_venvs "$name"; then
        printf '%s\n' "$name"
        return
      fi
      second="${second:-$name}"
    fi
  done
  printf '%s\n' "$second"
  [ -n "$second" ]
}

# Debian keeps ensurepip in a package of its own.
add_venv_module() {
  local package
  package="$("$1" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')"
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    say "setup: installing $package"
    if apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2 && makes_venvs "$1"; then
      return
    fi
  fi
  die "$1 cannot make virtual environments: install $package (Debian, Ubuntu) or a complete Python, 3.11 to 3.14"
}

make_venv() {
  local python
  python="$(find_python)" || die "no Python from 3.11 to 3.14 found${PYTHON:+ at PYTHON=$PYTHON}: install one, or name it with PYTHON=/path/to/python3"
  makes_venvs "$python" || add_venv_module "$python"
  say "setup: making .venv with $("$python" --version)"
  "$python" -m venv --clear .venv
}

# A .venv that works is kept, unless it was left half done or has been moved here from another path.
case "$stamped" in
  "" | "$(pwd -P)"$'\n'*) .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv ;;
  *) make_venv ;;
esac
echo unfinished >"$stamp"

pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input)
if [ ! -t 2 ]; then
  pip+=(--quiet)
fi
say "setup: installing the packages of requirements.lock (1.6 GB on disk; PySpark alone is a download of 450 MB)"
# PySpark comes as source only: its build tool is installed first, so that nothing unlocked takes part.
build_tool="$(mktemp)"
trap 'rm -f "$build_tool"' EXIT
awk '/^[^ ]/ { wanted = /^setuptools==/ } wanted' requirements.lock >"$build_tool"
"${pip[@]}" install --require-hashes -r "$build_tool" >&2
"${pip[@]}" install --require-hashes --no-build-isolation --use-pep517 -r requirements.lock >&2
"${pip[@]}" install --no-deps --no-build-isolation --editable . >&2

printf '%s\n' "$wanted" >"$stamp"
