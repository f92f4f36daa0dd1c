#!/usr/bin/env bash
# Prints the path of an nginx with auth_request, which the tests of the gate start, and gets one where none is found.
# Debian's is only unpacked, into build/nginx: installing it would start a web server on this machine.
# NGINX=/path/to/nginx names one explicitly.
# With ONLY_FIND=1 none is got.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "nginx: $*" >&2; }

# Its version goes to standard error.
fits() { "$1" -V 2>&1 | grep -q http_auth_request_module; }

candidates() {
  type -ap nginx || true
  for path in /usr/sbin/nginx /usr/local/sbin/nginx /opt/homebrew/bin/nginx "$PWD/build/nginx/usr/sbin/nginx"; do
    [ ! -x "$path" ] || echo "$path"
  done
}

find_nginx() {
  while read -r candidate; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate does not run, or has no auth_request"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

get_nginx() {
  if command -v apt-get >/dev/null; then
    say "unpacking Debian's into build/nginx"
    .ci/unpack.sh build/nginx nginx
  elif command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet nginx
  else
    return 1
  fi
}

if [ -n "${NGINX:-}" ]; then
  fits "$NGINX" || { say "NGINX=$NGINX does not run, or has no auth_request"; exit 1; }
  echo "$NGINX"
  exit
fi

find_nginx && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
get_nginx >&2 || say "it could not be had from here"
hash -r
find_nginx && exit
say "install nginx, so that it is on the PATH, or name it with NGINX=, for example:"
say "  apt-get install nginx | dnf install nginx | apk add nginx | brew install nginx"
exit 1
