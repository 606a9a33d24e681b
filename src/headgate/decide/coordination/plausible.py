"""Whether what a node says can be true at all, before any of it is believed.

A node may run another version, be told nonsense by its configuration, or have a fault of its own.
Whatever it says is refused with a sentence for its log, or harms nobody else: no number that the
coordinator must go above is beyond what a stream or a store can carry, nothing is owned by nobody,
no topic or group is larger than one may be, and each role says only what its role has to say.

Never changes anything, and never refuses what a node of this version says in good faith.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import get_args

from headgate.decide.access import grants
from headgate.decide.connectors.rules import CONNECTORS_MAX
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import topic_rules
from headgate.decide.log.lineage import contradictions
from headgate.decide.planning.starting_point import WEIGHT_MAX, WEIGHT_MIN, is_weight
from headgate.errors import InvalidRequest
from headgate.model.access import TOKENS_MAX, ApiToken
from headgate.model.api import MAX_PARTITIONS, NAME_PATTERN
from headgate.model.connector import ConnectorReport, intake_ref
from headgate.model.control import to_coordinator
from headgate.model.control.message import Message
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayReport,
    IngestReport,
    LaneReport,
    RouterReport,
)
from headgate.model.control.to_coordinator import Hello, JoinGroup, SessionRole, ToCoordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import MAX_TARGETS, Group, group_id, is_target
from headgate.model.topology import Owner, Topic, Topology

NUMBERS_END = 1 << 62
"""Generations, revisions, epochs and the like stay below: nobody counts so far, and a number that
is one above is still within the 64 bits that streams and stores have for a number."""
NAME_CHARS_MAX = 200
_DIGEST = re.compile(r"[0-9a-f]{64}")

_EVERYBODY: Collection[str] = get_args(SessionRole)
_SPEAKERS: Mapping[type[Message], Collection[str]] = {
    IngestReport: ("ingest",),
    ConnectorReports: ("ingest",),
    to_coordinator.ConnectorTooLow: ("ingest",),
    RouterReport: ("router",),
    to_coordinator.EndMyWindow: ("router",),
    to_coordinator.AckSubscriptions: ("lane",),
    to_coordinator.Claimed: ("lane",),
    to_coordinator.MayClaim: ("lane",),
    LaneReport: ("lane",),
    to_coordinator.Released: ("lane", "gateway"),
    to_coordinator.EpochTooLow: ("ingest", "gateway"),
    to_coordinator.StillInHand: ("gateway",),
    to_coordinator.Evidence: ("lane", "gateway"),
    to_coordinator.NoRoom: ("gateway",),
    GatewayReport: ("gateway",),
    to_coordinator.Register: ("gateway",),
    to_coordinator.Unregister: ("gateway",),
    to_coordinator.RegistrationComplete: ("gateway",),
    to_coordinator.JoinGroup: ("gateway",),
    to_coordinator.LeaveGroup: ("gateway",),
    # What a coordinator without memory believes: a client could have it believe anything.
    to_coordinator.Recall: ("ingest", "router", "gateway"),
    to_coordinator.CheckIn: _EVERYBODY,
    to_coordinator.Goodbye: _EVERYBODY,
    to_coordinator.AckTopology: _EVERYBODY,
}
"""Who says what; what isn't here, nobody says."""


def hello_refusal(state: State, hello: Hello) -> str:
    """Why no node can be what `hello` says; empty when one can."""
    if not _is_name(hello.node_id):
        return f"a node needs a name of 1 to {NAME_CHARS_MAX} characters; set client_id"
    if not is_weight(hello.weight):
        return (
            f"{hello.node_id} has the weight {hello.weight:g}; set {hello.role}.weight to a number "
            f"from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
        )
    known = max(state.generation, state.registry.revision)
    numbers = (hello.generation, hello.revision, hello.window, hello.attempt, hello.assignment)
    if not all(_is_number(number, known) for number in numbers):
        return f"{hello.node_id} counts further than anybody can: {_shown(numbers)}"
    if hello.role in ("gateway", "client") and (hello.owns or hello.wants):
        return f"a {hello.role} owns no partitions; run one version of Headgate everywhere"
    owners = _owners_refusal((*hello.owns, *hello.wants), hello.node_id)
    return owners or _intakes_refusal(hello)


def message_refusal(state: State, role: SessionRole, message: ToCoordinator) -> str:
    """Why a node of that role can't mean `message`; empty when it can."""
    kind = type(message)
    if role not in _SPEAKERS.get(kind, ()):
        return (
            f"{kind.__name__} isn't what a node of role {role} says; run one version of Headgate "
            "everywhere"
        )
    match message:
        case to_coordinator.AckTopology() if role != "ingest":
            if message.undropped or message.unopened or message.sealed:
                return f"a {role} opens, seals and drops no log partitions"
        case to_coordinator.EpochTooLow(ref, epoch, own):
            if is_target(ref) != (role == "gateway"):
                who = "a gateway" if role == "gateway" else "an ingest node"
                return f"{who} has nothing to do with {str(ref)[:NAME_CHARS_MAX]}"
            if not _is_number(epoch) or not _is_number(own):
                return f"epoch {epoch} of {ref} is beyond what anybody can count to"
        case to_coordinator.ConnectorTooLow(name, epoch, own):
            if not _is_number(epoch) or not _is_number(own):
                short = name[:NAME_CHARS_MAX]
                return f"epoch {epoch} of {short} is beyond what anybody can count to"
        case ConnectorReports(reports):
            return _reports_refusal(reports)
        case to_coordinator.Recall(topology, tokens, revision) if state.learning.is_on:
            return _topology_refusal(topology) or _tokens_refusal(state, tokens, revision)
        case _:
            pass
    return ""


def join_refusal(state: State, message: JoinGroup) -> str:
    """Why no consumer can be in the group that `message` describes; empty when one can."""
    name = group_id(message.topic, message.group)
    if message.known is not None:
        if reason := _group_refusal(message.known):
            return reason
        if message.known.id != name:
            return f"the group is called {message.known.id}, not {name}"
    group = state.groups.by_id.get(name) or message.known
    targets = 0 if group is None else group.targets
    for owner in message.owns:
        if owner.ref.topic != name or not 0 <= owner.ref.partition < targets:
            return f"{owner.ref} is no target of group {message.group}"
    return _owners_refusal(message.owns, message.consumer)


def _intakes_refusal(hello: Hello) -> str:
    """Why a node can't read the connectors that it says."""
    if hello.intakes and hello.role != "ingest":
        return f"a {hello.role} reads no connectors; run one version of Headgate everywhere"
    for owner in hello.intakes:
        if reason := _connector_refusal(owner.ref):
            return reason
    return _owners_refusal(hello.intakes, hello.node_id)


def _connector_refusal(ref: PartitionRef) -> str:
    """Why that can't stand for a connector."""
    is_one = ref.partition == 0 and re.fullmatch(NAME_PATTERN, ref.topic)
    return "" if is_one else f"{str(ref)[:NAME_CHARS_MAX]} is no connector"


def _reports_refusal(reports: Collection[ConnectorReport]) -> str:
    if len(reports) > CONNECTORS_MAX:
        return f"{len(reports)} connectors are more than there can be"
    for one in reports:
        counts = (one.epoch, one.taken, one.left_out)
        told = (one.lag_ms, one.lag_records, one.history_ms, one.held_bytes)
        known = [n for n in told if n is not None]
        if not all(_is_number(number) for number in (*counts, *known)):
            return f"{one.name[:NAME_CHARS_MAX]} counts further than anybody can"
        if reason := _connector_refusal(intake_ref(one.name)):
            return reason
    return ""


def _connectors_refusal(topology: Topology) -> str:
    """Why there can't be the connectors that a topology has."""
    names = [one.name for one in topology.connectors]
    if len(names) != len(set(names)):
        return "it recalls a connector twice"
    for one in topology.connectors:
        if not one.routes or not _is_number(one.beginning):
            return f"it recalls {one.name[:NAME_CHARS_MAX]} without a route, or a beginning"
    for ref in [*map(intake_ref, names), *(owner.ref for owner in topology.intakes)]:
        if reason := _connector_refusal(ref):
            return f"it recalls what can't be: {reason}"
    return _epochs_refusal(topology.intakes)


def _topic_refusal(topic: Topic) -> str:
    """Why there can't be such a topic."""
    if (error := topic_rules.refusal(topic.name, topic.partitions)) is not None:
        return f"it recalls what can't be: {error.message}"
    to = topic.partitions if topic.repartition is None else topic.repartition.to
    seqs = [seq for one in topic.former for seq in (*one.after, *one.last)]
    numbers = (topic.version, *topic.after, *seqs)
    if not 1 <= to <= MAX_PARTITIONS or not all(_is_number(number) for number in numbers):
        return f"it recalls versions of {topic.name} that nobody can count to"
    return next((f"it recalls what can't be: {what}" for what in contradictions(topic)), "")


def _topology_refusal(topology: Topology) -> str:
    """Why no coordinator can have published `topology`."""
    if not _is_number(topology.generation):
        return f"generation {topology.generation} is beyond what anybody can count to"
    for topic in topology.topics:
        if reason := _topic_refusal(topic):
            return reason
    if not all(_is_name(node.id) for node in topology.nodes):
        return "it recalls a node without a name"
    for group in topology.groups:
        if reason := _group_refusal(group):
            return reason
    names = [*(t.name for t in topology.topics), *(group.id for group in topology.groups)]
    nodes = [node.id for node in topology.nodes]
    if len(names) != len(set(names)) or len(nodes) != len(set(nodes)):
        return "it recalls a topic, a group or a node twice"
    for owners in (topology.logs, topology.sources, topology.targets):
        if reason := _owners_refusal(owners):
            return reason
    for owner in topology.emptied:
        if owner.node_id != NOBODY or owner.ref.topic not in topology.deleted:
            return f"it recalls {owner.ref} as left by a topic, and it has an owner"
        if (error := topic_rules.refusal(owner.ref.topic, 1)) is not None:
            return f"it recalls what can't be: {error.message}"
    if reason := _epochs_refusal(topology.emptied):
        return reason
    if not all(is_target(owner.ref) for owner in topology.targets):
        return "it recalls a target of no group"
    return _connectors_refusal(topology)


def _tokens_refusal(state: State, tokens: Collection[ApiToken], revision: int) -> str:
    """Why no coordinator can have told these API tokens, where they would be taken up."""
    if not _is_number(revision) or len(tokens) > TOKENS_MAX:
        return f"it recalls {len(tokens)} tokens of revision {revision}, which can't be"
    if revision <= state.tokens_revision:
        return ""
    if len({one.name for one in tokens}) != len(tokens):
        return "it recalls a token twice"
    if len({one.digest for one in tokens}) != len(tokens):
        return "it recalls one token under two names"
    for one in tokens:
        is_one = re.fullmatch(NAME_PATTERN, one.name) and _DIGEST.fullmatch(one.digest)
        if not is_one or not _is_number(one.created_ms) or not _is_number(one.expires_ms):
            return f"it recalls {one.name[:NAME_CHARS_MAX]}, which is no token"
        try:
            for grant in one.grants:
                grants.check(grant)
        except InvalidRequest as error:
            return f"it recalls what {one.name} can't be granted: {error.message}"
    return ""


def _group_refusal(group: Group) -> str:
    if group.id != group_id(group.topic, group.name):
        return f"group {group.name[:NAME_CHARS_MAX]} is called {group.id[:NAME_CHARS_MAX]}"
    if not 1 <= group.targets <= MAX_TARGETS:
        return f"a group has 1 to {MAX_TARGETS} targets, not {group.targets}"
    return ""


def _owners_refusal(owners: Collection[Owner], node_id: str = "") -> str:
    """Why these can't be owners, all of them `node_id` where that is given."""
    for owner in owners:
        if not _is_name(owner.node_id) or (node_id and owner.node_id != node_id):
            who = owner.node_id[:NAME_CHARS_MAX] or "nobody"
            return f"{owner.ref} is said to belong to {who}" + (f" by {node_id}" if node_id else "")
    return _epochs_refusal(owners, node_id)


def _epochs_refusal(owners: Collection[Owner], node_id: str = "") -> str:
    for owner in owners:
        if not _is_partition(owner.ref) or not _is_number(owner.epoch):
            return f"there can't be {owner.ref} under epoch {owner.epoch}"
    if len({owner.ref for owner in owners}) != len(owners):
        return f"{node_id or 'it'} names a partition twice"
    return ""


def _is_partition(ref: PartitionRef) -> bool:
    return 0 <= ref.partition < (MAX_TARGETS if is_target(ref) else MAX_PARTITIONS)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= NAME_CHARS_MAX


def _is_number(number: int, known: int = 0) -> bool:
    return 0 <= number < max(NUMBERS_END, known + 1)


def _shown(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
