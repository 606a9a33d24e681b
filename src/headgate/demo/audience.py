"""The audience of a run of the demo: subscribers with a filter each, or consumers that share.

Invariants: an audience says which of its watches must get a report before the report is sent, and
passes on every event that one of them gets. Where credentials are needed, a watch asks for
everything, and gets what its grant shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

from headgate.client.subscriber import Event, Subscriber
from headgate.demo.aircraft import Report
from headgate.demo.badges import Badges
from headgate.demo.view import ConsumerView
from headgate.demo.watches import WATCHES, Watch, expected_by

Received = Callable[[int, Event], None]
"""Called with the watch that got an event, and the event."""
Patiently = Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]]
"""Tries something again that may work later."""


class Audience(Protocol):
    @property
    def watches(self) -> tuple[Watch, ...]: ...

    @property
    def grants(self) -> Mapping[str, str]:
        """What each of them must be granted, by name."""

    def expected_by(self, report: Report) -> list[int]:
        """The watches that must get `report`."""

    async def enter(self, stack: AsyncExitStack, patiently: Patiently) -> None:
        """Open everybody; `stack` closes them."""

    def following(self, received: Received) -> list[Coroutine[Any, Any, None]]:
        """What each watch does until it is cancelled."""

    async def halfway(self) -> None:
        """Half of the time is over."""

    def consumers(self, now_s: float) -> tuple[ConsumerView, ...]:
        """The group's consumers, as they are now."""


class Watchers:
    """A subscriber per watch."""

    watches = WATCHES

    def __init__(self, address: str, topic: str, badges: Badges) -> None:
        self._address = address
        self._topic = topic
        self._badges = badges
        self._subscribers: list[Subscriber] = []

    @property
    def grants(self) -> Mapping[str, str]:
        whole = f"subscribe on {self._topic}"
        return {
            watch.name: whole if watch.where is None else f"{whole} where {watch.where}"
            for watch in self.watches
        }

    def expected_by(self, report: Report) -> list[int]:
        return expected_by(report)

    async def enter(self, stack: AsyncExitStack, patiently: Patiently) -> None:
        for watch in self.watches:
            token = self._badges.of(watch.name)
            where = watch.where if token is None else None
            make = partial(Subscriber, self._address, self._topic, where=where, token=token)
            self._subscribers.append(await patiently(partial(_enter, stack, make)))

    def following(self, received: Received) -> list[Coroutine[Any, Any, None]]:
        return [
            _follow(index, subscriber, received)
            for index, subscriber in enumerate(self._subscribers)
        ]

    async def halfway(self) -> None:
        return

    def consumers(self, now_s: float) -> tuple[ConsumerView, ...]:
        return ()


async def _enter(stack: AsyncExitStack, make: Callable[[], Subscriber]) -> Subscriber:
    """A new subscriber for every try: one that failed to open is closed."""
    return await stack.enter_async_context(make())


async def _follow(index: int, subscriber: Subscriber, received: Received) -> None:
    async for item in subscriber:
        if isinstance(item, Event):  # what a Resync leaves out is missed in the summary
            received(index, item)
