"""One connection to NATS: made with a bounded wait, kept for as long as it is wanted.

Invariant: whatever goes wrong while connecting leaves here as one PeerUnreachable or NotNow with
the reason. After that the library reconnects by itself, without end, and subscribes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import nats.errors
from nats.aio.client import Client

from headgate.decide.links.concealing import without_credentials
from headgate.errors import NotNow, PeerUnreachable

CONNECT_TIMEOUT_S = 2
RECONNECT_WAIT_S = 0.2
PING_INTERVAL_S = 5
WITHOUT_END = -1
ERRORS_MAX = 10
"""Errors that are kept of one attempt to connect."""


async def connect(
    servers: str, *, name: str, token: str = "", authority: str = "", closed: asyncio.Event
) -> Client:
    """`servers` are addresses with commas in between, `authority` is the file of the certificate
    that vouches for them. `closed` is set once the connection has ended for good."""
    errors: list[Exception] = []

    async def failed(error: Exception) -> None:
        if len(errors) < ERRORS_MAX:
            errors.append(error)

    async def ended() -> None:
        closed.set()

    client = Client()
    try:
        await client.connect(
            [server.strip() for server in servers.split(",")],
            name=name,
            token=token or None,
            tls=_context(authority),
            error_cb=failed,
            closed_cb=ended,
            connect_timeout=CONNECT_TIMEOUT_S,
            # The types say int, the code takes any number.
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            max_reconnect_attempts=1,
            ping_interval=PING_INTERVAL_S,
        )
    except (nats.errors.Error, OSError, TimeoutError) as error:
        await disconnect(client)
        raise _refused(servers, errors or [error]) from error
    except BaseException:
        await disconnect(client)
        raise
    # Only the first connection may fail: its caller is told.
    client.options["max_reconnect_attempts"] = WITHOUT_END
    return client


def _context(authority: str) -> ssl.SSLContext | None:
    if not authority:
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise NotNow(f"can't read transport.tls_authority {authority}: {error}") from error


def _refused(servers: str, errors: list[Exception]) -> NotNow:
    where = without_credentials(servers)
    if any("authorization" in str(error).lower() for error in errors):
        return NotNow(f"NATS at {where} doesn't accept transport.token; set the one it has")
    reason = str(errors[-1]) or type(errors[-1]).__name__
    return PeerUnreachable(f"NATS at {where} can't be reached: {reason}")


async def disconnect(client: Client) -> None:
    """The library says goodbye first, which fails where the server has just gone."""
    with contextlib.suppress(nats.errors.Error, OSError):
        await client.close()
