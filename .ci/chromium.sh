#!/usr/bin/env bash
# Prints the path of a Chromium or Chrome for the browser tests, and installs one where none is found.
# CHROMIUM=/path/to/chromium names one explicitly.
# With ONLY_FIND=1 none is got.
set -euo pipefail

say() { echo "chromium: $*" >&2; }

runs() { "$1" --version >/dev/null 2>&1; }

candidates() {
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    type -ap "$name" || true
  done
  # where macOS keeps applications
  for folder in /Applications "$HOME/Applications"; do
    echo "$folder/Chromium.app/Contents/MacOS/Chromium"
    echo "$folder/Google Chrome.app/Contents/MacOS/Google Chrome"
  done
}

find_browser() {
  while read -r candidate; do
    [ -x "$candidate" ] || continue
    if runs "$candidate"; then
      echo "$candidate"
      return
    fi
    say "$candidate does not run"
  done < <(candidates | awk '!seen[$0]++')
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_browser() {
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
    say "installing it with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
  elif command -v brew >/dev/null; then
    say "installing it with brew"
    brew install --quiet --cask chromium
  else
    return 1
  fi
}

if [ -n "${CHROMIUM:-}" ]; then
  runs "$CHROMIUM" || { say "CHROMIUM=$CHROMIUM does not run"; exit 1; }
  echo "$CHROMIUM"
  exit
fi

find_browser && exit
[ -z "${ONLY_FIND:-}" ] || exit 1
install_browser >&2 || say "it could not be installed from here"
hash -r
find_browser && exit
say "install Chromium or Chrome, so that it is on the PATH, or name it with CHROMIUM=, for example:"
say "  apt-get install chromium | dnf install chromium | apk add chromium | brew install --cask chromium"
exit 1
