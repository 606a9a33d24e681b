"""Brings what a connector's reader has read to the owners of the partitions, and insists.

Invariants: a partition is handed something only behind what it has taken; so many are handed
something at the same time as the nodes have room for; a partition that can't take it now is tried
until it does, or is another one (StaleVersion) or lacks something (IntakeGap).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headgate import errors
from headgate.decide.connectors.intake_portions import portions
from headgate.decide.connectors.plan import ConnectorPlan
from headgate.model.connector import Connector
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.model.topology import Topic
from headgate.ports.log import Taken
from headgate.ports.machine import Machine
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.standing import IntakeStanding
from headgate.services.ingest.connectors.taking_in import TakingIn
from headgate.services.ingest.partitions import Partitions
from headgate.tasks import Helpers

T = TypeVar("T")

AT_ONCE = 32
"""So many partitions are handed something at the same time: a node has a bound on what waits there,
and others write there, too."""


class HandingIn:
    """For one connector, under the epoch of its reader."""

    def __init__(
        self,
        connector: Connector,
        epoch: int,
        *,
        partitions: Partitions,
        taking_in: TakingIn,
        standing: IntakeStanding,
        machine: Machine,
        options: IntakeOptions,
    ) -> None:
        self._connector = connector
        self._epoch = epoch
        self._partitions = partitions
        self._taking_in = taking_in
        self._standing = standing
        self._machine = machine
        self._options = options
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def claim(self, topic: Topic, ref: PartitionRef) -> Taken:
        """Nobody of a lower epoch hands it anything from then on."""
        mark = IntakeMark(
            connector=self._connector.name,
            epoch=self._epoch,
            beginning=self._connector.beginning,
            partitions=topic.partitions,
        )
        while True:
            try:
                return await self._taken(ref, mark, (), version=topic.version)
            except errors.Overloaded as error:
                # To begin anew with all of them would be more of the same.
                self._standing.say("retrying", error.message)
            await self._partitions.change(timeout_s=self._options.backoff.initial_s)

    async def hand_in(
        self,
        planned: ConnectorPlan,
        ref: PartitionRef,
        events: Sequence[Event],
        *,
        upto: str,
        ends: bool = False,
    ) -> None:
        """Bring `ref` up to `upto`, in portions, until it is there."""
        intake = planned.topics[ref.topic]
        for portion, end in portions(
            events, upto, most_events=self._options.events, most_bytes=self._options.bytes
        ):
            after = planned.reached.get(ref, "")
            if not ends and after >= end:
                continue
            mark = IntakeMark(
                connector=self._connector.name,
                epoch=self._epoch,
                beginning=self._connector.beginning,
                partitions=intake.partitions,
                after=after,
                upto=end,
                ends=ends,
                forgets_below=planned.forgets_below(ref),
                snapshot=planned.snapshots.at(end),
            )
            taken = await self._insist(
                lambda mark=mark, portion=portion: self._taken(  # type: ignore[misc]
                    ref, mark, portion, version=intake.version
                ),
                planned,
            )
            planned.reached[ref] = taken.position
            self._standing.took(taken.added)

    def check_versions(self, planned: ConnectorPlan) -> None:
        """Raises StaleVersion where a topic isn't what the plan was made for."""
        for name, intake in planned.topics.items():
            topic = self._partitions.topic(name)
            if (topic.version, topic.partitions) != (intake.version, intake.partitions):
                raise errors.StaleVersion(
                    f"{name} was repartitioned, or created anew: version {topic.version} with "
                    f"{topic.partitions} partitions follows {intake.version} with "
                    f"{intake.partitions}"
                )

    async def _taken(
        self, ref: PartitionRef, mark: IntakeMark, events: Sequence[Event], *, version: int
    ) -> Taken:
        async with self._gate:
            return await self._taking_in.take_in(ref, mark, events, version=version)

    async def _insist(
        self, hand_in: Callable[[], Awaitable[Taken]], planned: ConnectorPlan
    ) -> Taken:
        """Try until it is taken. Raises StaleVersion and IntakeGap, which no second try mends."""
        tries = 0
        while True:
            try:
                return await hand_in()
            except (errors.NotNow, errors.StorageFailed) as error:
                self._standing.say("retrying", error.message)
            delay_s = self._options.backoff.delay_s(tries, jitter=self._machine.jitter())
            tries += 1
            await self._partitions.change(timeout_s=delay_s)
            self.check_versions(planned)


async def answered(work: Awaitable[T]) -> T | errors.HeadgateError:
    """What `work` returns, or the error it raises, for a caller that looks later."""
    try:
        return await work
    except errors.HeadgateError as error:
        return error


async def all_of(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """All results; where one fails, the others are ended before that is raised."""
    async with Helpers() as helpers:
        started = [helpers.start(one) for one in awaitables]
        if started:
            await asyncio.wait(started, return_when=asyncio.FIRST_EXCEPTION)
        return [one.result() for one in sorted(started, key=_failed_first)]


def _failed_first(future: asyncio.Future[Any]) -> bool:
    return not (future.done() and not future.cancelled() and future.exception() is not None)
