#!/usr/bin/env bash
# Prints the path of a C compiler that finds Python's headers, and installs what is missing: the tests compile the
# package, and a clock for redis-servers. PYTHON=python3.12 names the Python, CC=/path/to/cc the compiler.
# With ONLY_FIND=1 nothing is installed.
set -euo pipefail

python=${PYTHON:-python3}

say() { echo "compiler: $*" >&2; }

headers() { "$python" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

compiles() { echo "$1" | "${CC:-cc}" -I "$(headers)" -x c -fsyntax-only - 2>/dev/null; }

fits() { compiles '#include <Python.h>'; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Headers of the C library come with libc6-dev. Debian has Python's for its own Pythons only.
install_compiler() {
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
    say "installing it with apt-get"
    local packages=(gcc libc6-dev)
    [ -f "$(headers)/Python.h" ] || packages+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
  else
    return 1
  fi
}

if [ -n "${ONLY_FIND:-}" ]; then
  fits
  exit
fi
if ! fits && [ -z "${CC:-}" ]; then
  install_compiler >&2 || say "it could not be installed from here"
  hash -r
fi
if fits; then
  command -v "${CC:-cc}"
  exit
fi
if compiles '#include <stdio.h>'; then
  say "${CC:-cc} runs, but $(headers)/Python.h is not there: install the headers of $("$python" -V), for example:"
  say "  apt-get install python3-dev | dnf install python3-devel | apk add python3-dev"
else
  say "install a C compiler, so that cc is on the PATH, or name it with CC=, for example:"
  say "  apt-get install gcc libc6-dev | dnf install gcc | apk add gcc musl-dev | xcode-select --install"
fi
exit 1
