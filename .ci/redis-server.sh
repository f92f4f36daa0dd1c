#!/usr/bin/env bash
# Prints the path of a redis-server that is recent enough for the tests, and installs one where none is found.
# The tests start servers of their own from it; a service that is already running is left alone.
# REDIS_SERVER=/path/to/redis-server names one explicitly.
# With ONLY_FIND=1 none is got.
set -euo pipefail

minimum=6.2

say() { echo "redis-server: $*" >&2; }

# "Redis server v=7.0.15 sha=..." -> 7.0.15
version_of() { "$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9][0-9.]*\).*/\1/p'; }

recent_enough() {
  version_of "$1" | awk -F. -v minimum="$minimum" '
    { split(minimum, need, "."); good = $1 > need[1] || ($1 == need[1] && $2 >= need[2]) }
    END { exit !good }'
}

# A server that a Python package put into a virtual environment comes and goes with that environment.
in_virtual_env() { [ -e "$(dirname "$1")/../pyvenv.cfg" ]; }

candidates() {
  type -ap redis-server || true
  # where packages put it, outside some users' PATH
  for folder in /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /opt/homebrew/bin; do
    [ ! -x "$folder/redis-server" ] || echo "$folder/redis-server"
  done
}

find_server() {
  while read -r candidate; do
    if in_virtual_env "$candidate"; then continue; fi
    if recent_enough "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate is older than $minimum, or does not run"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_server() {
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
    say "installing it with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server
  elif command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet redis
  else
    return 1
  fi
}

if [ -n "${REDIS_SERVER:-}" ]; then
  recent_enough "$REDIS_SERVER" || { say "REDIS_SERVER=$REDIS_SERVER is not a server of version $minimum or later"; exit 1; }
  echo "$REDIS_SERVER"
  exit
fi

find_server && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
install_server >&2 || say "it could not be installed from here"
hash -r
find_server && exit
say "install Redis or Valkey, $minimum or later, so that redis-server is on the PATH, for example:"
say "  apt-get install redis-server | dnf install redis | apk add redis | brew install redis"
exit 1
