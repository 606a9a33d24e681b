#!/bin/sh
# Compiles the messages of the gRPC transport to the descriptors that the package loads.
set -eu
cd "$(dirname "$0")/.."

FOLDER=src/headgate/adapters/grpc
.venv/bin/python -m grpc_tools.protoc -I "$FOLDER" --descriptor_set_out="${1:-$FOLDER/streamer.binpb}" streamer.proto
