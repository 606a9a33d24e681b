"""How a batch reaches a gateway."""

from __future__ import annotations

from typing import Protocol

from headgate.model.delivery import DeliveryAnswer, DeliveryBatch


class DeliveryTransport(Protocol):
    async def deliver(self, url: str, batch: DeliveryBatch, *, timeout_s: float) -> DeliveryAnswer:
        """Send one batch and wait for its verdicts.

        Raises NotNow for what may work on another attempt (no connection, timeout, 5xx) and
        CallerError for what never will (4xx).
        """

    async def close(self) -> None: ...
