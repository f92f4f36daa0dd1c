#!/usr/bin/env bash
# Prints the path of RabbitMQ's script rabbitmq-server, which the tests start, and gets it where none is found.
# Debian's is only unpacked, with Erlang, into build/rabbitmq: installing it would start a broker on this machine.
# RABBITMQ=/path/to/rabbitmq-server names one explicitly; erl and epmd must stand beside it, or be on the PATH.
# With ONLY_FIND=1 none is got.
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=3.8

say() { echo "rabbitmq: $*" >&2; }

# The version stands in the name of a folder: to ask the program would take a second.
version_of() { ls "$(dirname "$1")/../plugins" 2>/dev/null | sed -n 's/^rabbit-\([0-9.]*\).*/\1/p'; }

has_erlang() { PATH="$(dirname "$1"):$PATH" command -v erl >/dev/null && PATH="$(dirname "$1"):$PATH" command -v epmd >/dev/null; }

fits() {
  has_erlang "$1" || return 1
  version_of "$1" | awk -F. -v minimum="$minimum" '
    { split(minimum, need, "."); good = $1 > need[1] || ($1 == need[1] && $2 >= need[2]) }
    END { exit !good }'
}

# Debian puts a wrapper on the PATH that runs RabbitMQ as another user, and as a service.
behind_wrapper() { while read -r program; do readlink -f "$(dirname "$(readlink -f "$program")")/rabbitmq-server"; done; }

candidates() {
  {
    type -ap rabbitmq-server || true
    for path in /usr/lib/rabbitmq/bin /opt/homebrew/opt/rabbitmq/sbin /usr/local/opt/rabbitmq/sbin \
      "$PWD"/build/rabbitmq/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin; do
      [ ! -x "$path/rabbitmq-server" ] || echo "$path/rabbitmq-server"
    done
  } | behind_wrapper
}

find_server() {
  while read -r candidate; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate has no erl, or is older than $minimum"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

# Those of Erlang that RabbitMQ's own package depends on, and asn1, which public-key needs.
erlang=(base asn1 crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools xmerl)

# Debian's erl looks for Erlang in /usr/lib: this one looks where it stands, and stands beside rabbitmq-server too.
unpack_server() {
  .ci/unpack.sh build/rabbitmq rabbitmq-server "${erlang[@]/#/erlang-}" || return 1
  local root=build/rabbitmq/usr/lib sbin
  sed -i 's|ROOTDIR=/usr/lib/erlang$|ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")|' "$root/erlang/bin/erl"
  for sbin in "$root"/rabbitmq/lib/rabbitmq_server-*/sbin; do
    ln -sf ../../../../erlang/bin/erl ../../../../erlang/bin/epmd "$sbin"
  done
}

get_server() {
  if command -v apt-get >/dev/null; then
    say "unpacking Debian's into build/rabbitmq"
    unpack_server
  elif command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet rabbitmq
  else
    return 1
  fi
}

if [ -n "${RABBITMQ:-}" ]; then
  fits "$RABBITMQ" || { say "RABBITMQ=$RABBITMQ is not RabbitMQ's script of version $minimum or later, or there is no erl"; exit 1; }
  echo "$RABBITMQ"
  exit
fi

find_server && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
get_server >&2 || say "it could not be had from here"
hash -r
find_server && exit
say "install RabbitMQ, $minimum or later, so that rabbitmq-server is on the PATH, or name it with RABBITMQ=, for example:"
say "  apt-get install rabbitmq-server | dnf install rabbitmq-server | apk add rabbitmq-server | brew install rabbitmq"
exit 1
