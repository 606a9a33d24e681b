"""What is true of the coordinator's state after every event, whatever happened in whatever order.

Each invariant is a name, a sentence and a predicate that yields what contradicts it. They are about
the state alone: what they forbid can't come from anything that a node says, which is looked at
before it is believed (plausible.py), so a contradiction is a fault of this program. A decision is
checked before it takes the place of the state (drafts.py): what contradicts itself is neither kept
nor told.

What grows is guarded where it is written, at no cost: epochs in ownership.py, generations in
publishing.py. The rest costs as much as there is to look at, and `scale` says of what:
`members` (nodes, lanes, groups: a handful) is looked at after every decision, `partitions` after
every decision that is to be kept, which costs more than that by itself, and `everybody` (clients,
subscriptions) in tests only. docs/adr/0011-one-leader-fenced-by-its-key.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.log.lineage import contradictions as contradictions_of
from headgate.decide.planning.starting_point import is_weight
from headgate.model.api import MAX_PARTITIONS
from headgate.model.connector import intake_ref
from headgate.model.groups import MAX_TARGETS, group_id

Scale = Literal["members", "partitions", "everybody"]
SCALES: tuple[Scale, ...] = ("members", "partitions", "everybody")
ALWAYS: tuple[Scale, ...] = ("members",)
KEPT: tuple[Scale, ...] = ("members", "partitions")


class Contradiction(AssertionError):
    """Two things that the state says can't both be true; the sentence names the invariant."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """`broken` yields a phrase for everything that contradicts what it `says`."""

    name: str
    says: str
    scale: Scale
    broken: Callable[[State], Iterator[str]]


def contradictions(state: State, scales: Collection[Scale] = SCALES) -> Iterator[str]:
    """Everything that is wrong with `state`, one sentence each."""
    for invariant in _of(tuple(scales)):
        for what in invariant.broken(state):
            yield f"{invariant.name}: {what}"


def check(state: State, scales: Collection[Scale] = SCALES) -> None:
    """Raises Contradiction for the first thing that is wrong."""
    for sentence in contradictions(state, scales):
        raise Contradiction(sentence)


@cache
def _of(scales: tuple[Scale, ...]) -> tuple[Invariant, ...]:
    return tuple(invariant for invariant in INVARIANTS if invariant.scale in scales)


# --- who is there ------------------------------------------------------------------------------


def _member_sessions(state: State) -> Iterator[str]:
    for node_id, member in state.members.items():
        if node_id != member.hello.node_id or node_id in state.expected:
            yield f"{node_id} is known as {member.hello.node_id}, or twice"
        session = member.session
        if session is not None and state.sessions.get(session) != (member.hello.role, node_id):
            yield f"{node_id} speaks on session {session}, of {state.sessions.get(session)}"


def _every_session(state: State) -> Iterator[str]:
    for session, (role, node_id) in state.sessions.items():
        if session in state.clients:
            yield f"session {session} is of {role} {node_id}, and of a client"
        if role != "lane":
            member = state.members.get(node_id)
            if member is None or member.session != session or member.hello.role != role:
                yield f"session {session} is of {role} {node_id}, which is {member}"


def _lane_sessions(state: State) -> Iterator[str]:
    for session, lane in state.lanes.by_session.items():
        if state.sessions.get(session) != ("lane", lane.hello.node_id):
            yield f"lane {session} has the session of {state.sessions.get(session)}"


def _weights(state: State) -> Iterator[str]:
    for node_id, member in state.members.items():
        if not is_weight(member.hello.weight):
            yield f"{node_id} has {member.hello.weight}"


# --- who owns what -----------------------------------------------------------------------------


def _owners(state: State) -> Iterator[str]:
    if state.learning.is_on:
        return  # no node has said yet which topics there are
    counts = {topic.name: len(topic.all_refs()) for topic in state.topics.values()}
    for role, table in (("ingest", state.logs), ("router", state.sources)):
        known = {node.id for node in state.nodes() if node.role == role}
        for ref, owner in table.owners.items():
            if ref is not owner.ref and ref != owner.ref:
                yield f"{ref} is listed as {owner}"
            if owner.node_id == NOBODY:
                continue
            if owner.node_id not in known or not 0 <= ref.partition < counts.get(ref.topic, 0):
                yield f"{owner} is no {role} that is known, or of no topic that there is"


def _handoffs(state: State) -> Iterator[str]:
    owners, known = state.sources.owners, {*state.members, *state.expected}
    for ref, handoff in state.handoffs.by_ref.items():
        move = handoff.move
        owner = owners.get(ref)
        if owner is None or owner.node_id not in (move.from_id, move.to_id):
            yield f"{move} is of {owner}"
        if move.ref != ref or move.from_id == move.to_id or move.to_id not in known:
            yield f"{move} leads nowhere"


def _fences(state: State) -> Iterator[str]:
    for ref, owner in state.unfenced.items():
        known = state.sources.owners.get(ref)
        if known is None or known.epoch < owner.epoch:
            yield f"{owner} is to be fenced, and {known} is known"
    if strangers := {*state.unclaimed, *state.again_from} - state.unfenced.keys():
        yield f"{strangers} couldn't be claimed, and nobody tries to"
    for router_id, generation in state.unassigned.items():
        member = state.members.get(router_id)
        if member is None or member.hello.role != "router" or generation > state.generation:
            yield f"{router_id} waits for generation {generation}"


def _resets(state: State) -> Iterator[str]:
    resets = state.resets
    for ref in (*resets.releasing, *resets.putting):
        topic = state.topics.get(ref.topic)
        if topic is None or ref not in topic.all_refs():
            yield f"{ref} is to be reset and doesn't exist"
    for ref in resets.putting:
        if ref in resets.releasing or ref not in state.unfenced:
            yield f"{ref} is put elsewhere without a fence"


def _reading(state: State) -> Iterator[str]:
    yield from state.lanes.contradictions()
    for ref, held in state.lanes.running().items():
        owner = state.sources.owners.get(ref)
        if owner is None or owner.epoch != held.epoch:
            yield f"{held} reads, and {owner} is known"


def _published(state: State) -> Iterator[str]:
    if state.learning.is_on:
        return  # a coordinator that learns isn't certain yet
    decided, out = state.described(state.generation), state.topology()
    for field in decided.__struct_fields__:
        if getattr(decided, field) != getattr(out, field):
            yield f"the topology's {field} aren't what is decided"


# --- topics and groups -------------------------------------------------------------------------


def _topics(state: State) -> Iterator[str]:
    for name, topic in state.topics.items():
        if name != topic.name or not 1 <= topic.partitions <= MAX_PARTITIONS:
            yield f"{name} is {topic}"
        yield from contradictions_of(topic)
    for name in state.deleted:
        if name in state.topics or name not in state.deleted_at:
            yield f"{name} is deleted, and there"


def _groups(state: State) -> Iterator[str]:
    groups = state.groups
    for name, group in groups.by_id.items():
        if name != group.id or group.id != group_id(group.topic, group.name):
            yield f"{name} is {group}"
        if not 1 <= group.targets <= MAX_TARGETS:
            yield f"{name} has {group.targets} targets"
        if not state.learning.is_on and group.topic not in state.topics:
            yield f"{name} is of a topic that isn't there"


def _connectors(state: State) -> Iterator[str]:
    for name, connector in state.connectors.items():
        if name != connector.name or not connector.routes:
            yield f"{name} is {connector}"
    if state.learning.is_on:
        return  # no node has said yet which connectors it reads
    owners = state.intakes.owners
    if not owners and not state.connectors:
        return
    known = {n.id for n in state.nodes() if n.role == "ingest"}
    if differing := owners.keys() ^ {intake_ref(name) for name in state.connectors}:
        yield f"{differing} are connectors without a row, or rows without one"
        return
    for connector in state.connectors.values():
        owner = owners[intake_ref(connector.name)]
        if owner.ref != intake_ref(connector.name) or owner.node_id not in {NOBODY, *known}:
            yield f"{owner} is no ingest node that is known"
        if owner.epoch < connector.beginning:
            yield f"{connector.name} begins in {connector.beginning}, and {owner} is known"


def _consumers(state: State) -> Iterator[str]:
    for key, consumer in state.groups.consumers.items():
        if key != consumer.key or consumer.group_id not in state.groups.by_id:
            yield f"{key} is {consumer}"


def _targets(state: State) -> Iterator[str]:
    groups = state.groups
    for ref, owner in groups.targets.owners.items():
        if ref != owner.ref or (owner.node_id != NOBODY and not groups.has(ref)):
            yield f"{owner} is of no group that there is"
    for ref, handoff in groups.handoffs.by_ref.items():
        known = groups.targets.owners.get(ref)
        if known is None or known.node_id != handoff.move.from_id or handoff.move.ref != ref:
            yield f"{handoff.move} is of {known}"


# --- subscriptions -----------------------------------------------------------------------------


def _floor(state: State) -> Iterator[str]:
    registry = state.registry
    if registry.floor > registry.revision:
        yield f"the floor is {registry.floor}, of revision {registry.revision}"
    for session, lane in state.lanes.by_session.items():
        if lane.adopted > registry.revision:
            yield f"lane {session} has adopted {lane.adopted} of {registry.revision}"


def _holders(state: State) -> Iterator[str]:
    for gateway_id in state.registry.holders():
        member = state.members.get(gateway_id)
        if member is None or member.hello.role != "gateway":
            yield f"{gateway_id} has subscriptions, and is {member}"


def _kept(state: State) -> Iterator[str]:
    known = {*state.members, *state.registry.awaited}
    if strangers := state.registry.kept.keys() - known:
        yield f"{strangers} are kept, and neither here nor waited for"


def _registry(state: State) -> Iterator[str]:
    yield from state.registry.contradictions()


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "members speak for themselves",
        "A member that is connected has a session of its own, under its name and role.",
        "members",
        _member_sessions,
    ),
    Invariant(
        "every session has one owner",
        "Every session belongs to the member or client that has it, and to nobody else.",
        "everybody",
        _every_session,
    ),
    Invariant(
        "lanes have sessions",
        "A lane that counts as running has a session under its router's name.",
        "members",
        _lane_sessions,
    ),
    Invariant(
        "a plan is possible",
        "Every member has a weight that the planner takes.",
        "members",
        _weights,
    ),
    Invariant(
        "owners are known",
        "What is owned is a partition of a topic, owned by a node of the right role that is known.",
        "partitions",
        _owners,
    ),
    Invariant(
        "handoffs lead somewhere",
        "A partition on its way is with its donor or its recipient, and the recipient is known.",
        "members",
        _handoffs,
    ),
    Invariant(
        "fences are awaited by whom they concern",
        "What waits for a fence waits under its last epoch or an earlier one, and is tried again "
        "where it couldn't be had; only routers that are members wait for an assignment.",
        "members",
        _fences,
    ),
    Invariant(
        "resets are of what there is",
        "A position that is to be put elsewhere is of a partition that exists, in one phase, and "
        "is put only with a fence.",
        "members",
        _resets,
    ),
    Invariant(
        "one lane reads",
        "A partition is read by one lane, under the epoch of its owner, or is in doubt, never "
        "both.",
        "partitions",
        _reading,
    ),
    Invariant(
        "what is decided is out",
        "The topology that was published last says what is decided.",
        "partitions",
        _published,
    ),
    Invariant(
        "topics are there or gone",
        "A topic has a number of partitions that a topic can have, and isn't deleted.",
        "members",
        _topics,
    ),
    Invariant(
        "groups are of topics",
        "A group has the id that its topic and name make, targets, and a topic that exists.",
        "members",
        _groups,
    ),
    Invariant(
        "connectors are read once",
        "Every connector has a row of its own, with an ingest node that is known or with nobody, "
        "under an epoch that isn't below its beginning; nobody else has one.",
        "members",
        _connectors,
    ),
    Invariant(
        "consumers are in groups",
        "A consumer is in a group that exists.",
        "members",
        _consumers,
    ),
    Invariant(
        "targets are of groups",
        "What a consumer owns is a target of a group; one on its way is with its donor.",
        "partitions",
        _targets,
    ),
    Invariant(
        "nobody adopts what isn't there",
        "Neither the adoption floor nor a lane is beyond the newest revision.",
        "members",
        _floor,
    ),
    Invariant(
        "gateways hold subscriptions",
        "Only gateways that are members have subscriptions.",
        "members",
        _holders,
    ),
    Invariant(
        "who is kept is waited for",
        "A gateway whose subscribers go on as they are is a member, or no lane hears of any "
        "subscription before it is back.",
        "members",
        _kept,
    ),
    Invariant(
        "subscriptions are counted",
        "The subscriptions, those of each gateway and tenant, and those with a time-to-live are "
        "the same ones.",
        "everybody",
        _registry,
    ),
)
