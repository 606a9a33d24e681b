"""A topic gets another number of partitions while it is written, read and delivered.

    announced   the partitions to come get owners, who open them; nothing waits yet
    sealing     every owner refuses appends from here on, durably, and says where its partition ends
    fenced      the new version, and where each partition of the former one ends, are kept and told
                in one step; producers go on. Lanes read the former version only
    draining    every gateway knows the new version, so lanes read on as far as the order of keys
                allows (decide.log.lineage)
    drained     everything of the former versions is settled
    finalized   and all nodes and clients route by the new version, or had the time to

Where it is stands in the topic itself (`Topic.repartition`), so it is kept and told with it, and a
coordinator that is killed anywhere in between leaves it to the next one. Before the fence it can be
given up, and everything is as it was; behind it there is no way back, and none is needed: nothing
waits for anybody then but lanes for each other.

Invariants: a partition is sealed under the owner's epoch that is the present one when the fence is
kept, and nobody appends to what is sealed, so no record is ever behind a boundary. The fence is
kept before any node hears of it. One topic has one repartition at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.repartitions import LIFE, Event, Phase, Progress
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.decide.log.lineage import boundaries
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import HeadgateError, InvalidRequest, NotNow
from headgate.model.api import MAX_PARTITIONS
from headgate.model.control.to_coordinator import Sealed
from headgate.model.event import PartitionRef
from headgate.model.topology import FormerVersion, Owner, Repartition, Topic

NAMED_MAX = 8

# --- from operators ----------------------------------------------------------------------------


def refusal(state: State, name: str, to: int) -> HeadgateError | None:
    """Why a topic can't be brought to `to` partitions now; None when it can."""
    topic = state.topics.get(name)
    if topic is None:
        return unknown_topic(name, state.topics, is_wanted=False)
    if not 1 <= to <= MAX_PARTITIONS:
        return InvalidRequest(
            f"a topic has 1 to {MAX_PARTITIONS} partitions, not {to}", partitions=to
        )
    if (under_way := topic.repartition) is not None:
        return NotNow(
            f"{name} is on its way to {under_way.to} partitions ({under_way.phase}); wait until "
            f"that is over: `headgate topic describe {name}` shows it",
            topic=name,
            phase=under_way.phase,
        )
    if to == topic.partitions:
        return InvalidRequest(f"{name} has {to} partitions already", partitions=to)
    if any(ref.topic == name for ref in (*state.resets.releasing, *state.resets.putting)):
        return NotNow(f"a partition of {name} is being reset; try again in a moment", topic=name)
    return None


def begin(state: State, name: str, to: int, now_ms: int) -> list[Effect]:
    """Only where nothing speaks against it (`refusal`)."""
    announced = Repartition(to, "announced", state.generation + 1)
    state.topics[name] = replace(state.topics[name], repartition=announced)
    state.repartitions.end(name)
    state.repartitions.of(name, now_ms)
    return moving.place_ownerless(state)


# --- from nodes --------------------------------------------------------------------------------


def sealed(state: State, generation: int, ends: Iterable[Sealed], now_ms: int) -> None:
    """An ingest node has applied `generation`, and has these sealed by it."""
    for one in ends:
        topic = state.topics.get(one.ref.topic)
        under_way = None if topic is None else topic.repartition
        if under_way is not None and generation >= under_way.since:
            state.repartitions.of(one.ref.topic, now_ms).sealed[one.ref] = one


# --- step by step ------------------------------------------------------------------------------


def is_under_way(state: State) -> bool:
    return any(topic.repartition is not None for topic in state.topics.values())


def advance(state: State, now_ms: int) -> list[Effect]:
    """Bring each repartition as far as it can go now."""
    effects: list[Effect] = []
    if state.learning.is_on:
        return effects
    for name in sorted(state.topics):
        effects += _forget_versions(state, state.topics[name])
        while (event := _happened(state, state.topics[name], now_ms)) is not None:
            effects += _follows(state, state.topics[name], event, now_ms)
    return effects


def _happened(state: State, topic: Topic, now_ms: int) -> Event | None:
    """The event that takes the topic's repartition on; None while it waits, and then the
    repartition says for what."""
    under_way = topic.repartition
    if under_way is None:
        return None
    progress = state.repartitions.of(topic.name, now_ms)
    waited_ms = now_ms - progress.since_ms
    timing = state.timing
    match under_way.phase:
        case "announced":
            progress.waits_for = _unserved(state, topic, under_way.since)
            if progress.waits_for:
                return Event.TOO_LATE if waited_ms >= timing.announce_ms else None
            progress.waits_for = _unread(state, topic)
            is_ready = not progress.waits_for or waited_ms >= timing.read_ms
            return Event.OPENED if is_ready else None
        case "sealing":
            progress.waits_for = _unsealed(state, topic, progress)
            if not progress.waits_for:
                return Event.SEALED
            return Event.TOO_LATE if waited_ms >= timing.seal_ms else None
        case "fenced":
            progress.waits_for = _uninformed(state, under_way.since)
            return None if progress.waits_for else Event.KNOWN
        case "draining":
            progress.waits_for = _unsettled(state, topic)
            return None if progress.waits_for else Event.SETTLED
        case "drained":
            is_adopted = state.adoption_floor(topic.name) >= under_way.since
            progress.waits_for = "" if is_adopted else _unadopted(state, topic, under_way.since)
            return Event.ADOPTED if is_adopted or waited_ms >= timing.adoption_ms else None


def _follows(state: State, topic: Topic, event: Event, now_ms: int) -> list[Effect]:
    assert topic.repartition is not None, "something has happened to it"
    phase = LIFE.after(Phase(topic.repartition.phase), event)
    progress = state.repartitions.of(topic.name, now_ms)
    progress.since_ms = now_ms
    match phase:
        case Phase.SEALING:
            progress.sealed.clear()
            since = state.generation + 1
            state.topics[topic.name] = _in(topic, "sealing", since)
            return changed(state)
        case Phase.FENCED:
            state.topics[topic.name] = _fenced(topic, progress, since=state.generation + 1)
            return changed(state)
        case Phase.DRAINING | Phase.DRAINED:
            state.topics[topic.name] = _in(topic, phase.value, topic.repartition.since)
            return changed(state)
        case Phase.ABORTED:
            why = progress.waits_for
            state.repartitions.end(topic.name)
            state.repartitions.given_up[topic.name] = why
            return _given_up(state, topic)
        case _:
            state.repartitions.end(topic.name)
            for ref in topic.all_refs():
                state.earliest.pop(ref, None)  # said by who may not have known of this version
            state.topics[topic.name] = replace(topic, repartition=None)
            return changed(state)


def _in(topic: Topic, phase: str, since: int) -> Topic:
    assert topic.repartition is not None
    return replace(topic, repartition=replace(topic.repartition, phase=phase, since=since))


def _fenced(topic: Topic, progress: Progress, *, since: int) -> Topic:
    """The topic in its new version: each partition begins behind where it was sealed."""
    assert topic.repartition is not None
    to, ends = topic.repartition.to, progress.sealed
    heads = [ends[ref].head for ref in topic.all_refs()]
    original = topic.original or topic.partitions
    former = FormerVersion(
        topic.version,
        topic.after or (0,) * topic.partitions,
        tuple(heads[: topic.partitions]),
    )
    return replace(
        topic,
        partitions=to,
        version=topic.version + 1,
        after=tuple(heads[:to]),
        former=(*topic.former, former),
        original=original,
        begins=(*topic.begins, *heads[original + len(topic.begins) :]),
        repartition=Repartition(to, "fenced", since),
    )


def _given_up(state: State, topic: Topic) -> list[Effect]:
    """Nobody needs the partitions that were to come."""
    state.topics[topic.name] = before = replace(topic, repartition=None)
    needless = set(topic.all_refs()) - set(before.all_refs())
    return without(state, needless)


def without(state: State, refs: Iterable[PartitionRef]) -> list[Effect]:
    """These have no owner from now on, also if lanes still read them."""
    gone = sorted(refs)
    state.handoffs.end(gone)
    readers, fenced = set[str](), list[Owner]()
    for ref in gone:
        state.logs.release(ref)
        if (owner := state.sources.owners.get(ref)) is not None and owner.node_id != NOBODY:
            readers.add(owner.node_id)
            fenced.append(state.sources.take(ref, NOBODY))
    return changed(state, shrunk=readers, fenced=fenced)


def _forget_versions(state: State, topic: Topic) -> list[Effect]:
    """Those of which the log has nothing any more, and lanes have nothing to settle or to send."""
    kept = topic.former
    if topic.repartition is not None:
        return []
    while kept and all(
        state.earliest.get(ref, 0) > last and state.lanes.is_rid_of(ref, last)
        for ref, last in zip(topic.all_refs(), kept[0].last, strict=False)
    ):
        kept = kept[1:]
    if kept == topic.former:
        return []
    state.topics[topic.name] = replace(topic, former=kept)
    return changed(state)


# --- what it waits for -------------------------------------------------------------------------


def _owner(state: State, ref: PartitionRef) -> tuple[Owner | None, Member | None]:
    owner = state.logs.owners.get(ref)
    return owner, None if owner is None else state.members.get(owner.node_id)


def _unserved(state: State, topic: Topic, since: int) -> str:
    for ref in topic.all_refs():
        owner, member = _owner(state, ref)
        if owner is None or owner.node_id == NOBODY:
            return f"no ingest node has {ref}"
        if member is None or member.session is None:
            return f"ingest node {owner.node_id}, which has {ref}, isn't connected"
        if not state.has_adopted(member, since) or ref in member.unopened:
            return f"ingest node {owner.node_id} hasn't opened {ref} yet"
    return ""


def _unread(state: State, topic: Topic) -> str:
    """A lane takes a while to begin with a new partition: better before there is something in
    it."""
    for ref in topic.all_refs():
        owner = state.sources.owners.get(ref)
        if owner is not None and owner.node_id != NOBODY and not state.lanes.is_running(ref):
            return f"no lane of router {owner.node_id} reads {ref} yet"
    return ""


def _unsealed(state: State, topic: Topic, progress: Progress) -> str:
    for ref in topic.all_refs():
        owner, _ = _owner(state, ref)
        known = progress.sealed.get(ref)
        if owner is None or owner.node_id == NOBODY:
            return f"no ingest node has {ref}"
        if known is None or known.epoch != owner.epoch:
            return f"ingest node {owner.node_id} hasn't sealed {ref} yet"
    return ""


def _uninformed(state: State, since: int) -> str:
    for node in state.expected.values():
        if node.role == "gateway":
            return f"gateway {node.id} isn't back yet"
    for gateway in state.of_role("gateway"):
        if not state.has_adopted(gateway, since):
            return f"gateway {gateway.hello.node_id} doesn't know the new version yet"
    return ""


def _unsettled(state: State, topic: Topic) -> str:
    behind = [
        ref for ref, last in sorted(boundaries(topic).items()) if state.lanes.settled(ref) < last
    ]
    if not behind:
        return ""
    named = ", ".join(str(ref.partition) for ref in behind[:NAMED_MAX])
    more = f" and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
    return f"records from before the cutover are unsettled in partition {named}{more}"


def _unadopted(state: State, topic: Topic, since: int) -> str:
    for node in state.of_role("ingest"):
        if node.session is not None and not state.has_adopted(node, since):
            return f"ingest node {node.hello.node_id} doesn't route by the new version yet"
    clients = [client for client in state.clients.values() if client.routes(topic.name)]
    behind = sum(state.out.adopted("client", one.generation) < since for one in clients)
    if not behind:
        return "no ingest node is there that routes by the new version"
    return f"{behind} of {len(clients)} producers don't route by the new version yet"
