"""An operator has a consumer group go back, or past records: what that means, and if it can be.

Where each position is to be is noted in the store, at every target and partition, without a fence:
the owners go on meanwhile. Then each target gets a new epoch, by the way that every change of an
epoch takes, and the consumer that claims it begins where it is noted. So nothing is handed out
under two owners, each key stays in its order, and the consumer is told: `resync` with the reason
`reset` where records come again, with `gap` where some are left out. A coordinator that dies in
between has noted some of it, which is taken up with the next change of owners: the operator, who
was told of the failure, repeats it, and what is wanted last counts.

Invariant: what comes again or is left out is an operator's explicit choice, shown before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headgate.decide.coordination.state import State
from headgate.decide.log.lineage import lineage_of
from headgate.errors import HeadgateError, NotFound, NotNow
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.position import Position
from headgate.model.topology import Topic


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """`to` is where all targets of the group go in this partition; they are from `lowest` to
    `highest` now. How many of its records are of which target nobody has counted, so these are the
    most that come again, or never."""

    partition: int
    to: int
    lowest: int
    highest: int

    @property
    def repeats_max(self) -> int:
        return max(0, self.highest - self.to)

    @property
    def skips_max(self) -> int:
        return max(0, self.to - self.lowest)


@dataclass(frozen=True, slots=True)
class Wish:
    """Where one position is to be; `until`: records up to there may have been processed. A position
    that is there already gets the note all the same: an earlier wish is over, and records that were
    processed ahead of it come again."""

    ref: PartitionRef
    to: int
    now: int
    until: int

    @property
    def goes_ahead(self) -> bool:
        return self.to > self.now


def refusal(
    state: State, group_id: str, wanted: Collection[int] | None = None
) -> HeadgateError | None:
    """Why there is no such group, or its positions stay where the order of keys relies on them;
    `wanted`: for the partitions for which it was decided."""
    group = state.groups.by_id.get(group_id)
    topic = None if group is None else state.topics.get(group.topic)
    if group is None or topic is None:
        known = ", ".join(f"{one.topic}/{one.name}" for one in state.groups.all()[:10])
        there = f"there are {known}" if known else "there is none"
        return NotFound(f"no consumer group is called {_short(group_id)}; {there}")
    under_way = topic.repartition
    if under_way is not None and under_way.phase != "announced":
        return NotNow(
            f"{group.topic} is on its way to {under_way.to} partitions ({under_way.phase}); reset "
            "its groups when that is over",
            topic=group.topic,
        )
    if wanted is not None and set(wanted) != {ref.partition for ref in topic.all_refs()}:
        return NotNow(f"{group.topic} has got other partitions meanwhile; try again")
    return None


def in_order(topic: Topic, wanted: Mapping[int, int]) -> dict[int, int]:
    """`wanted` with what has to come along: a consumer that gets older events of a key again gets
    the newer ones, too, which are in another partition where the topic was repartitioned since. By
    the time alone they needn't: the clocks of those who appended them may differ."""
    lineage, found = lineage_of(topic), dict(wanted)
    for number, seq in wanted.items():
        for other, begin in lineage.behind(number, seq).items():
            found[other] = min(begin, found.get(other, begin))
    return found


def plan(
    group: Group, positions: Mapping[PartitionRef, Position], wanted: Mapping[int, int]
) -> list[PlannedPartition]:
    """`wanted` has, by partition, the seq after which the group is to begin."""
    planned: list[PlannedPartition] = []
    for partition, to in sorted(wanted.items()):
        now = [_now(group, ref, positions) for ref in group.position_refs(partition)]
        planned.append(PlannedPartition(partition, to, min(now), max(now)))
    return planned


def wishes(
    group: Group,
    positions: Mapping[PartitionRef, Position],
    wanted: Mapping[int, int],
    heads: Mapping[int, int],
) -> list[Wish]:
    """What to note where."""
    return [
        Wish(ref, to, now, max(now, heads[partition]))
        for partition, to in sorted(wanted.items())
        for ref in group.position_refs(partition)
        for now in [_now(group, ref, positions)]
    ]


def _now(group: Group, ref: PartitionRef, positions: Mapping[PartitionRef, Position]) -> int:
    """Where a target begins if nothing is changed."""
    stored = positions.get(ref, Position())
    if stored.settled or stored.is_back:
        return stored.settled
    return group.begins_after(ref.partition)


def _short(group_id: str) -> str:
    return group_id.removeprefix("@group/")[:200]
