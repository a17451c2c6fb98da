#!/usr/bin/env bash
# Installs what the slow tests run: versitygw (S3), azurite (Azure), PostgreSQL, MariaDB and Kafka, with the jars
# by which Spark reads Kafka and S3, and Debezium's connectors with the Kafka Connect that runs them; and Chromium
# with its driver. With arguments, only those of them:
#   versitygw azurite postgresql wal2json mariadb kafka spark-kafka spark-s3a debezium debezium-mysql chromium
# Prints the folder of their programs, which tests/store/servers.py looks into: $TIDELAKE_SERVERS, or the
# user's cache. What is there already is kept, so this returns at once the next time. What cannot be
# installed is said, and its tests are skipped: this script never fails.
set -uo pipefail
cd "$(dirname "$0")/.."

VERSITYGW=v1.8.0
AZURITE=3.35.0 # 3.36 and newer need Node 22
KAFKA=3.9.0
SPARK_KAFKA=4.2.0 # for Spark 4.3 as well: there is no 4.3.0 of it
HADOOP_AWS=3.5.0 # the version of Hadoop in PySpark 4.3
DEBEZIUM=3.6.1.Final # made with Kafka 4.3.0, whose Connect its pom names

home="${TIDELAKE_SERVERS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tidelake/servers}"
limit_s=900
log="$home/install.log"

say() { printf '%s\n' "$*" >&2; }
# Runs a command with its output in the log, and a limit in seconds.
quietly() { timeout "$limit_s" "$@" >>"$log" 2>&1; }
is_root() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }

# Installs Debian packages; the lists of packages are fetched once.
updated=
apt_install() {
  is_root || return 1
  if [ -z "$updated" ]; then
    quietly apt-get update -qq || return 1
    updated=yes
  fi
  DEBIAN_FRONTEND=noninteractive quietly apt-get install -y -qq --no-install-recommends "$@"
}

install_versitygw() {
  command -v go >/dev/null || apt_install golang-go || return 1
  # An older Go fetches the one that the module asks for as a module.
  mkdir -p "$home/versitygw-$VERSITYGW.new" &&
    GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false GOBIN="$home/versitygw-$VERSITYGW.new" \
      quietly go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW" &&
    mv "$home/versitygw-$VERSITYGW.new" "$home/versitygw-$VERSITYGW"
}

install_azurite() {
  command -v node >/dev/null && command -v npm >/dev/null || apt_install nodejs npm || return 1
  mkdir -p "$home/azurite-$AZURITE.new" &&
    quietly npm install --prefix "$home/azurite-$AZURITE.new" --no-audit --no-fund --omit=optional "azurite@$AZURITE" &&
    mv "$home/azurite-$AZURITE.new" "$home/azurite-$AZURITE"
}

# Debian makes and starts a cluster with the package, which nobody here needs.
install_postgresql() {
  apt_install postgresql-common || return 1
  sed -i 's/^#*create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf 2>>"$log"
  apt_install postgresql
}

# Copies the jars of setup/maven/$1.xml, in version $2, into the folder $3.
copy_jars() {
  command -v mvn >/dev/null || apt_install maven || return 1
  rm -rf "$3.new" &&
    quietly mvn --batch-mode --file "setup/maven/$1.xml" "-Dwanted=$2" "-DoutputDirectory=$3.new" \
      -DincludeScope=runtime org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies &&
    mv "$3.new" "$3"
}

install_kafka() { copy_jars kafka "$KAFKA" "$home/kafka-$KAFKA"; }
install_debezium_mysql() { copy_jars debezium-mysql "$DEBEZIUM" "$home/debezium-mysql-$DEBEZIUM"; }
install_wal2json() { apt_install "postgresql-$version-wal2json"; }
install_mariadb() { apt_install mariadb-server; }
install_debezium() { copy_jars debezium "$DEBEZIUM" "$home/debezium-$DEBEZIUM"; }
install_spark_kafka() { copy_jars spark-kafka "$SPARK_KAFKA" "$home/spark-kafka-$SPARK_KAFKA"; }
install_spark_s3a() { copy_jars spark-s3a "$HADOOP_AWS" "$home/spark-s3a-$HADOOP_AWS"; }

# The folder of initdb and postgres, which Debian keeps out of the PATH.
postgres_programs() {
  local folder
  folder="$(dirname "$(readlink -f "$(command -v postgres || true)")")"
  for folder in "$folder" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV); do
    if [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ]; then
      printf '%s\n' "$folder"
      return
    fi
  done
  return 1
}

# Whether $1 is to be installed.
asked=" $* "
wanted() { [ "$asked" = "  " ] || [[ "$asked" == *" $1 "* ]]; }

# Installs the server $1, called $2, with the command $3 if $4 does not exist, and says how it went.
ensure() {
  wanted "$1" || return
  shift
  local name="$1" began="$SECONDS"
  [ -e "$3" ] && return
  say "setup: installing $name"
  if "$2"; then
    say "setup: installed $name in $((SECONDS - began)) s"
  else
    say "setup: could not install $name, so its tests are skipped; see $log"
  fi
}

if ! mkdir -p "$home/bin" 2>/dev/null; then
  say "setup: no servers: $home cannot be made"
  exit 0
fi
exec 9>"$home/lock"
flock 9 2>/dev/null
ensure versitygw versitygw install_versitygw "$home/versitygw-$VERSITYGW/versitygw"
ensure azurite azurite install_azurite "$home/azurite-$AZURITE/node_modules/.bin/azurite-blob"
ensure kafka Kafka install_kafka "$home/kafka-$KAFKA"
ensure spark-kafka "Kafka for Spark" install_spark_kafka "$home/spark-kafka-$SPARK_KAFKA"
ensure spark-s3a "S3 for Spark" install_spark_s3a "$home/spark-s3a-$HADOOP_AWS"
ensure debezium "Kafka Connect and Debezium" install_debezium "$home/debezium-$DEBEZIUM"
ensure debezium-mysql "Debezium for MySQL" install_debezium_mysql "$home/debezium-mysql-$DEBEZIUM"
if ! postgres="$(postgres_programs)"; then
  ensure postgresql PostgreSQL install_postgresql "$home/bin/postgres"
  postgres="$(postgres_programs)"
fi

# A plug-in of PostgreSQL that tells its changes as well: a witness.
version="$(basename "$(dirname "${postgres:-/x/x}")")"
ensure wal2json wal2json install_wal2json "$(dirname "${postgres:-/x/x}")/lib/wal2json.so"

# Debian keeps these in the PATH.
install_chromium() { apt_install chromium chromium-driver; }
command -v chromedriver >/dev/null || ensure chromium Chromium install_chromium "$home/bin/chromedriver"
command -v mariadbd >/dev/null || ensure mariadb MariaDB install_mariadb "$home/bin/mariadbd"

link() { [ -x "$1" ] && ln -sfn "$1" "$home/bin/$(basename "$1")"; }
link "$home/versitygw-$VERSITYGW/versitygw"
link "$home/azurite-$AZURITE/node_modules/.bin/azurite-blob"
if [ -n "$postgres" ]; then
  link "$postgres/postgres"
  link "$postgres/initdb"
fi
printf '%s\n' "$home/bin"
