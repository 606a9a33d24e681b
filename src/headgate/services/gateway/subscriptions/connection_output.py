"""What one connection writes: answers to what it was asked, and events as they come.

Invariant: while the wire holds as much as it should, no event is written, and answers wait
in a queue; a peer that lets more than a few of those wait isn't read from until it takes them.
Where several subscriptions of the connection have the same record next, it is written once. An
event passes the queue of its subscription only while `open_to` names that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from headgate.decide.feed.fair_order import Place, Turns
from headgate.decide.feed.queue import Item, Resync
from headgate.ports.connection import Wire
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.wire import own_part, resync_message

MAX_WAITING_ANSWERS = 64


class Outlet:
    """Implements subscriber.Line."""

    __slots__ = (
        "_closed",
        "_flushing",
        "_only",
        "_paused",
        "_turns",
        "_wire",
        "answers",
        "deaf",
        "open_to",
        "send",
    )

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.send: Callable[[bytes], None] = wire.send
        """Write one message at once."""
        self._turns: Turns[LiveSubscription] = Turns(_place_of)
        self._flushing: asyncio.Handle | None = None
        self._paused = False
        self._closed = False
        self._only: LiveSubscription | None = None
        """The one subscription of the connection, if there is one."""
        self.open_to: LiveSubscription | None = None
        """`_only`, while the outlet is free."""
        self.answers: deque[bytes] = deque()
        self.deaf = False
        """Whether the peer isn't read from, because it doesn't read what it is answered."""

    @property
    def unsent_bytes(self) -> int:
        return self._wire.unsent_bytes

    def let_through(self, subscriber: LiveSubscription | None) -> None:
        """Events for `subscriber` may be written past its queue, whenever there is room: it is the
        only one of its connection."""
        self._only = subscriber
        self._open_or_shut()

    @property
    def free(self) -> bool:
        """Whether an event may be written now: there is room, and nothing waits before it."""
        return not self._paused and not self.answers and not self._closed

    def _open_or_shut(self) -> None:
        self.open_to = self._only if self.free else None

    def answer(self, message: bytes) -> None:
        if not self._paused and not self.answers:
            self.send(message)
            return
        self.answers.append(message)
        self._open_or_shut()
        if len(self.answers) >= MAX_WAITING_ANSWERS and not self.deaf:
            self.deaf = True
            self._wire.stop_reading()

    def offer(self, subscriber: LiveSubscription, *, alone: bool) -> None:
        """`subscriber`, the only one of its connection or not, may have something to send."""
        if alone:
            self._flush_one(subscriber)
            return
        self._turns.add(subscriber)
        if self._flushing is None:
            # Soon, not now: the same record may be on its way to others of this connection.
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def write(self) -> None:
        """Write what was offered, without waiting for others."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flush()

    def pause(self) -> None:
        self._paused = True
        self._open_or_shut()

    def resume(self, subscribers: Sequence[LiveSubscription]) -> None:
        """The wire has room again: answers first, then whatever waits for `subscribers`."""
        self._paused = False
        while self.answers and not self._paused:
            self.send(self.answers.popleft())
        if self.deaf and not self.answers:
            self.deaf = False
            self._wire.read_on()
        self._open_or_shut()
        for subscriber in subscribers:
            self.offer(subscriber, alone=len(subscribers) == 1)

    def shut(self) -> None:
        """No event is written any more."""
        self._closed = True
        self._open_or_shut()

    def close(self) -> None:
        self.shut()
        self.answers.clear()
        if self._flushing is not None:
            self._flushing.cancel()

    # --- events ----------------------------------------------------------------------------------

    @property
    def _open(self) -> bool:
        return not self._closed and not self._wire.is_closing()

    def _flush_one(self, subscriber: LiveSubscription) -> None:
        """Write what waits for as long as the wire takes it."""
        if not self._open:
            return
        send, tail = self.send, subscriber.tail
        while not self._paused and (item := subscriber.take()) is not None:
            if isinstance(item, Resync):
                self.send(resync_message(subscriber.name, subscriber.topic, item))
            else:
                send(item.value + tail)

    def _flush(self) -> None:
        self._flushing = None
        while not self._paused and self._open and (group := self._turns.next()):
            self._send_together(group)

    def _send_together(self, group: list[LiveSubscription]) -> None:
        """One record for several subscriptions is one message."""
        names: dict[bytes, list[bytes]] = {}
        for subscriber in group:
            item = subscriber.take()
            self._turns.taken(subscriber)
            if isinstance(item, Resync):
                self.send(resync_message(subscriber.name, subscriber.topic, item))
            elif item is not None:
                names.setdefault(item.value, []).append(subscriber.encoded_name)
        for value, encoded in names.items():
            self.send(value + own_part(*encoded))


def _place_of(subscriber: LiveSubscription) -> Place | None:
    head = None if subscriber.closing is not None else subscriber.feed.peek()
    if head is None:
        return None
    # What is left out goes before everything else, and never together with a record; so does what
    # comes again, which may stand before it in one queue and behind it in another.
    seq = head.seq if isinstance(head, Item) else -1
    return (subscriber.topic, head.partition, seq)
