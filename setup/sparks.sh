#!/usr/bin/env bash
# Makes an environment for each version of PySpark named, or for all that Tidelake is tried with. Prints the
# folder of the environments, which tests/spark/versions looks into: $TIDELAKE_SPARKS, or the user's cache.
# In each are that PySpark and Tidelake's other requirements as .venv has them. What is there already is kept,
# so this returns at once the next time. What cannot be installed is said, and its tests are skipped: this
# script never fails.
set -uo pipefail
cd "$(dirname "$0")/.."

# 4.3 is the version of requirements.lock, and in .venv.
declare -A newest=([3.5]=3.5.9 [4.0]=4.0.5 [4.1]=4.1.4 [4.2]=4.2.1)

python="${PYTHON:-.venv/bin/python}"
home="${TIDELAKE_SPARKS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tidelake/sparks}"
limit_s=600
log="$home/install.log"

say() { printf '%s\n' "$*" >&2; }
quietly() { timeout "$limit_s" "$@" >>"$log" 2>&1; }

# Makes an environment $1 with PySpark $2.
install() {
  local new="$1.new"
  rm -rf "$new"
  quietly "$python" -m venv "$new" || return 1
  # PySpark is published as source only, and its older versions are built with an older tool.
  quietly "$new/bin/python" -m pip install --disable-pip-version-check "setuptools<81" wheel || return 1
  quietly "$new/bin/python" -m pip install --disable-pip-version-check --no-build-isolation "pyspark==$2" || return 1
  # It is moved only when it is complete; nothing in it but pip's own scripts knows where it is.
  mv "$new" "$1"
}

packages_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# A file of paths adds the packages of .venv to the environment $1. It is written each time: the checkout that
# made the environment may be gone, or have other requirements.
add_requirements() {
  local packages
  packages="$(packages_of "$1/bin/python")" && packages_of "$python" >"$packages/tidelake-requirements.pth"
}

mkdir -p "$home" || exit 0
for version in "${@:-3.5 4.0 4.1 4.2}"; do
  for one in $version; do
    place="$home/$one-${newest[$one]:-none}"
    if [ -z "${newest[$one]:-}" ]; then
      say "setup: no PySpark $one is known here: there are ${!newest[*]}"
    elif ! [ -d "$place" ]; then
      say "setup: installing PySpark ${newest[$one]} beside the one of .venv (a download of about 400 MB)"
      install "$place" "${newest[$one]}" || say "setup: PySpark ${newest[$one]} cannot be installed, its tests are skipped: see $log"
    fi
    if [ -d "$place" ]; then
      add_requirements "$place"
    fi
  done
done
printf '%s\n' "$home"
