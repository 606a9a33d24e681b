"""A gateway in the test's own process that remembers every delivery and its verdict."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headgate.adapters.delivery_outcome import taken
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.listeners import listener_for
from headgate.config import Config, load_config
from headgate.model.delivery import Batch, DeliveryAnswer
from headgate.model.event import Fence, PartitionRef
from headgate.ports.transport import Accept, DeliveryListener
from headgate.wiring.roles import build_gateway, listener_options

T = TypeVar("T")
TIMEOUT_S = 30.0


class RecordingGateway:
    """The real gateway; `accepted` are the fences of what it took, in the order it took them."""

    def __init__(self, settings: Mapping[str, str], working_dir: Path) -> None:
        config = load_config(environ=settings, working_dir=working_dir).config
        self.accepted: dict[PartitionRef, list[Fence]] = {}
        self.refused = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._gateway = self._run(self._build(config))

    async def _build(self, config: Any) -> Any:
        gateway = build_gateway(config, DataFolder.open(config.data))
        accept, self._options = gateway._deliveries.take, gateway._options

        async def recorded(batch: Batch) -> DeliveryAnswer:
            answer = await taken(accept, batch)
            for delivery, verdict in zip(batch.deliveries, answer.verdicts, strict=True):
                ref = PartitionRef(delivery.topic, delivery.partition)
                if verdict == "stale_fence":
                    self.refused += 1
                else:
                    fence = Fence(delivery.epoch, batch.window, batch.attempt)
                    self.accepted.setdefault(ref, []).append(fence)
            return answer

        gateway._listener = self._listener(config, recorded)
        return gateway

    def _listener(self, config: Config, accept: Accept) -> DeliveryListener:
        """Where lanes deliver to."""
        options = self._options
        return listener_for(
            listener_options(config), options.node_id, accept, incarnation=options.incarnation
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def start(self) -> str:
        self.url = str(self._run(self._gateway.start()))
        return self.url

    def stop(self) -> None:
        self._run(self._gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def check_fences(self) -> None:
        """After a delivery of a higher epoch was accepted, none of a lower one is."""
        for ref, fences in self.accepted.items():
            assert fences == sorted(fences), f"{ref}: a former owner was let in again"
