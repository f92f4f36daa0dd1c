#!/usr/bin/env bash
# Installs the tools of the languages named in its arguments (php, ruby, go, java), where they are missing: the tests of
# examples/clients run a client in each. Node is not among them: the dev extra brings it.
# With ONLY_FIND=1 nothing is installed.
set -euo pipefail

say() { echo "languages: $*" >&2; }

has() {
  case $1 in
  php) php -r 'exit(extension_loaded("curl") ? 0 : 1);' >/dev/null 2>&1 ;;
  ruby) ruby -rjson -rsocket -e '' 2>/dev/null ;;
  go) go version >/dev/null 2>&1 ;;
  java) javac -version >/dev/null 2>&1 && java -version >/dev/null 2>&1 ;;
  *) say "there is no client in $1" && exit 1 ;;
  esac
}

debian() {
  case $1 in
  php) echo php-cli php-curl ;;
  ruby) echo ruby ;;
  go) echo golang-go ;;
  java) echo default-jdk-headless ;;
  esac
}

brew_name() { if [ "$1" = java ]; then echo openjdk; else echo "$1"; fi; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_all() {
  local packages=()
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
    for language in "$@"; do read -ra each <<<"$(debian "$language")" && packages+=("${each[@]}"); done
    say "installing ${packages[*]} with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
  elif command -v brew >/dev/null; then
    for language in "$@"; do packages+=("$(brew_name "$language")"); done
    say "installing ${packages[*]} with brew"
    brew install --quiet "${packages[@]}"
  else
    return 1
  fi
}

missing=()
for language in "$@"; do has "$language" || missing+=("$language"); done
[ ${#missing[@]} -gt 0 ] || exit 0
[ -z "${ONLY_FIND:-}" ] || exit 1
install_all "${missing[@]}" >&2 || say "they could not be installed from here"
hash -r
for language in "${missing[@]}"; do
  has "$language" || { say "install $language (PHP with its curl extension), so that it is on the PATH"; exit 1; }
done
