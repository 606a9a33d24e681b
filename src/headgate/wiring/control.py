"""Which control plane nodes and lanes connect to."""

from __future__ import annotations

from collections.abc import Callable

from headgate.adapters.grpc.control import GrpcControlSession
from headgate.model.control.to_coordinator import Hello
from headgate.ports.control import ControlSession


def addresses(hosts: str, port: int) -> str:
    """All coordinators as host:port with commas in between; `port` where a host has none."""
    return ",".join(host if _has_port(host) else f"{host}:{port}" for host in hosts.split(","))


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def connector(
    coordinators: str, *, shown: str = ""
) -> Callable[[Callable[[], Hello]], ControlSession]:
    """Opens control streams to the leader among `coordinators` (see `addresses`), and shows it the
    pass `shown`."""
    return lambda hello: GrpcControlSession(coordinators, hello, shown=shown)
