"""What operators ask for: topics, and nodes that shall be empty.

Each request has two halves: why not, which looks and changes nothing, and what follows, which is
only asked where nothing speaks against it. Resets of positions are in resetting.py.
"""

from __future__ import annotations

from collections.abc import Collection

from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.groups import consuming
from headgate.decide.coordination.registry import subscribing
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import topic_rules, topology_changes
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import HeadgateError, InvalidRequest, NotFound, NotNow
from headgate.model.control import from_coordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import topic_of
from headgate.model.topology import Placement, Topic

DELETED_MAX = 100
"""Topics that were deleted, of which more is kept than how high their epochs were."""


def learning_refusal(state: State) -> NotNow | None:
    """Why nothing can be decided while the coordinator only learns."""
    if not state.learning.is_on:
        return None
    return NotNow("the coordinator is learning who owns what; try again in a minute")


# --- topics ------------------------------------------------------------------------------------


def creation_refusal(
    state: State, name: str, partitions: int, placement: Placement
) -> HeadgateError | None:
    error = topic_rules.refusal(name, partitions, state.topics) or learning_refusal(state)
    if error is not None:
        return error
    feeding = [one.name for one in state.connectors.values() if name in one.topics]
    if feeding and placement != "keyed":
        # A topic may be deleted while a connector feeds it, which waits for one of that name.
        return InvalidRequest(
            f"connector {feeding[0]} feeds {name}, and changes of one key come one after the "
            "other; create it as a keyed topic, or delete the connector first",
            name=name,
        )
    if not state.is_dropped(name):
        return NotNow(f"the records of the former topic {name} are being dropped", name=name)
    return None


def create_topic(state: State, name: str, partitions: int, placement: Placement) -> list[Effect]:
    state.topics[name] = Topic(name, partitions, placement)
    state.deleted.discard(name)
    state.learning.may_begin = False
    # A lane that still reads a former topic of this name doesn't count for this one, also when no
    # router gets it yet: the coordinator may have died before it could fence the deletion.
    known = [ref for ref in state.topics[name].refs() if ref in state.sources.owners]
    fenced = [state.sources.take(ref, NOBODY) for ref in known]
    return moving.place_ownerless(state, fenced=fenced)


def deletion_refusal(state: State, name: str) -> HeadgateError | None:
    if (error := learning_refusal(state)) is not None:
        return error
    if name in state.topics:
        return None
    return unknown_topic(name, state.topics, is_wanted=False)


def delete_topic(state: State, name: str) -> list[Effect]:
    topic = state.topics.pop(name)
    state.deleted.add(name)
    state.swept.discard(name)
    refs = topic.all_refs()
    state.handoffs.end(refs)
    state.repartitions.end(name)
    readers = {o.node_id for o in state.sources.owned() if o.ref.topic == name}
    # A new epoch, though nobody gets it: a lane that still reads must not count for a topic
    # of the same name that comes later, and the records are dropped under it.
    fenced = tuple(state.sources.take(ref, NOBODY) for ref in refs)
    for ref in refs:
        state.logs.take(ref, NOBODY)
        state.heads.pop(ref, None)
        state.earliest.pop(ref, None)
        state.growth.pop(ref, None)
        state.settling.pop(ref, None)
        state.resets.end(ref)
    change = state.registry.topic_gone(name)
    told = consuming.topic_gone(state, name)
    effects = topology_changes.changed(state, shrunk=readers, fenced=fenced)
    state.deleted_at[name] = state.generation
    return [*effects, *told, *subscribing.spread_change(state, change)]


def doubt_deletions(state: State, names: Collection[str]) -> None:
    """A node has had these topics under higher epochs than their deletion took, so they were
    created again after it, by a coordinator whose memory is lost. They are merely absent, and keep
    what they have: above those epochs, records would be dropped that nobody has given up."""
    state.deleted.difference_update(names)


def letters_swept(state: State, names: Collection[str]) -> list[Effect]:
    """The letters of these deleted topics are gone. Of all that were ever deleted the last
    `DELETED_MAX` are kept, for nodes that were away and have yet to hear of it; of the others only
    how high their epochs were, once nothing is left of them anywhere.

    That is so when the letters were swept after the records were dropped and the writers of both
    were fenced off: so it takes a second time.
    """
    gone = {name for name in names if _is_gone(state, name)}
    ready = sorted(gone & state.swept, key=lambda name: (state.deleted_at[name], name))
    state.swept = gone
    forgotten = set(ready[: max(0, len(state.deleted) - DELETED_MAX)])
    if not forgotten:
        return []
    for name in forgotten:
        state.deleted.discard(name)
        state.swept.discard(name)
        del state.deleted_at[name]
    for table in (state.logs, state.sources):
        refs = [ref for ref in table.owners if ref.topic in forgotten]
        table.forget(refs)
        state.lanes.forget(refs)
        for ref in refs:
            state.heads.pop(ref, None)
            state.growth.pop(ref, None)
    targets = state.groups.targets
    targets.forget([ref for ref in targets.owners if topic_of(ref.topic) in forgotten])
    return topology_changes.changed(state)


def _is_gone(state: State, name: str) -> bool:
    """Whether nobody has records of a deleted topic, or could write a letter or a position."""
    is_fenced = all(ref.topic != name for ref in state.unfenced)
    return name in state.deleted and is_fenced and state.is_dropped(name)


def left_behind(state: State, name: str) -> dict[PartitionRef, Fence]:
    """The partitions of a topic that was deleted, under the epochs that its deletion took. None
    where the topic is back, or where nobody is sure yet."""
    if name not in state.deleted or state.learning.is_on:
        return {}
    return {o.ref: Fence(o.epoch) for o in state.sources.all() if o.ref.topic == name}


# --- nodes -------------------------------------------------------------------------------------


def drain_refusal(state: State, node_id: str, *, draining: bool) -> HeadgateError | None:
    member = state.members.get(node_id)
    if member is None:
        return NotFound(f"there is no node {node_id}: see `headgate node list`", node=node_id)
    role = member.node().role
    if role not in ("ingest", "router"):
        return InvalidRequest(
            f"a {role} owns no partitions; stop {node_id}, and its subscribers connect anew",
            node=node_id,
        )
    others = [m for m in state.of_role(role) if m is not member]
    if draining and all(m.hello.node_id in state.draining for m in others):
        return InvalidRequest(
            f"{node_id} is the only {role} that isn't draining; start another one first",
            node=node_id,
        )
    return None


def restart_refusal(state: State, node_id: str) -> HeadgateError | None:
    member = state.members.get(node_id)
    if member is None:
        return NotFound(f"there is no node {node_id}: see `headgate node list`", node=node_id)
    if member.session is None:
        return NotNow(
            f"{node_id} is lost, so nobody can tell it: start it where it runs", node=node_id
        )
    return None


def restart(state: State, node_id: str) -> list[Effect]:
    """Tell a node to begin anew; when it stops, it says itself that it will be back."""
    session = state.members[node_id].session
    assert session is not None
    return [Send(session, from_coordinator.Restart())]


def drain(state: State, node_id: str, now_ms: int, *, draining: bool) -> list[Effect]:
    """Let a node give everything away and get nothing, or end that."""
    if draining:
        state.draining.add(node_id)
    else:
        state.draining.discard(node_id)
    if state.learning.is_on:
        return [Persist(state.to_store())]
    return [Persist(state.to_store()), *moving.rebalance(state, now_ms)]
