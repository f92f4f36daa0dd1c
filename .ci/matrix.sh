#!/usr/bin/env bash
# Runs the tests of the contract, of outages and of ledgers on each server under each Python: the cells of the matrix.
# Cells as arguments, such as 3.13:redis-8.2, run alone. A line for each cell goes to build/matrix.md; a failed cell is
# in it as well, and the script then ends with 1. MATRIX_ARGS passes options to pytest, such as -x.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}

say() { echo "matrix: $*" >&2; }

# Without the tests that want TLS, which some builds of servers do not have.
tests=(--ignore tests/contract/test_transports.py -k "not certificate" tests/contract tests/outage)

python_of() {
  local python
  for python in "$(type -P "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if [ -x "$python" ] && "$python" -c "import venv, sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  return 1
}

# The folder with the server of a name: redis-7.0 is the one on the PATH, the others are those of other-servers.sh.
server_of() {
  if [ "$1" = redis-7.0 ]; then
    dirname "$(type -P redis-server)"
  elif [ -x "build/servers/$1/redis-server" ]; then
    echo "$PWD/build/servers/$1"
  else
    return 1
  fi
}

environment_of() {
  local folder=build/matrix/$1 python
  if [ ! -e "$folder/.ready" ]; then
    python=$(python_of "$1") || return 1
    "$python" -m venv "$folder" || return 1
    "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --editable '.[sidecar]' \
      pytest pytest-cov pytest-timeout pytest-xdist hypothesis psutil trustme 'fakeredis[lua]' >&2 || return 1
    touch "$folder/.ready"
  fi
  echo "$PWD/$folder/bin"
}

run_cell() {
  local python=$1 name=$2 commands server version verdict
  commands=$(environment_of "$python") || { say "there is no Python $python here: its cells are left out"; return 0; }
  server=$(server_of "$name") || { say "there is no $name here: its cells are left out"; return 0; }
  version=$("$server/redis-server" --version | sed -n 's/.* v=\([^ ]*\).*/\1/p')
  say "$name ($version), Python $python ..."
  # shellcheck disable=SC2086 -- MATRIX_ARGS is a list of words
  verdict=$(PATH="$server:$PATH" "$commands/python" -m pytest -q -n "${WORKERS:-3}" -p no:cacheprovider "${tests[@]}" \
    ${MATRIX_ARGS:-} 2>&1 | tee "build/matrix/$python-$name.log" | tail -1) || true
  echo "| $name ($version) | $("$commands/python" --version) | ${verdict//=/} | $(date +%F) |" | tee -a build/matrix.md
  [[ $verdict == *passed* && $verdict != *failed* && $verdict != *error* ]]
}

mkdir -p build/matrix
PYTHON=$bin/python .ci/other-servers.sh >/dev/null
cells=("$@")
[ $# -gt 0 ] || cells=({3.11,3.12,3.13}:{redis-6.2,redis-7.0,redis-8.2,valkey-8})
failed=0
for cell in "${cells[@]}"; do
  run_cell "${cell%%:*}" "${cell#*:}" || failed=1
done
exit $failed
