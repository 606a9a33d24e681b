"""What clients take from outside where a program names nothing else: this machine and its network.

The one place where `headgate.client` meets adapters: a program uses it without our wiring. What
takes long to load is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.adapters.machine import THIS_MACHINE
from headgate.model.control.to_coordinator import Hello
from headgate.ports.connection import Link, LinkListener
from headgate.ports.control import ControlSession
from headgate.ports.http import HttpCalls

__all__ = ["THIS_MACHINE", "load_sessions", "open_calls", "open_link"]


def open_calls(*, connect_timeout_s: float) -> HttpCalls:
    """Implements ports.http.OpenCalls."""
    from headgate.adapters.http.calls import PooledCalls

    return PooledCalls(connect_timeout_s=connect_timeout_s)


def open_link(listener: LinkListener, silence_s: float) -> Link:
    """Implements ports.connection.OpenLink."""
    from headgate.adapters.picows.link import WsLink

    return WsLink(listener, silence_s)


def load_sessions() -> Callable[[str, Callable[[], Hello]], ControlSession]:
    """How control streams are opened, from an address and what is said there first. Loading it
    takes a tenth of a second, which short-lived producers need not spend."""
    from headgate.adapters.grpc.control import GrpcControlSession

    return GrpcControlSession
