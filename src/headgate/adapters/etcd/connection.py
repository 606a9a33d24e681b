"""One connection to an etcd cluster: to one of its endpoints at a time, bounded in time.

Invariants: a call ends by its deadline, whatever the servers do, with its result or with
StorageFailed. A member that fails or keeps silent is left for the next endpoint, and what the call
wanted is tried there; what other calls still do over the old client goes on undisturbed. Never
shows the password.

Not thread-safe: a connection belongs to the event loop that uses it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aetcd
import grpc

from headgate.errors import InvalidConfig, StorageFailed

T = TypeVar("T")

TIMEOUT_S = 5.0
"""One call with all its attempts: longer than a cluster takes to elect another leader."""
ATTEMPT_TIMEOUT_S = 1.5
"""One attempt at one endpoint, which may be paused or cut off."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5

_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAUTHENTICATED,  # a token that has expired: the next client gets another
    }
)
"""Another endpoint, or the same one a little later, may do better."""

_CHANNEL_OPTIONS = {
    "grpc.enable_http_proxy": 0,
    # All positions, or the state of a cluster with 10,000 partitions, come in one answer.
    "grpc.max_receive_message_length": 256 << 20,
    # A new client connects at once, whatever a former one to the same address has met.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1_000,
    # For watches: a silent member is noticed. More often than every 5 s makes etcd hang up.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 3_000,
}

_ENDPOINT = re.compile(
    r"(?:http://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:,\[\]]+):(?P<port>\d{1,5})/?"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one member listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of `host:port,host:port`; raises InvalidConfig."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = [_ENDPOINT.fullmatch(part) for part in parts]
    endpoints = [Endpoint(m["host"], int(m["port"])) for m in found if m is not None]
    if not parts or len(endpoints) != len(parts) or any(e.port > 65_535 for e in endpoints):
        raise InvalidConfig(
            "etcd.endpoints must be one or more addresses such as 10.0.0.1:2379,10.0.0.2:2379",
            key="etcd.endpoints",
        )
    return tuple(endpoints)


def storage_failed(error: Exception, what: str) -> StorageFailed:
    """`what` is what was tried, as the beginning of a sentence."""
    reason = _first_line(error)
    if _is_lost(error):
        advice = f"etcd can't be reached ({reason}); check etcd.endpoints and the servers"
    elif "invalid user ID or password" in reason or "permission denied" in reason:
        advice = f"etcd refuses it ({reason}); check etcd.user, its password and its role"
    elif "database space exceeded" in reason:
        advice = "etcd's quota is full; compact and defragment it, then disarm its alarm"
    else:
        advice = f"etcd reports an error ({reason}); check the servers"
    return StorageFailed(f"{what} failed: {advice}", reason=reason)


class EtcdConnection:
    """What adapters share to talk to etcd; `key` puts their keys under one prefix.

    `run` is for single calls. `client` is for what takes longer (watches, leases held for a
    while): it hands out the present client and keeps it open until the block ends, also when
    other calls have moved on to another endpoint. There, etcd's errors arrive as aetcd raises them,
    and a caller that gets one tells `leave`, so that the next client goes elsewhere.
    """

    def __init__(
        self,
        endpoints: str,
        *,
        prefix: str = "/headgate",
        user: str = "",
        password: str = "",
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> None:
        self._endpoints = parse_endpoints(endpoints)
        self._prefix = prefix.rstrip("/")
        self._credentials = {"username": user, "password": password} if user else {}
        self._timeout_s = timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._turn = 0
        self._client: aetcd.Client | None = None
        self._uses: dict[aetcd.Client, int] = {}
        """How many calls still use a client; the last one closes it when it is no longer the
        present one."""

    def key(self, *parts: str | int) -> bytes:
        """`/prefix/part/part`; end with an empty part for the prefix of everything below."""
        return "/".join((self._prefix, *map(str, parts))).encode()

    async def run(
        self,
        work: Callable[[aetcd.Client], Awaitable[T]],
        *,
        what: str,
        timeout_s: float | None = None,
    ) -> T:
        """What `work` returns, tried at other endpoints while its time lasts.

        `work` must bear being done twice: an attempt whose answer got lost may have taken effect.
        Raises StorageFailed, which therefore doesn't say that nothing was written.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with self.client() as client:
                    async with asyncio.timeout_at(
                        min(deadline, loop.time() + self._attempt_timeout_s)
                    ):
                        return await work(client)
            except (aetcd.ClientError, TimeoutError) as error:
                if not _is_lost(error) or loop.time() + pause_s >= deadline:
                    raise storage_failed(error, what) from error
                await self.leave(client)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[aetcd.Client]:
        """The present client, open for as long as the block lasts."""
        client = self._client or self._connect()
        self._uses[client] += 1
        try:
            yield client
        finally:
            self._uses[client] -= 1
            await self._close_unused(client)

    async def leave(self, client: aetcd.Client) -> None:
        """Let the next call go to the next endpoint, unless another has seen to that already."""
        if client is self._client:
            self._client = None
            self._turn += 1
        await self._close_unused(client)

    async def close(self) -> None:
        """Closes the present client once nobody uses it."""
        if self._client is not None:
            await self.leave(self._client)

    def _connect(self) -> aetcd.Client:
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        self._client = aetcd.Client(
            host=endpoint.host,
            port=endpoint.port,
            timeout=self._attempt_timeout_s,
            options=_CHANNEL_OPTIONS,
            **self._credentials,
        )
        self._uses[self._client] = 0
        return self._client

    async def _close_unused(self, client: aetcd.Client) -> None:
        # Closing a channel cancels the tasks that wait for an answer over it.
        if client is not self._client and self._uses.get(client) == 0:
            del self._uses[client]
            await client.close()


def _is_lost(error: Exception) -> bool:
    if isinstance(error, TimeoutError):
        return True
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and cause.code() in _LOST


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no answer in time"])[0]
