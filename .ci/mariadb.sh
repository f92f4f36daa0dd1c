#!/usr/bin/env bash
# Prints the path of mariadbd, MariaDB's server, which the tests start, and gets it where none is found.
# Debian's is only unpacked, into build/mariadb: installing it would start a server on this machine.
# MARIADB=/path/to/mariadbd names one explicitly; mariadb-install-db must stand in the bin folder beside it.
# With ONLY_FIND=1 none is got.
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=10.6

say() { echo "mariadb: $*" >&2; }

# "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for ..." -> 10.11.19; nothing for MySQL, whose server has the same options
version_of() { "$1" --version 2>/dev/null | sed -n 's/.* Ver \([0-9.]*\)-MariaDB.*/\1/p'; }

fits() {
  [ -x "$(dirname "$1")/../bin/mariadb-install-db" ] || return 1
  version_of "$1" | awk -F. -v minimum="$minimum" '
    { split(minimum, need, "."); good = $1 > need[1] || ($1 == need[1] && $2 >= need[2]) }
    END { exit !good }'
}

candidates() {
  type -ap mariadbd || true
  for folder in /usr/sbin /usr/bin /usr/libexec /usr/local/sbin /opt/homebrew/opt/mariadb*/bin /usr/local/opt/mariadb*/bin \
    "$PWD/build/mariadb/usr/sbin"; do
    [ ! -x "$folder/mariadbd" ] || echo "$folder/mariadbd"
  done
}

find_server() {
  while read -r candidate; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate has no mariadb-install-db, is older than $minimum, or does not run"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

# The client's package has my_print_defaults, which mariadb-install-db calls.
get_server() {
  if command -v apt-get >/dev/null; then
    say "unpacking Debian's into build/mariadb"
    .ci/unpack.sh build/mariadb 'mariadb-server-core(-[0-9.]+)?' 'mariadb-client-core(-[0-9.]+)?'
  elif command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet mariadb
  else
    return 1
  fi
}

if [ -n "${MARIADB:-}" ]; then
  fits "$MARIADB" || { say "MARIADB=$MARIADB is not MariaDB's server of version $minimum or later with mariadb-install-db"; exit 1; }
  echo "$MARIADB"
  exit
fi

find_server && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
get_server >&2 || say "it could not be had from here"
hash -r
find_server && exit
say "install MariaDB's server, $minimum or later, so that mariadbd is on the PATH, or name it with MARIADB=, for example:"
say "  apt-get install mariadb-server | dnf install mariadb-server | apk add mariadb | brew install mariadb"
exit 1
