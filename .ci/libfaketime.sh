#!/usr/bin/env bash
# Prints the path of libfaketime, and installs it where it is not found: the chaos harness sets a server's clock back
# with it. Where it cannot be installed, this says so, prints nothing and succeeds: that one fault is then left out.
# LIBFAKETIME=/path/to/libfaketime.so.1 names one explicitly.
set -euo pipefail

say() { echo "libfaketime: $*" >&2; }

find_library() {
  for path in "${LIBFAKETIME:-}" /usr/lib/*/faketime/libfaketime.so.1 /usr/lib/faketime/libfaketime.so.1 \
    /usr/lib64/faketime/libfaketime.so.1 /usr/local/lib/faketime/libfaketime.so.1; do
    if [ -f "$path" ]; then
      echo "$path"
      return
    fi
  done
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_library() {
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
    say "installing it with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libfaketime
  else
    return 1
  fi
}

find_library && exit
install_library >&2 || say "it could not be installed from here"
find_library && exit
say "install it, so that a server's clock can be set back, for example: apt-get install libfaketime"
