"""Where a producer sends: straight to an ingest node when there is one, else to the public address.

Invariant: there is always an address to try; a node that doesn't answer is left out for a while,
and its requests go through the public address meanwhile. Questions asked at once share one answer.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from headgate import errors
from headgate.client.http import HttpClient
from headgate.model.api import Status

AVOID_S = 5.0


class Route:
    def __init__(self, url: str) -> None:
        self._public = HttpClient(url)
        self._direct: HttpClient | None = None
        self._asked = asyncio.Lock()
        self._ask_after_s = 0.0

    async def client(self) -> HttpClient:
        """Whom to send to now."""
        if self._must_ask():
            async with self._asked:
                if self._must_ask():
                    await self._ask()
        return self._direct or self._public

    def failed(self, client: HttpClient) -> None:
        """`client` gave no answer: go through the public address for a while.

        Other requests may still wait for an answer of it, so it isn't closed, only let go.
        """
        if client is self._direct:
            self._direct = None
            self._ask_after_s = self._now_s() + AVOID_S

    async def close(self) -> None:
        if self._direct is not None:
            await self._direct.close()
        await self._public.close()

    def _must_ask(self) -> bool:
        return self._direct is None and self._now_s() >= self._ask_after_s

    async def _ask(self) -> None:
        self._ask_after_s = self._now_s() + AVOID_S
        try:
            status = await self._public.get("/v1/status", Status)
        except errors.HeadgateError:
            return
        urls = sorted(n.url for n in status.nodes if n.role == "ingest" and n.state == "ready")
        usable = [url for url in urls if url and self._is_reachable_from_here(url)]
        if usable:
            self._direct = HttpClient(usable[0], connect_timeout_s=1.0)

    def _is_reachable_from_here(self, url: str) -> bool:
        """A loopback address means another machine to a client that came from outside."""
        return not _is_loopback(url) or _is_loopback(self._public.url)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
