"""The HTTP connections of a producer: one pool per address, and the public one that always works.

Invariants: a pool is closed only when no request is under way on it; an address that gave no answer
is gone around, through the public address, for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headgate.client.credentials import Credentials
from headgate.client.defaults import open_calls
from headgate.client.http import HttpClient
from headgate.decide.produce.routing_cache import PUBLIC_ADDRESS
from headgate.ports.http import OpenCalls

AVOID_S = 5.0
CONNECT_TIMEOUT_S = 1.0


@dataclass(slots=True, eq=False)
class _Pool:
    client: HttpClient
    users: int = 0
    departed: bool = False


class Connections:
    def __init__(
        self,
        public_url: str,
        *,
        open_calls: OpenCalls = open_calls,
        credentials: Credentials | None = None,
    ) -> None:
        self._open_calls = open_calls
        self._credentials = credentials
        self.public = HttpClient(public_url, open_calls=open_calls, credentials=credentials)
        self._pools: dict[str, _Pool] = {}
        self._avoided_until_s: dict[str, float] = {}

    def __contains__(self, url: str) -> bool:
        return url in self._pools

    def avoid(self, url: str) -> None:
        self._avoided_until_s[url] = _now_s() + AVOID_S

    def usable(self, url: str) -> str:
        """`url`, or the public address while `url` is gone around."""
        until_s = self._avoided_until_s.get(url)
        if until_s is not None:
            if _now_s() < until_s:
                return PUBLIC_ADDRESS
            del self._avoided_until_s[url]
        return url

    @asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[HttpClient]:
        if url == PUBLIC_ADDRESS:
            yield self.public
            return
        pool = self._pools.get(url)
        if pool is None:
            client = HttpClient(
                url,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                open_calls=self._open_calls,
                credentials=self._credentials,
            )
            pool = self._pools[url] = _Pool(client)
        pool.users += 1
        try:
            yield pool.client
        finally:
            pool.users -= 1
            if pool.departed and not pool.users:
                await pool.client.close()

    async def prune(self, urls: Iterable[str]) -> None:
        """Nothing new goes to `urls`; a request that is under way there may still be answered."""
        for url in urls:
            self._avoided_until_s.pop(url, None)
            pool = self._pools.pop(url, None)
            if pool is not None:
                pool.departed = True
                if not pool.users:
                    await pool.client.close()

    async def close(self) -> None:
        if self._credentials is not None:
            await self._credentials.close()
        await self.prune(list(self._pools))
        await self.public.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
