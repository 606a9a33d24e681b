#!/bin/sh
# Resolves every dependency again, for all platforms and Pythons, each file pinned with its hashes.
#
# Which package index was asked must not show in the result, so that it is the same everywhere.
# ARGS="--upgrade" takes the newest versions; without it what is locked stays where it can.
set -eu
cd "$(dirname "$0")/.."

compile() {
    # shellcheck disable=SC2086
    .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header \
        --no-emit-index-url --python-version 3.11 ${ARGS:-} "$@"
}

compile --extra java --extra etcd --extra mongo --extra nats --extra postgres --extra top \
    --group dev pyproject.toml -o requirements/dev.txt
# The build backends share packages with the rest and are installed next to it.
compile --group pyproject.toml:build -c requirements/dev.txt -o requirements/build.txt
compile --group pyproject.toml:uv -o requirements/uv.txt
