#!/usr/bin/env bash
# Prints the path of a valkey-server, which the model compares with redis-server, and gets one if none is found.
# It is only unpacked, into build/servers: installing it would start a server on this machine.
# VALKEY=/path/to/valkey-server names one explicitly.
# With ONLY_FIND=1 none is got.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "valkey: $*" >&2; }

# "Valkey server v=8.0.1 sha=..." -> 8. On other processors than x86, Valkey 9 asks the processor for the time, which no
# test can set.
fits() {
  local major
  major=$("$1" --version 2>/dev/null | sed -n 's/^Valkey server v=\([0-9]*\).*/\1/p')
  [ -n "$major" ] && { [ "$major" -lt 9 ] || [ "$(uname -m)" = x86_64 ]; }
}

candidates() {
  type -ap valkey-server || true
  for path in {/usr,/usr/local,/opt/homebrew}/bin/valkey-server "$PWD"/build/servers/valkey-*/redis-server; do
    [ ! -x "$path" ] || echo "$path"
  done
}

find_valkey() {
  while read -r candidate; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate does not run, or is no Valkey whose clock the tests can set"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

# Valkey 8 needs Debian's packages; Valkey 9 needs only pip.
get_valkey() {
  for name in valkey-8 valkey-9; do
    say "unpacking $name into build/servers"
    [ -z "$(.ci/other-servers.sh "$name")" ] || return 0
  done
  if command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet valkey
  else
    return 1
  fi
}

if [ -n "${VALKEY:-}" ]; then
  fits "$VALKEY" || { say "VALKEY=$VALKEY does not run, or is no Valkey whose clock the tests can set"; exit 1; }
  echo "$VALKEY"
  exit
fi

find_valkey && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
get_valkey >&2 || say "it could not be had from here"
hash -r
find_valkey && exit
say "install Valkey, so that valkey-server is on the PATH, or name it with VALKEY=, for example:"
say "  apt-get install valkey-server | dnf install valkey | apk add valkey | brew install valkey"
exit 1
