"""Follows topics: an async iterator over what matches, across lost connections.

    async with Subscriber("http://127.0.0.1:8780", "flights", where="alt > 10000") as subscriber:
        async for item in subscriber:
            match item:
                case Event():
                    print(item.key, item.document)
                case Left():
                    print(item.key, "doesn't match any more")
                case Resync():
                    print(item)  # records that will not come, and why

Invariant: per subscription and partition, items come in order, none twice and none left out without
a Resync in its place, from the positions of the first `subscribed` message on; only what an
operator had sent again (`redelivery`) comes in between. After a lost connection it resumes after
the last item that has arrived (or, with acks="manual", that was acknowledged, so that what was not
comes again). What waits here is bounded: a slow loop makes the gateway wait. Any call may be
cancelled: what it is about is kept in a conversation (decide/conversation), not in the call.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from headgate import errors
from headgate.client.credentials import Token, credentials
from headgate.client.defaults import THIS_MACHINE, open_calls, open_link
from headgate.client.gateway_choice import Doors
from headgate.client.identified_link import identified
from headgate.client.line import BUFFER_BYTES, Line
from headgate.client.texts import plain
from headgate.decide.conversation.common import Acks
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.subscriber import Following
from headgate.decide.conversation.subscription import Conditions, Subscription
from headgate.model.api import DEFAULT_URL
from headgate.model.client_messages import (
    Event,
    Item,
    Left,
    Resync,
    Subscribed,
    ToSubscriber,
    decode_for_subscriber,
)
from headgate.model.subscription import Priority
from headgate.ports.connection import OpenLink
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine

BEYOND_END_S = 30.0
"""For a log that has lost what we have seen of it to be moved on."""

__all__ = ["Event", "Item", "Left", "Resync", "Subscribed", "Subscriber"]


class Subscriber:
    """`start` is "now", "earliest", a time such as "2026-01-31T12:00:00Z" (what was appended since
    then), or "PARTITION:SEQ,…" with the first seqs wanted.

    Several addresses, in a sequence or with commas, are asked in turn. Where subscribers are placed
    by their `id`, one that a program keeps leads it to the same gateway after a restart, too.

    Opening fails at once with a typed error. After that, a lost connection is opened again with
    growing pauses: for ever, or until `retry_attempts` or `retry_for_s` (per outage) are used up.

    `machine`, `open_calls` and `open_link` are for tests: time, chance and threads are this
    machine's, its calls HTTP and its connections WebSockets.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        topic: str = "",
        *,
        id: str | None = None,  # noqa: A002 - the name on the wire
        where: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the name on the wire
        start: str = "now",
        priority: Priority = "normal",
        tenant: str = "",
        acks: Acks = "auto",
        buffer: int = 1_000,
        buffer_bytes: int = BUFFER_BYTES,
        retry_attempts: int | None = None,
        retry_for_s: float | None = None,
        retry_first_s: float = 0.1,
        retry_max_s: float = 5.0,
        open_timeout_s: float = 30.0,
        silence_s: float = 75.0,
        token: Token | None = None,
        machine: Machine = THIS_MACHINE,
        open_calls: OpenCalls = open_calls,
        open_link: OpenLink = open_link,
    ) -> None:
        self._machine = machine
        patience = Patience(retry_attempts, retry_for_s, retry_first_s, retry_max_s)
        self._following = Following(acks, patience, beyond_end_s=BEYOND_END_S)
        said = credentials(token, machine)
        self._line: Line[ToSubscriber] = Line(
            self._following,
            decode_for_subscriber,
            name="subscriber",
            doors=Doors(
                url,
                id and plain("id", id),
                open_calls=open_calls,
                machine=machine,
                credentials=said,
            ),
            url_of=lambda way: way.url,
            room=buffer,
            room_bytes=buffer_bytes,
            open_timeout_s=open_timeout_s,
            silence_s=silence_s,
            open_link=open_link if said is None else identified(open_link, said, machine),
            machine=machine,
        )
        if topic:
            self.add(
                topic, where=where, filter=filter, start=start, priority=priority, tenant=tenant
            )

    def add(
        self,
        topic: str,
        *,
        where: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the name on the wire
        start: str = "now",
        priority: Priority = "normal",
        tenant: str = "",
        id: str | None = None,  # noqa: A002 - the name on the wire
    ) -> str:
        """Another subscription over the same connection, before that is opened; returns its id,
        which is in `subscriptions` of every event that matches."""
        name = plain("id", id or self._machine.token(8))
        self._following.add(
            Subscription(
                name,
                plain("topic", topic),
                where=None if where is None else plain("where", where),
                filter_=filter,
                start=plain("start", start),
                priority=priority,
                tenant=plain("tenant", tenant),
            )
        )
        return name

    async def __aenter__(self) -> Self:
        await self._line.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def reconnects(self) -> int:
        """How often a lost connection was opened again."""
        return self._following.reconnects

    @property
    def subscribed(self) -> Subscribed:
        """The gateway's answer to the first subscription; a new one after every reconnection."""
        first = self._first
        if first is None or first.subscribed is None:
            raise errors.InvalidRequest("enter the subscriber first: async with Subscriber(…)")
        return first.subscribed

    @property
    def positions(self) -> dict[int, int]:
        """Of the first subscription: per partition, the last seq that was yielded."""
        return {} if self._first is None else self._first.positions

    def positions_of(self, subscription: str) -> dict[int, int]:
        return dict(self._following.subscriptions[subscription].positions)

    @property
    def _first(self) -> Subscription | None:
        return next(iter(self._following.subscriptions.values()), None)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        return self._line.next()

    def ack(self, item: Item) -> None:
        """`item` and everything before it, of its partition and subscriptions, is processed.

        One that came over an earlier connection counts as well: it doesn't come again. A redelivery
        says nothing about what stands before it, and needs no acknowledgement.
        """
        self._line.do(self._following.ack(item))

    async def close(self) -> None:
        """End; a pending `async for` ends too. Doing it twice is fine."""
        await self._line.close()
