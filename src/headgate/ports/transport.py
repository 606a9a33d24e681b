"""How a batch reaches a gateway: the lane's end, and the gateway's.

The address is what the gateway announced; its scheme says which transport it listens on. All
transports keep the same contract, so that a lane need not know which one it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from headgate.model.delivery import Batch, DeliveryAnswer, DeliveryBatch

Meanwhile = Callable[[], None]
Accept = Callable[[Batch], DeliveryAnswer | Awaitable[DeliveryAnswer]]
"""Takes a batch at the gateway: at once, unless it has to find out first which subscriptions it is
for; raises a HeadgateError to refuse it as a whole."""


class DeliveryTransport(Protocol):
    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        """Make ready what is probably delivered next at `url`; it need not be.

        At most one per address is kept, and forgotten when another one is delivered there.
        """

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        """Send one batch and wait for its verdicts: one per delivery, in their order.

        When the batch has left, `meanwhile` is called, at most once: the moment to prepare the next
        one.

        Raises NotNow (PeerUnreachable where nothing answered) for whatever may work later with the
        same batch: no connection, no answer within `timeout_s`, a failure at the gateway, an answer
        that can't be understood or has another number of verdicts, and a token or certificate that
        isn't accepted, which is the operator's to mend and not the events' fault. The batch may
        have been taken nevertheless.

        Raises CallerError (InvalidRequest, TooLarge) only for a batch that this gateway refuses for
        good, whenever and however often it is sent.

        May be called again while another call is under way, also for the same gateway; the order is
        then up to the caller. A call that is cancelled leaves nothing behind.
        """

    async def close(self) -> None:
        """Give up all connections; calls that are under way fail."""


class DeliveryListener(Protocol):
    """Where a gateway takes batches. Start it once, stop it once."""

    async def start(self) -> str:
        """Listen; returns the address to announce, whose scheme says how to deliver there. Raises
        OperatorError for what only an operator can mend."""

    async def failed(self) -> None:
        """Waits for as long as it listens, and raises what keeps it from doing so."""

    async def stop(self, timeout_s: float) -> None:
        """Take no more; what was taken is answered within `timeout_s`, or not at all."""
