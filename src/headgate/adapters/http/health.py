"""GET /health of another role, as a value."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from headgate.model.api import Health

_decode = msgspec.json.Decoder(Health).decode


class HttpHealthSource:
    """Keeps its connections between questions, until `close`."""

    def __init__(self) -> None:
        self._client: Client | None = None

    async def health_at(self, url: str, *, timeout_s: float) -> Health | None:
        """What the role at `url` says; None where nobody answers so in time."""
        if self._client is None:
            self._client = ClientBuilder().no_proxy().build()
        try:
            request = self._client.get(f"{url}/health").timeout(timedelta(seconds=timeout_s))
            answer = await request.build().send()
            return _decode(await answer.bytes())
        except (PyreqwestError, msgspec.MsgspecError):
            return None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
