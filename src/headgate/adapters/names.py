"""Which addresses a host has, whatever thread of the program is left."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Any

from headgate.adapters.own_thread import on_its_own_thread

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""As `socket.getaddrinfo` has it."""


async def addresses_of(host: str, port: int) -> list[Address]:
    """For a stream. Raises OSError where there are none."""
    with contextlib.suppress(OSError):  # it is a name
        return _asked(host, port, socket.AI_NUMERICHOST)
    return await on_its_own_thread("name", partial(_asked, host, port))


def _asked(host: str, port: int, flags: int = 0) -> list[Address]:
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
    except UnicodeError as error:
        raise OSError(f"{host} is no name of a host") from error
