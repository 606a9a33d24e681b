"""How the demo's reports get into the log: produced, or by a database that a connector reads.

Invariants: reports of one aircraft get there in the order they were sent; what was acknowledged is
durable where it was sent to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import msgspec

from headgate.client.credentials import Token
from headgate.client.http import HttpClient
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.client.subscriber import Event
from headgate.demo.aircraft import Report
from headgate.errors import HeadgateError

PRODUCE_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Numbered:
    """A report with its number, which grows with every report."""

    number: int
    report: Report

    @property
    def id(self) -> str:
        return f"{self.report.icao}-{self.number}"


Outcome = int | HeadgateError
"""The partition of a report that was acknowledged, or why there is no acknowledgement."""


class WayIn(Protocol):
    """Open from the first report until the last one has arrived."""

    async def prepare(self, http: HttpClient) -> None:
        """What must be there before the listeners begin, the topic apart. May be tried again."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def send(self, reports: Sequence[Numbered]) -> list[Outcome]:
        """Calls may overlap; their order is that of the calls."""

    def id_of(self, event: Event) -> str:
        """Of the report that `event` is about."""


class Produced:
    """By the producer, over HTTP; each report goes with the former one of its aircraft, so that
    subscribers hear of aircraft that leave their filter."""

    def __init__(self, address: str, topic: str, *, token: Token | None = None) -> None:
        self._topic = topic
        options = ProducerOptions(deadline_s=PRODUCE_DEADLINE_S)
        self._producer = Producer(address, options, token=token)
        self._earlier: dict[str, bytes] = {}

    async def prepare(self, http: HttpClient) -> None:
        return

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._producer.__aexit__(kind, error, trace)

    async def send(self, reports: Sequence[Numbered]) -> list[Outcome]:
        events = [self._event(one) for one in reports]
        outcomes = await self._producer.send_many(self._topic, events)
        return [one.partition if isinstance(one, Receipt) else one for one in outcomes]

    def _event(self, one: Numbered) -> OutgoingEvent:
        icao, document = one.report.icao, msgspec.json.encode(one.report)
        earlier = self._earlier.get(icao)
        self._earlier[icao] = document
        return OutgoingEvent(document, key=icao, event_id=one.id, earlier=earlier)

    def id_of(self, event: Event) -> str:
        return event.event_id
