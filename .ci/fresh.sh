#!/usr/bin/env bash
# Runs targets of the Makefile as a reader does who has just cloned it: each in a clone of its own of the last commit, with
# an environment of its own, so that none finds what another has installed. Without names: all that `make help` shows, but
# this one. Measurements are shortened. A line for each target; its output is in build/fresh. Fails if one of them does.
set -uo pipefail
cd "$(dirname "$0")/.."

here=$PWD
logs=$here/build/fresh
mkdir -p "$logs"
clones=$(mktemp -d)
trap 'rm -rf "$clones"' EXIT
unset VIRTUAL_ENV PYTHONPATH MAKEFLAGS MAKELEVEL MFLAGS

# The arguments that make a run of a target short.
short() {
  case $1 in
    bench | bench-check | chaos) echo "--quick" ;;
    demo-web) echo "--port 0" ;;
    model) echo "-k transition" ;;
    mutants) echo "follows" ;;
    *) echo "${ARGS:-}" ;;
  esac
}

# A shop is served until it is told to stop: it is well if it has printed its address and then ends by SIGINT.
serve() {
  setsid make "$1" ARGS="$(short "$1")" &
  local shop=$! tries=0 served=1
  until grep -q "http://" "$2" || [ $((tries += 1)) -gt 1200 ] || ! kill -0 "$shop" 2>/dev/null; do sleep 0.5; done
  grep -q "http://" "$2" && served=0
  kill -s INT -- "-$shop" 2>/dev/null
  tries=0
  while kill -0 "$shop" 2>/dev/null && [ $((tries += 1)) -le 60 ]; do sleep 0.5; done
  kill -s KILL -- "-$shop" 2>/dev/null # what has not ended within 30 s: pip ignores an interrupt here
  wait "$shop"
  return "$served"
}

# A target of the benchmark that is missed on a short run is no fault of this run: the table of all targets is there.
run() {
  case $1 in
    demo-web) serve "$1" "$2" ;;
    bench-check) make "$1" ARGS="$(short "$1")" || grep -q "no target\|short" "$2" ;;
    *) make "$1" ARGS="$(short "$1")" ;;
  esac
}

failed=0
[ $# -gt 0 ] || set -- $(make --no-print-directory help | awk '{print $1}' | grep -vx fresh)
for target in "$@"; do
  git clone --quiet --no-hardlinks "$here" "$clones/$target" || exit 1
  began=$SECONDS log=$logs/$target.log
  : >"$log"
  if (cd "$clones/$target" && run "$target" "$log") </dev/null >"$log" 2>&1; then verdict=runs; else verdict=FAILS failed=1; fi
  printf '%-14s %-6s %4d s   %s\n' "$target" "$verdict" $((SECONDS - began)) "$([ $verdict = runs ] || tail -n 1 "$log")"
  rm -rf "${clones:?}/$target"
done
exit "$failed"
