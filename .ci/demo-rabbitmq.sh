#!/usr/bin/env bash
# Prints the path of a RabbitMQ for `make demo ARGS=--all`, or nothing: its messages then come from a broker
# in memory. It is unpacked as the tests do, if that needs no password and takes no longer than the limit. It always succeeds.
cd "$(dirname "$0")/.." || exit 0

limit=60

export NO_PASSWORD=1
# brew would install it, which takes minutes and is the user's own decision.
command -v apt-get >/dev/null && command -v timeout >/dev/null || export ONLY_FIND=1

bounded() { if command -v timeout >/dev/null; then timeout -k 5 "$limit" "$@"; else "$@"; fi; }

bounded .ci/rabbitmq.sh </dev/null || true
