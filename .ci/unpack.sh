#!/usr/bin/env bash
# Unpacks Debian packages into a folder, the newest one that fits each pattern, and installs only the libraries that
# they need: `.ci/unpack.sh build/postgresql 'postgresql-[0-9]+'`.
# With NO_PASSWORD=1 it fails where sudo would ask for one.
# To install the packages would start servers on this machine, and could remove others: MariaDB's removes MySQL's.
set -euo pipefail
folder=$1
shift

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo ${NO_PASSWORD:+-n} "$@"; fi
}

# One search for all: each takes a second.
newest() {
  local names
  names=$(apt-cache search --names-only "^($(IFS='|' && echo "$*"))\$" | cut -d ' ' -f 1)
  for pattern in "$@"; do { grep -xE "$pattern" <<<"$names" || true; } | sort -V | tail -n 1; done
}

download() {
  mapfile -t packages < <(newest "$@")
  [ "${#packages[@]}" = "$#" ] || return 1
  (cd "$scratch" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}")
}

# LLVM is left out: it is large, and only PostgreSQL's JIT needs it.
missing_libraries() {
  apt-cache depends "$@" | sed -n 's/^ *Depends: \(lib[^ ]*\|tzdata\)$/\1/p' | sort -u | while read -r library; do
    case "$library" in libllvm*) continue ;; esac
    dpkg-query -W -f '${Status}' "$library" 2>/dev/null | grep -q ' installed$' || echo "$library"
  done
}

for program in apt-get dpkg-deb; do
  command -v "$program" >/dev/null || { echo "unpack: $program is not on the PATH" >&2; exit 1; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
download "$@" || { as_root apt-get update -qq && download "$@"; } || exit 1

mapfile -t libraries < <(missing_libraries "${packages[@]}")
if [ "${#libraries[@]}" -gt 0 ]; then
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends --no-remove "${libraries[@]}"
fi

mkdir -p "$folder"
for package in "$scratch"/*.deb; do dpkg-deb -x "$package" "$folder"; done
