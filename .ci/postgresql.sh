#!/usr/bin/env bash
# Prints the folder of PostgreSQL's server programs, which the tests start, and gets them where none are found.
# Debian's are only unpacked, into build/postgresql: installing them would start a server on this machine.
# POSTGRESQL=/path/to/folder names one explicitly.
# With ONLY_FIND=1 none is got.
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=13

say() { echo "postgresql: $*" >&2; }

# "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)" -> 15
version_of() { "$1/postgres" --version 2>/dev/null | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p'; }

fits() {
  local version
  version=$(version_of "$1")
  [ -x "$1/initdb" ] && [ "${version:-0}" -ge "$minimum" ]
}

candidates() {
  type -ap postgres | while read -r program; do dirname "$program"; done || true
  # where packages put them, outside the PATH; the newest version first
  for folder in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin \
    /usr/local/opt/postgresql*/bin "$PWD"/build/postgresql/usr/lib/postgresql/*/bin; do
    [ ! -x "$folder/postgres" ] || echo "$folder"
  done | sort -rV
}

find_folder() {
  while read -r candidate; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate has no initdb, is older than version $minimum, or does not run"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

get_programs() {
  if command -v apt-get >/dev/null; then
    say "unpacking Debian's into build/postgresql"
    .ci/unpack.sh build/postgresql 'postgresql-[0-9]+'
  elif command -v brew >/dev/null; then
    say "installing them with brew"
    brew install --quiet postgresql@17
  else
    return 1
  fi
}

if [ -n "${POSTGRESQL:-}" ]; then
  fits "$POSTGRESQL" || { say "POSTGRESQL=$POSTGRESQL is not a folder with initdb and postgres of version $minimum or later"; exit 1; }
  echo "$POSTGRESQL"
  exit
fi

find_folder && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
get_programs >&2 || say "they could not be had from here"
hash -r
find_folder && exit
say "install PostgreSQL's server, $minimum or later, or name the folder of its programs with POSTGRESQL=, for example:"
say "  apt-get install postgresql | dnf install postgresql-server | apk add postgresql | brew install postgresql@17"
exit 1
