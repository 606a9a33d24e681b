"""Batches to gateways in this process: what a lane sends is what its gateway is given, as it is.

Between the two is what any network puts there: an address at which nobody may listen, an answer
that may take its time, and a caller that waits no longer than it said. Nothing is encoded, so there
is no garbage. One event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headgate.adapters.delivery_outcome import Refusal, UnderWay, checked, no_answer, refused
from headgate.errors import HeadgateError, PeerUnreachable
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.ports.transport import Accept, Meanwhile

Answer = Callable[[DeliveryBatch], Awaitable[DeliveryAnswer]]
"""A gateway's side; raises a HeadgateError to refuse a batch as a whole."""


class MemoryGateways:
    """Who listens where: what stands at the end of every transport that shares it."""

    def __init__(self) -> None:
        self.listening: dict[str, Answer] = {}


class MemoryDeliveryListener:
    """Implements ports.transport.DeliveryListener."""

    def __init__(self, gateways: MemoryGateways, url: str, accept: Accept) -> None:
        self._gateways = gateways
        self._url = url
        self._accept = accept

    async def start(self) -> str:
        self._gateways.listening[self._url] = self._answer
        return self._url

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None:
        self._gateways.listening.pop(self._url, None)

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        return self._accept(batch)


class MemoryDeliveryTransport:
    """Implements ports.transport.DeliveryTransport."""

    def __init__(self, gateways: MemoryGateways | None = None) -> None:
        self.gateways = MemoryGateways() if gateways is None else gateways
        self._under_way = UnderWay()
        self._closed = False

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        """Nothing has to be made ready."""

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        listening = self.gateways.listening.get(url)
        if listening is None or self._closed:
            raise no_answer(url, "there is no connection")
        if meanwhile is not None:
            meanwhile()
        try:
            async with self._under_way.within(url, timeout_s):
                await asyncio.sleep(0)  # it is on its way
                answer = await listening(batch)
        except PeerUnreachable:
            raise
        except HeadgateError as error:
            raise refused(url, Refusal(error.status, error.message)) from error
        except Exception as error:
            raise refused(url, Refusal(HeadgateError.status, str(error))) from error
        return checked(url, answer, batch)

    async def close(self) -> None:
        self._closed = True
        self._under_way.end()
