"""Batches to gateways in this process: what a lane sends is what its gateway is given, as it is.

Between the two is what any network puts there: an address at which nobody may listen, an answer
that may take its time, and a caller that waits no longer than it said. Nothing is encoded, so there
is no garbage. One thread; a batch is taken on the listener's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from headgate.adapters.delivery_outcome import (
    Refusal,
    UnderWay,
    checked,
    no_answer,
    refused,
    taken,
)
from headgate.adapters.memory.crossing import Crossing
from headgate.errors import HeadgateError, PeerUnreachable
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.ports.transport import Accept, Meanwhile

Answer = Callable[[DeliveryBatch], Coroutine[Any, Any, DeliveryAnswer]]
"""A gateway's side; raises a HeadgateError to refuse a batch as a whole."""


class MemoryGateways:
    """Who listens where: what stands at the end of every transport that shares it."""

    def __init__(self) -> None:
        self.listening: dict[str, Answer] = {}
        self._crossings: dict[str, Crossing] = {}

    def listen(self, url: str, answer: Answer) -> None:
        crossing = self._crossings[url] = Crossing()
        self.listening[url] = lambda batch: crossing.call(partial(answer, batch))

    def forget(self, url: str) -> None:
        self.listening.pop(url, None)
        self._crossings.pop(url, None)

    def gone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything on `loop` is gone, without a word; its machine tells the callers that wait for
        it."""
        for url, crossing in [*self._crossings.items()]:
            if crossing.loop is loop:
                self.forget(url)
                crossing.gone()


class MemoryDeliveryListener:
    """Implements ports.transport.DeliveryListener."""

    def __init__(self, gateways: MemoryGateways, url: str, accept: Accept) -> None:
        self._gateways = gateways
        self._url = url
        self._accept = accept

    async def start(self) -> str:
        self._gateways.listen(self._url, self._answer)
        return self._url

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None:
        self._gateways.forget(self._url)

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        return await taken(self._accept, batch)


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
                answer = await listening(batch)
        except PeerUnreachable:
            raise
        except ConnectionResetError as error:
            raise no_answer(url, "the connection ended") from error
        except HeadgateError as error:
            raise refused(url, Refusal(error.status, error.message)) from error
        except Exception as error:
            raise refused(url, Refusal(HeadgateError.status, str(error))) from error
        return checked(url, answer, batch)

    async def close(self) -> None:
        self._closed = True
        self._under_way.end()
