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
operator had sent again (`redelivery`) comes in between. After a lost
connection it resumes after the last item that was consumed (or, with acks="manual", acknowledged,
so that what was not comes again). What waits here is bounded: a slow loop makes the gateway wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

import msgspec

from headgate import errors
from headgate.client.doors import Doors, Way
from headgate.client.http import rebuild
from headgate.client.reopening import Patience
from headgate.client.subscription import (
    Acks,
    Conditions,
    Event,
    Failure,
    Item,
    Left,
    Message,
    Redirect,
    Resync,
    Subscribed,
    Subscription,
    decoder,
)
from headgate.client.ws_link import WsLink
from headgate.model.api import DEFAULT_URL
from headgate.model.subscription import Priority

CONNECT_TIMEOUT_S = 5.0
"""For a gateway to answer at all, before another one is tried."""
BEYOND_END_S = 30.0
"""For a log that has lost what we have seen of it to be moved on."""
ACK_EVERY = 256
"""Items after which the gateway is told how far we are, even if more wait."""
MOST_EARLY = 10_000
"""Messages that may arrive for one subscription before another of the same connection began."""

__all__ = ["Event", "Item", "Left", "Resync", "Subscribed", "Subscriber"]


class Subscriber:
    """`start` is "now", "earliest" or "PARTITION:SEQ,…" with the first seqs wanted.

    Several addresses, in a sequence or with commas, are asked in turn. Where subscribers are placed
    by their `id`, one that a program keeps leads it to the same gateway after a restart, too.

    Opening fails at once with a typed error. After that, a lost connection is opened again with
    growing pauses: for ever, or until `retry_attempts` or `retry_for_s` (per outage) are used up.
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
        retry_attempts: int | None = None,
        retry_for_s: float | None = None,
        retry_first_s: float = 0.1,
        retry_max_s: float = 5.0,
        open_timeout_s: float = 30.0,
        silence_s: float = 75.0,
    ) -> None:
        self.reconnects = 0
        self._acks = acks
        self._buffer = buffer
        self._patience = Patience(retry_attempts, retry_for_s, retry_first_s, retry_max_s)
        self._open_timeout_s = open_timeout_s
        self._silence_s = silence_s
        self._doors = Doors(url, id)
        self._link: WsLink | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._early: deque[Message] = deque()
        self._consumed: Item | None = None
        self._unsaid = 0
        self._beyond_since_s: float | None = None
        self._closed = asyncio.Event()
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
        if self._link is not None:
            raise errors.InvalidRequest("add subscriptions before entering the subscriber")
        name = id or secrets.token_hex(8)
        if name in self._subscriptions:
            raise errors.InvalidRequest(f"there is a subscription {name} already")
        self._subscriptions[name] = Subscription(
            name,
            topic,
            where=where,
            filter_=filter,
            start=start,
            priority=priority,
            tenant=tenant,
        )
        return name

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def subscribed(self) -> Subscribed:
        """The gateway's answer to the first subscription; a new one after every reconnection."""
        first = next(iter(self._subscriptions.values()), None)
        if first is None or first.subscribed is None:
            raise errors.InvalidRequest("enter the subscriber first: async with Subscriber(…)")
        return first.subscribed

    @property
    def positions(self) -> dict[int, int]:
        """Of the first subscription: per partition, the last seq that was yielded."""
        first = next(iter(self._subscriptions.values()), None)
        return {} if first is None else first.positions

    def positions_of(self, subscription: str) -> dict[int, int]:
        return dict(self._subscriptions[subscription].positions)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        self._ack_consumed()
        while not self._closed.is_set():
            message = await self._next()
            match message:
                case Event() | Left() | Resync():
                    if (item := self._fresh(message)) is not None:
                        self._consumed = item
                        return item
                case Failure():
                    error = rebuild(message.error)
                    if not isinstance(error, errors.NotNow):
                        raise error
                    await self._reopen(error)
                case "lost":
                    await self._reopen(errors.PeerUnreachable("the gateway closed the connection"))
        raise StopAsyncIteration

    def ack(self, item: Item) -> None:
        """`item` and everything before it, of its partition and subscriptions, is processed.

        A redelivery says nothing about what stands before it, and needs no acknowledgement.
        """
        if not isinstance(item, Resync) and item.redelivery:
            return
        place = (item.partition, item.from_seq - 1 if isinstance(item, Resync) else item.seq)
        for name in _names(item):
            if name in self._subscriptions:
                self._subscriptions[name].acknowledge(*place)
        self._unsaid += 1
        if self._unsaid >= ACK_EVERY or (self._link is not None and self._link.waiting):
            self._say_acks()

    async def close(self) -> None:
        """End; a pending `async for` ends too. Doing it twice is fine."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._link is not None:
            self._say_acks()
            self._link.close()
        await self._doors.close()

    # --- what comes ------------------------------------------------------------------------------

    def _fresh(self, item: Item) -> Item | None:
        """`item` for those subscriptions that don't have it yet."""
        seq = item.from_seq - 1 if isinstance(item, Resync) else item.seq
        again = not isinstance(item, Resync) and item.redelivery
        names = tuple(
            name
            for name in _names(item)
            if name in self._subscriptions
            and (again or self._subscriptions[name].advance(item.partition, seq))
        )
        if not names:
            return None
        if isinstance(item, Resync) or names == item.subscriptions:
            return item
        return msgspec.structs.replace(item, subscriptions=names)

    def _ack_consumed(self) -> None:
        """Whoever asks for the next item is done with the one before."""
        if self._consumed is not None and self._acks == "auto":
            self.ack(self._consumed)
        self._consumed = None

    def _say_acks(self) -> None:
        self._unsaid = 0
        for subscription in self._subscriptions.values():
            said = subscription.acknowledgement()
            if said is not None and self._link is not None:
                self._link.send(said)

    # --- one connection --------------------------------------------------------------------------

    async def _next(self) -> Message | Literal["lost"]:
        if self._early:
            return self._early.popleft()
        if self._link is None:
            return "lost"
        if self._unsaid and not self._link.ready:
            self._say_acks()
        raw = await self._link.receive(self._silence_s)
        if raw is None:
            return "lost"
        try:
            return decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise errors.InvalidRequest(
                "the gateway sent a message that this version does not know; upgrade headgate"
            ) from error

    async def _open(self) -> None:
        """Connect, subscribe, and wait until every subscription has begun."""
        if not self._subscriptions:
            raise errors.InvalidRequest("name a topic to follow: Subscriber(url, topic)")
        if self._link is not None:
            self._link.abort()
            self._link = None
        self._early.clear()
        for subscription in self._subscriptions.values():
            subscription.forget_unsaid()
            if self._acks == "manual":
                subscription.rewind()
        way = await self._doors.way_in()
        try:
            async with asyncio.timeout(self._open_timeout_s):
                while (redirect := await self._subscribe_at(way)) is not None:
                    way.redirected(redirect.url, redirect.gateway)
        except TimeoutError as error:
            raise errors.Timeout(
                f"{way.door} gave no answer within {self._open_timeout_s:g} s"
            ) from error

    async def _subscribe_at(self, way: Way) -> Redirect | None:
        """Connect to the next gateway that is there, and ask; a redirect is its answer, too."""
        if self._link is not None:
            self._link.abort()
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    self._link = await WsLink.open(way.url, self._buffer)
                break
            except TimeoutError:
                way.failed(errors.PeerUnreachable(f"{way.door} gave no answer", url=way.door))
            except errors.PeerUnreachable as error:
                way.failed(error)
        for subscription in self._subscriptions.values():
            self._link.send(subscription.request())
        return await self._until_subscribed(way.door)

    async def _until_subscribed(self, door: str) -> Redirect | None:
        awaited = set(self._subscriptions)
        early: deque[Message] = deque()
        while awaited:
            answer = await self._next()
            if answer == "lost":
                raise errors.PeerUnreachable(f"{door} closed the connection; try again")
            if isinstance(answer, Redirect):
                return answer
            if isinstance(answer, Failure):
                raise self._refusal(answer)
            if not isinstance(answer, Subscribed):
                early.append(answer)
                if len(early) > MOST_EARLY:
                    raise errors.Overloaded(
                        f"{len(early)} events came before all subscriptions had begun; give them "
                        "connections of their own"
                    )
            elif answer.subscription in awaited:
                awaited.discard(answer.subscription)
                self._subscriptions[answer.subscription].begin(answer)
        self._early = early
        self._beyond_since_s = None
        return None

    def _refusal(self, answer: Failure) -> errors.HeadgateError:
        """Why a subscription wasn't begun. A log that ends before what came from it has lost its
        history: its owner moves it on behind that, which is worth waiting for."""
        error = rebuild(answer.error)
        asked = self._subscriptions.get(answer.subscription or "")
        if asked is None or asked.subscribed is None or "head" not in error.details:
            return error
        now_s = asyncio.get_running_loop().time()
        self._beyond_since_s = now_s if self._beyond_since_s is None else self._beyond_since_s
        is_late = now_s - self._beyond_since_s > BEYOND_END_S
        return error if is_late else errors.NotNow(error.message, **error.details)

    async def _reopen(self, reason: errors.NotNow) -> None:
        if await self._patience.reopen(self._open, reason, self._closed):
            self.reconnects += 1


def _names(item: Item) -> tuple[str, ...]:
    return (item.subscription,) if isinstance(item, Resync) else item.subscriptions
