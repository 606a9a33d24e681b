"""Which control plane nodes and lanes connect to."""

from __future__ import annotations

from collections.abc import Callable

from headgate.adapters.grpc.control import GrpcControlSession
from headgate.model.control import Hello
from headgate.ports.control import ControlSession


def connector(address: str, port: int) -> Callable[[Callable[[], Hello]], ControlSession]:
    """Opens control streams to the coordinator at `address`."""
    return lambda hello: GrpcControlSession(f"{address}:{port}", hello)
