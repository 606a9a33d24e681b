"""What of a stored state fits together.

A change too large for one transaction is stored in parts, in the order of the fields, and the
coordinator that stored it may have died or failed in between: so a topic may be gone while its
moves are still there, and an owner be stored before the node that it is. What is left over is left
out here, so that a coordinator begins with a state in which every invariant holds; nothing is lost
by it, because what was cut off was never announced.

Invariant: what was stored whole comes back as it was, and no epoch is ever forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.model.connector import intake_ref
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredReset, StoredState
from headgate.model.topology import Move, Owner


def fitting(stored: StoredState) -> StoredState:
    """`stored` without what belongs to nothing that is there. While the coordinator learns,
    partitions may well belong to nodes and topics that haven't been named yet."""
    topics = {topic.name for topic in stored.topics}
    refs = {ref for topic in stored.topics for ref in topic.all_refs()}
    roles = {node.id: node.role for node in stored.nodes}
    groups = [group for group in stored.groups if stored.learning or group.topic in topics]
    targets = {ref for group in groups for ref in group.refs()}

    def of(role: str, owners: Iterable[Owner]) -> list[Owner]:
        if stored.learning:
            return list(owners)
        nodes = {node_id for node_id, known in roles.items() if known == role}
        return [o if o.ref in refs and o.node_id in nodes else _nobodys(o) for o in owners]

    gone: set[str] = set() if stored.learning else set(stored.deleted) - topics
    logs = [_overtaken(o) if o.ref.topic in gone else o for o in stored.logs]
    sources = of("router", stored.sources)
    shared = [o if o.ref in targets else _nobodys(o) for o in stored.targets]
    read = stored.intakes if stored.learning else _read(stored)
    read_refs = {o.ref for o in read}
    owner_of = {o.ref: o.node_id for o in sources}
    consumer_of = {o.ref: o.node_id for o in shared}
    return msgspec.structs.replace(
        stored,
        above=max(stored.above, *(o.epoch for o in stored.intakes if o.ref not in read_refs), 0),
        # Only those that are waited for before a lane hears of any subscription.
        kept=tuple(one for one in stored.kept if one.gateway_id in stored.gateways),
        deleted=tuple(name for name in stored.deleted if name not in topics),
        logs=tuple(of("ingest", logs)),
        sources=tuple(sources),
        moves=tuple(m for m in stored.moves if m.to_id in roles and _is_under_way(m, owner_of)),
        groups=tuple(groups),
        targets=tuple(shared),
        target_moves=tuple(
            m for m in stored.target_moves if consumer_of.get(m.ref, NOBODY) == m.from_id != NOBODY
        ),
        resets=tuple(_reset(one, owner_of) for one in stored.resets if one.ref in refs),
        intakes=read,
    )


def _read(stored: StoredState) -> tuple[Owner, ...]:
    """A row for every connector, and for nothing else. One whose row is gone was about to be, and
    `above` is at least as high as its epochs were."""
    nodes = {node.id for node in stored.nodes if node.role == "ingest"}
    known = {o.ref: o if o.node_id in nodes else _nobodys(o) for o in stored.intakes}
    rows = []
    for connector in stored.connectors:
        ref = intake_ref(connector.name)
        epoch = max(stored.above, connector.beginning)
        rows.append(known.get(ref, Owner(ref, NOBODY, epoch)))
    return tuple(sorted(rows, key=lambda owner: owner.ref))


def _nobodys(owner: Owner) -> Owner:
    return Owner(owner.ref, NOBODY, owner.epoch)


def _overtaken(owner: Owner) -> Owner:
    """Its topic was deleted, and the epoch that took wasn't stored: it is the next one."""
    return owner if owner.node_id == NOBODY else Owner(owner.ref, NOBODY, owner.epoch + 1)


def _is_under_way(move: Move, owner_of: Mapping[PartitionRef, str]) -> bool:
    owner = owner_of.get(move.ref, NOBODY)
    return owner != NOBODY and owner in (move.from_id, move.to_id) and move.from_id != move.to_id


def _reset(reset: StoredReset, owner_of: Mapping[PartitionRef, str]) -> StoredReset:
    """One whose new epoch wasn't stored is still to be released."""
    if reset.ref in owner_of:
        return reset
    return msgspec.structs.replace(reset, is_released=False)
