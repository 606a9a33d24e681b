"""Claims positions and letters for the coordinator, under the epochs that it has given out.

A store may take seconds to answer, or to say that it can't. The term decides on meanwhile and
doesn't wait for that, so an answer may be late: each says what was claimed under which epoch, and
counts only where that is still wanted. Invariant: of one partition there is never more than one
claim under way. A second one under the same epoch could come after the lane that was told of the
first, and take that lane for an unknown one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from headgate.decide.coordination.effects import FenceCheckpoints, Unclaimed
from headgate.decide.lane.checkpoints import put_after
from headgate.errors import Fenced, HeadgateError, StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.evidence import Skip
from headgate.model.groups import Group
from headgate.model.position import Position
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader
from headgate.services.coordinator.putting_back import put_back
from headgate.telemetry import LogLine

log = structlog.get_logger()

HEADS_TIMEOUT_S = 1.0
"""For the ends of all logs whose positions can't be claimed, together."""
SKIPS_KEPT = 1_000
"""Resets past records, of which no subscriber was told, that are remembered to explain them."""


@dataclass(slots=True)
class FenceOutcome:
    """What `Cluster.fenced` wants to know."""

    fenced: list[Owner] = field(default_factory=list)
    overtaken: list[tuple[PartitionRef, int]] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    put_back: set[PartitionRef] = field(default_factory=set)


class Fencing:
    """`begun` says for which of those that are wanted to call `claimed` now."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        letters: LetterStore,
        reader: LogReader,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._checkpoints = checkpoints
        self._letters = letters
        self._reader = reader
        self._wall_ms = wall_ms
        self._skips: deque[Skip] = deque(maxlen=SKIPS_KEPT)
        self._under_way: set[PartitionRef] = set()

    def begun(self, owners: Sequence[Owner]) -> list[Owner]:
        """Those of `owners` of which no claim is under way: the others are asked for again."""
        free = [owner for owner in owners if owner.ref not in self._under_way]
        self._under_way.update(owner.ref for owner in free)
        return free

    async def claimed(self, owners: Sequence[Owner], wanted: FenceCheckpoints) -> FenceOutcome:
        """Claim the positions of these, which have `begun`, and put each where it is wanted; then
        the letters."""
        try:
            return await self._claimed(owners, wanted)
        finally:
            self._under_way.difference_update(owner.ref for owner in owners)

    async def _claimed(self, owners: Sequence[Owner], wanted: FenceCheckpoints) -> FenceOutcome:
        claims = (self._claim(owner, wanted) for owner in owners)
        answers = await asyncio.gather(*claims, return_exceptions=True)
        outcome = FenceOutcome()
        failed: dict[Owner, str] = {}
        for owner, answer in zip(owners, answers, strict=True):
            match answer:
                case bool(is_back):
                    outcome.fenced.append(owner)
                    outcome.put_back |= {owner.ref} if is_back else set()
                case Fenced():
                    outcome.overtaken.append((owner.ref, max(answer.epoch, owner.epoch)))
                case StorageFailed():
                    ref = str(owner.ref)
                    log.warning(LogLine.CHECKPOINT_FAILED, partition=ref, error=answer.message)
                    failed[owner] = answer.message
                case _:
                    raise answer
        outcome.fenced = await self._claim_letters(outcome.fenced, outcome.overtaken)
        outcome.put_back &= {owner.ref for owner in outcome.fenced}  # or it is done again
        heads = await self._heads([one.ref for one in failed if one.ref not in wanted.again])
        outcome.unclaimed = [Unclaimed(one, why, heads.get(one.ref)) for one, why in failed.items()]
        return outcome

    async def _heads(self, refs: Iterable[PartitionRef]) -> dict[PartitionRef, int]:
        """Where the logs of these end now, as far as it comes."""
        heads: dict[PartitionRef, int] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEADS_TIMEOUT_S):
                for ref in refs:
                    with contextlib.suppress(HeadgateError):
                        heads[ref] = (await self._reader.extent(ref)).head
        return heads

    async def _claim_letters(
        self, owners: Collection[Owner], overtaken: list[tuple[PartitionRef, int]]
    ) -> list[Owner]:
        """Those whose letters are claimed, too. Positions may be lost while the letters are not,
        so an epoch that is high enough for the one may be too low for the other."""
        left = list(owners)
        while left:
            try:
                await self._letters.claim({owner.ref: Fence(owner.epoch) for owner in left})
            except Fenced as error:
                [lost] = [one for one in left if _names(error, one.ref)]
                overtaken.append((lost.ref, max(error.epoch, lost.epoch)))
                left.remove(lost)
            except StorageFailed as error:
                log.warning(LogLine.LETTERS_FAILED, error=error.message)
                return []
            else:
                break
        return left

    async def _claim(self, owner: Owner, fences: FenceCheckpoints) -> bool:
        """Claim the partition's position, and put it where an operator wants it; returns whether
        that is back."""
        fence = Fence(owner.epoch)
        position = await self._checkpoints.claim(owner.ref, fence)
        reset = fences.resets.get(owner.ref)
        wanted = put_after(position, reset, again=fences.again.get(owner.ref))
        if wanted is None:
            return False
        settled = wanted.settled
        is_back = wanted is reset and reset.goes_back_from(position)
        if is_back:
            await self._put_groups_back(owner.ref, settled, position, fences)
        await self._checkpoints.reset(owner.ref, fence, settled, resync=wanted.resync)
        log.warning(
            LogLine.POSITION_RESET,
            partition=str(owner.ref),
            before=position.settled,
            now=settled,
            resync=wanted.resync,
        )
        if settled > position.settled and not wanted.resync:
            self._skips.append(Skip(self._wall_ms(), owner.ref, position.settled, settled))
        return is_back

    def skip_of(self, ref: PartitionRef, seq: int) -> Skip | None:
        """The last that went past the record in silence, as far as this term remembers."""
        found = (
            one for one in self._skips if one.ref == ref and one.after_seq < seq <= one.settled
        )
        return max(found, key=lambda one: one.at_ms, default=None)

    async def _put_groups_back(
        self, ref: PartitionRef, settled: int, position: Position, fences: FenceCheckpoints
    ) -> None:
        """Before the partition itself: were it put back alone, the groups would be forgotten. Those
        partitions go along that are `behind` it: a consumer that gets older events of a key again
        gets the newer ones behind them."""
        wanted = {ref.partition: (settled, max(position.settled, position.redeliver_to))}
        for number, begin in fences.behind.get(ref, {}).items():
            other = PartitionRef(ref.topic, number)
            wanted[number] = begin, (await self._reader.extent(other)).head
        for group in [one for one in fences.groups if one.topic == ref.topic]:
            claimed = await self._checkpoints.of_group(group.id)
            puts = [
                put_back(
                    self._checkpoints,
                    place,
                    *back,
                    claimed=claimed,
                    epoch=fences.epochs.get(place.topic, 0),
                )
                for number, back in wanted.items()
                for place in group.position_refs(number)
            ]
            await asyncio.gather(*puts)

    async def check_groups(self, refs: Iterable[PartitionRef], groups: Collection[Group]) -> None:
        """Raises StorageFailed where what one of `groups` has processed of these can't be read."""
        places = [place for ref in refs for place in _of_groups(ref, groups)]
        await asyncio.gather(*[self._check_readable(place) for place in places])

    async def _check_readable(self, ref: PartitionRef) -> None:
        with contextlib.suppress(Fenced):  # after nobody nobody may claim it, once it is read
            await self._checkpoints.claim(ref, Fence(0), after=())


def _of_groups(ref: PartitionRef, groups: Iterable[Group]) -> list[PartitionRef]:
    """Where groups keep what they have processed of `ref`."""
    return [
        one
        for group in groups
        if group.topic == ref.topic
        for one in group.position_refs(ref.partition)
    ]


def _names(error: Fenced, ref: PartitionRef) -> bool:
    return (error.details["topic"], error.details["partition"]) == (ref.topic, ref.partition)
