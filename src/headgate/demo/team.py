"""Consumers that share the aircraft of the demo: each aircraft with one of them at a time.

To the books the whole team is one watch, which must get every report once and every aircraft's in
order, from whichever member of the team. Half-way one of them leaves, and the others take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headgate.client.consumer import Consumer
from headgate.demo.aircraft import Report
from headgate.demo.audience import Patiently, Received
from headgate.demo.badges import Badges
from headgate.demo.figures import Meter
from headgate.demo.view import ConsumerView
from headgate.demo.watches import Watch
from headgate.model.client_messages import Event

GROUP = "radar"


@dataclass(slots=True)
class _Member:
    consumer: Consumer
    received: int = 0
    left: bool = False
    meter: Meter = field(default_factory=Meter)


class Team:
    """`size` consumers of one group for about `aircraft` keys."""

    watches = (Watch(GROUP, None, lambda report: True),)  # noqa: ARG005  # one signature for all

    def __init__(
        self, address: str, topic: str, badges: Badges, *, size: int, aircraft: int
    ) -> None:
        self._address = address
        self._topic = topic
        self._badges = badges
        self._size = size
        self._aircraft = aircraft
        self._members: list[_Member] = []
        self._over = asyncio.Event()

    @property
    def grants(self) -> Mapping[str, str]:
        return {GROUP: f"consume on {self._topic} in {GROUP}"}

    def expected_by(self, report: Report) -> list[int]:
        return [0]

    async def enter(self, stack: AsyncExitStack, patiently: Patiently) -> None:
        for number in range(self._size):
            make = partial(
                Consumer,
                self._address,
                self._topic,
                GROUP,
                consumer=f"consumer-{number + 1}",
                keys_expected=self._aircraft,
                token=self._badges.of(GROUP),
            )
            self._members.append(_Member(await patiently(partial(_enter, stack, make))))

    def following(self, received: Received) -> list[Coroutine[Any, Any, None]]:
        return [self._consume(member, received) for member in self._members]

    async def _consume(self, member: _Member, received: Received) -> None:
        async for item in member.consumer:
            if isinstance(item, Event):
                member.received += 1
                received(0, item)
        await self._over.wait()  # that a member has left doesn't end the run

    async def halfway(self) -> None:
        """The last one leaves, if others stay."""
        if len(self._members) > 1:
            self._members[-1].left = True
            await self._members[-1].consumer.close()

    def consumers(self, now_s: float) -> tuple[ConsumerView, ...]:
        return tuple(
            ConsumerView(
                member.consumer.id,
                () if member.left else tuple(sorted(member.consumer.targets)),
                member.received,
                member.meter.sample(member.received, at_s=now_s),
                member.left,
            )
            for member in self._members
        )


async def _enter(stack: AsyncExitStack, make: Callable[[], Consumer]) -> Consumer:
    """A new consumer for every try: one that failed to open is closed."""
    return await stack.enter_async_context(make())
