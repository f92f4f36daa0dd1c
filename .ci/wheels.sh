#!/usr/bin/env bash
# Builds a compiled wheel into dist/ for each Python 3.11 to 3.14 that is found on the PATH or with pyenv, and asks each
# wheel in a fresh environment: is it compiled, is a claim answered, do the contract's tests of the store in memory pass.
# Names of Pythons as arguments build for these alone: .ci/wheels.sh python3.12
set -euo pipefail
cd "$(dirname "$0")/.."
project=$PWD

say() { echo "wheels: $*" >&2; }

found() {
  local version python
  for version in 3.11 3.12 3.13 3.14; do
    for python in "$(type -P "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
      # pyenv puts a name on the PATH for each version, and some of these names do not run
      if [ -x "$python" ] && "$python" -c "import venv, sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
        echo "$python"
        break
      fi
    done
  done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pythons=("$@")
[ $# -gt 0 ] || while read -r each; do pythons+=("$each"); done < <(found)
[ ${#pythons[@]} -gt 0 ] || { say "no Python 3.11 to 3.14 is on the PATH or with pyenv"; exit 1; }

for python in "${pythons[@]}"; do
  say "building with $("$python" --version) ..."
  rm -rf "${scratch:?}"/*
  "$python" -m venv "$scratch/venv"
  pip() { "$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
  FASTDEDUP_COMPILE=1 pip wheel --no-deps --wheel-dir "$scratch/wheel" .
  wheel=$(echo "$scratch"/wheel/fastdedup-*.whl)
  pip install "$wheel"
  (cd "$scratch" && venv/bin/python -W error "$project/.ci/ask_wheel.py" compiled)
  # The tests are copied: from the checkout Python would import the checkout's package.
  pip install "$wheel[sidecar]" pytest pytest-cov pytest-timeout 'fakeredis[lua]' psutil
  mkdir "$scratch/checkout" && cp -r tests pyproject.toml "$scratch/checkout"
  (cd "$scratch/checkout" && ../venv/bin/python -m pytest -q -p no:cacheprovider tests/contract/test_claims.py -k memory)
  mkdir -p dist && cp "$wheel" dist/
done
ls -l dist/*.whl
