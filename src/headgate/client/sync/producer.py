"""`Producer` for programs without an event loop: the same calls, which block.

Calls from several threads share batches. Invariant: leaving the `with` block sends what waits,
within a bound; every call that another thread has under way ends before that, with its outcome or
as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate import errors
from headgate.client.credentials import Token
from headgate.client.defaults import THIS_MACHINE
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import Document, Outcome, OutgoingEvent, Receipt
from headgate.client.sync.blocking import Blocking
from headgate.model.api import DEFAULT_URL
from headgate.model.event import ProducedOp
from headgate.ports.machine import Machine


class SyncProducer(Blocking):
    def __init__(
        self,
        url: str = DEFAULT_URL,
        options: ProducerOptions | None = None,
        *,
        token: Token | None = None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._producer = Producer(url, options, token=token, machine=machine)
        super().__init__("producer", machine)

    def send(
        self,
        topic: str,
        document: Document,
        *,
        key: str | None = None,
        op: ProducedOp = "insert",
        event_id: str | None = None,
        collection: str = "",
        earlier: Document | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Write one event; returns once it is on disk."""
        return self._await(
            lambda: self._producer.send(
                topic,
                document,
                key=key,
                op=op,
                event_id=event_id,
                collection=collection,
                earlier=earlier,
                headers=headers,
            )
        )

    def send_many(self, topic: str, events: Sequence[OutgoingEvent]) -> list[Outcome]:
        """Write `events`, in order; one receipt or error per event, in the same order."""
        return self._await(lambda: self._producer.send_many(topic, events))

    def close(self) -> None:
        """Send what waits and end the thread; at most `deadline_s` and a few seconds."""
        super().close()

    async def _close_client(self) -> None:
        await self._producer.close()

    def _closed_error(self) -> errors.HeadgateError:
        return errors.InvalidRequest("the producer is closed: send before leaving its block")

    def _ended_error(self) -> errors.HeadgateError:
        return errors.OutcomeUnknown(
            f"the producer was closed before the call had its outcome: {errors.SAME_IDS_AGAIN}"
        )
