"""Which partitions change hands, as an operator is told: from which node to which, and what is left
to do.

Pure: made from the plan and from /v1/status, before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headgate.model.api import PlannedMove, Status, TopicPartition

Kind = Literal["log", "source", "target", "connector"]
ROLE_OF: Mapping[Kind, str] = {"log": "ingest", "source": "router"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """All partitions of a kind that go from one node to another."""

    kind: Kind
    from_id: str
    to_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NodeChange:
    """How many partitions a node has, and how many it will have."""

    role: str
    node_id: str
    before: int
    after: int


def grouped(moves: Iterable[PlannedMove]) -> list[Transfer]:
    groups: dict[tuple[Kind, str, str], list[tuple[str, int]]] = {}
    for move in moves:
        key = (move.kind, move.from_id, move.to_id)
        groups.setdefault(key, []).append((move.topic, move.partition))
    return [Transfer(*key, tuple(groups[key])) for key in sorted(groups)]


def shares(status: Status, moves: Sequence[PlannedMove]) -> list[NodeChange]:
    """The nodes that own partitions, with what is planned and what is on its way already."""
    found = []
    under_way = [m for m in status.moves if m.phase == "releasing"]
    for node in status.nodes:
        kind = next((kind for kind, role in ROLE_OF.items() if role == node.role), None)
        if kind is None:
            continue
        mine = [move for move in moves if move.kind == kind]
        after = node.partitions + sum(move.to_id == node.id for move in mine)
        after -= sum(move.from_id == node.id for move in mine)
        if kind == "source":
            after += sum(move.to_id == node.id for move in under_way)
            after -= sum(move.from_id == node.id for move in under_way)
        found.append(NodeChange(node.role, node.id, node.partitions, after))
    return found


def owned(status: Status, node_id: str) -> int:
    """How many partitions a node has, also one that nobody has heard of for a while."""
    return sum(
        (one.owner == node_id) + (one.router == node_id)
        for topic in status.topics
        for one in topic.details
    )


def under_way(status: Status) -> list[PlannedMove]:
    return [
        PlannedMove("source", move.topic, move.partition, move.from_id, move.to_id)
        for move in status.moves
    ]


def happened(before: Status, after: Status, node_id: str) -> list[PlannedMove]:
    """What has left or reached a node between two looks, and what is on its way."""
    moving = {(m.topic, m.partition): m for m in under_way(after)}
    was = dict(_partitions(before))
    moves = []
    for ref, now in _partitions(after):
        then = was.get(ref)
        if then is None:
            continue
        if then.owner != now.owner:
            moves.append(PlannedMove("log", *ref, then.owner or "", now.owner or ""))
        if ref in moving:
            moves.append(moving[ref])
        elif then.router != now.router:
            moves.append(PlannedMove("source", *ref, then.router or "", now.router or ""))
    return [move for move in moves if node_id in (move.from_id, move.to_id)]


def left(status: Status, moves: Iterable[PlannedMove]) -> int:
    """How many of `moves` have not come to an end: with another owner than planned counts too,
    because a later plan may have sent it there."""
    moving = {(move.topic, move.partition) for move in status.moves}
    found = dict(_partitions(status))
    return sum(_is_left(move, found, moving) for move in moves)


def _is_left(
    move: PlannedMove,
    found: Mapping[tuple[str, int], TopicPartition],
    moving: set[tuple[str, int]],
) -> bool:
    if move.kind == "connector":
        return False  # a connector changes hands in one step
    ref = (move.topic, move.partition)
    one = found.get(ref)
    if one is None:
        return False  # its topic was deleted
    if move.kind == "log":
        return one.owner is None
    return ref in moving or one.router is None


def _partitions(status: Status) -> Iterator[tuple[tuple[str, int], TopicPartition]]:
    for topic in status.topics:
        for one in topic.details:
            yield (topic.name, one.partition), one
