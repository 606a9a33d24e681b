"""An operator puts the position of a source partition elsewhere: back, or past records.

First the lane that reads it lets go: it settles what is in flight and saves the position, so that
what was delivered is known and comes again marked as such. Then the partition gets a new epoch and
stays where it is, so that the way is that of every change of owner: durable, fenced (here: reset
instead of merely claimed), told to everybody, and only then does its router begin with it anew. A
store that is away holds the partition until it is back.

What is wanted is durable before a lane is asked to let go, and that it is done is durable before a
lane may read on (`Cluster.fenced`). So a coordinator that dies anywhere in between leaves it to the
next one, and it is never done again after the position has moved.

Invariant: what is skipped or repeated is an operator's explicit choice, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.decide.coordination.effects import Effect, Persist
from headgate.decide.coordination.lanes import windows
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.decide.lane.checkpoints import Reset
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import HeadgateError, InvalidRequest, NotFound, NotNow
from headgate.model.api import ResetTo
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """`settled` is where the position goes; `repeats` records come again, `skips` never come."""

    settled: int
    repeats: int
    skips: int


def refusal(state: State, ref: PartitionRef, reset: Reset | None = None) -> HeadgateError | None:
    """Why there is no such partition, or nothing can be decided about it now; None when it can.

    While a topic gets another number of partitions, its positions stay where the order of keys
    relies on them. But what can't be read holds that up, and all that comes behind it, until it is
    skipped: forward they go.
    """
    topic = state.topics.get(ref.topic)
    if topic is None:
        return unknown_topic(ref.topic, state.topics)
    refs = topic.all_refs()
    if ref not in refs:
        last = len(refs) - 1
        return NotFound(
            f"topic {ref.topic} has no partition {ref.partition}; it has 0 to {last}", name=str(ref)
        )
    under_way = topic.repartition
    if under_way is not None and under_way.phase != "announced":
        is_draining = under_way.phase == "draining"
        if not is_draining or (reset is not None and not reset.only_forward):
            until = ", or skip what can't be read" if is_draining else ""
            return NotNow(
                f"{ref.topic} is on its way to {under_way.to} partitions ({under_way.phase}); "
                f"reset its positions when that is over{until}",
                topic=ref.topic,
            )
    if ref in state.handoffs.by_ref:
        return NotNow(f"{ref} is on its way to another router; try again in a moment")
    return None


def plan(
    ref: PartitionRef, to: ResetTo, *, earliest: int, head: int, settled: int, resync: bool
) -> PlannedReset:
    """What a reset of a partition with these records does; raises InvalidRequest."""
    if to == "earliest":
        target = earliest - 1
    elif to == "latest":
        target = head
    elif earliest <= to <= head + 1:
        target = to - 1
    else:
        raise InvalidRequest(
            f"the log has records {earliest} to {head} of {ref}, so the next one can't be {to}; "
            f"choose one up to {head + 1}",
            earliest=earliest,
            head=head,
        )
    if resync and target < settled:
        raise InvalidRequest(
            "going back skips nothing, so there is nothing to resync; leave --resync out"
        )
    return PlannedReset(target, max(0, settled - target), max(0, target - settled))


def wanted(
    state: State, ref: PartitionRef, to: ResetTo, plan: PlannedReset, *, resync: bool
) -> Reset:
    """What carries `plan` out."""
    topic = state.topics.get(ref.topic)
    is_under_way = topic is not None and topic.repartition is not None
    only_forward = to == "latest" or (is_under_way and not plan.repeats)
    return Reset(plan.settled, resync, only_forward)


def begin(state: State, ref: PartitionRef, reset: Reset, now_ms: int) -> list[Effect]:
    """The lane that reads `ref` lets go; it is read again from where `reset` puts it. Only where
    nothing speaks against it (`refusal`)."""
    state.resets.begin(ref, reset, now_ms)
    kept: list[Effect] = [Persist(state.to_store())]
    owner = state.sources.owners.get(ref)
    asked = windows.let_go(state, [owner] if owner is not None else [])
    return kept + asked + advance(state, now_ms)


def released(state: State, owners: Iterable[Owner]) -> list[Effect]:
    """A lane has let go."""
    return [
        effect
        for owner in owners
        if owner.ref in state.resets.releasing and state.sources.owners.get(owner.ref) == owner
        for effect in _put(state, owner.ref)
    ]


def advance(state: State, now_ms: int) -> list[Effect]:
    """Put the positions that no lane reads on from any more, or whose release took too long."""
    effects: list[Effect] = []
    for ref, (_, since_ms) in list(state.resets.releasing.items()):
        is_late = now_ms - since_ms >= state.timing.handoff_ms
        if is_late or not state.lanes.may_be_read(ref):
            effects += _put(state, ref)
    return effects


def _put(state: State, ref: PartitionRef) -> list[Effect]:
    known = state.sources.owners.get(ref)
    router_id = known.node_id if known is not None else NOBODY
    state.resets.released(ref)
    owner = state.sources.take(ref, router_id)
    return changed(state, grown={router_id} - {NOBODY}, fenced=(owner,))


def is_done(state: State, ref: PartitionRef) -> bool:
    return ref not in state.resets
