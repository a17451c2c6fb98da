#!/usr/bin/env bash
# Prints the home of a Java that runs Spark: 17 or newer, with the module jdk.incubator.vector.
# Looks at JAVA_HOME, the PATH and the usual places; on Debian or Ubuntu, root installs one.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# Prints the home of the command $1 if Spark can use it.
home_of() {
  "$1" --add-modules jdk.incubator.vector -XshowSettings:properties -version 2>&1 | awk -F ' = ' '
    / java\.home = / { home = $2 }
    / java\.specification\.version = / { version = $2 }
    END { if (home == "" || version + 0 < 17) exit 1; print home }'
}

usual_places() {
  local home
  if [ -x /usr/libexec/java_home ] && home="$(/usr/libexec/java_home -v 17+ 2>/dev/null)"; then
    printf '%s\n' "$home/bin/java"
  fi
  printf '%s\n' /usr/lib/jvm/*/bin/java /usr/java/*/bin/java /opt/java/*/bin/java /opt/jdk*/bin/java \
    /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
    /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java \
    "${HOME:-}"/.sdkman/candidates/java/*/bin/java "${HOME:-}"/.jdks/*/bin/java
}

find_java() {
  local java
  java="$(command -v java || true)"
  if [ -n "$java" ] && home_of "$java"; then
    return
  fi
  while IFS= read -r java; do
    if [ -x "$java" ] && home_of "$java"; then
      return
    fi
  done < <(usual_places)
  return 1
}

install_java() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  local package
  say "setup: no Java 17 or newer found, installing one"
  apt-get update -qq >&2 || return 1
  for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
    if apt-cache show "$package" >/dev/null 2>&1 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2 &&
      find_java; then
      return
    fi
  done
  return 1
}

if [ -n "${JAVA_HOME:-}" ]; then
  if home_of "$JAVA_HOME/bin/java"; then
    exit
  fi
  say "setup: JAVA_HOME=$JAVA_HOME does not run Spark, looking for another"
fi

# What was found is kept in .venv: starting a Java takes a moment.
known=.venv/java-home
if home="$(cat "$known" 2>/dev/null)" && [ -x "$home/bin/java" ]; then
  printf '%s\n' "$home"
  exit
fi
if ! home="$(find_java || install_java)"; then
  say "setup: Spark needs Java 17 or newer with the module jdk.incubator.vector: install one (Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
  exit 1
fi
if [ -d .venv ]; then
  printf '%s\n' "$home" >"$known"
fi
printf '%s\n' "$home"
