"""The consumer groups, the consumers of each, and which consumer owns which target.

A consumer is known by its id within its group. It is connected while the gateway that speaks for it
is and says so; one whose connection broke is lost, and keeps what it has for a lease.

Invariant: a group's number of targets and its filter never change while it exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.decide.coordination.sources.handoffs import Handoffs
from headgate.decide.coordination.sources.ownership import NOBODY, Ownership
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.stored import StoredState
from headgate.model.topology import Owner

Key = tuple[str, str]
"""The group's id and the consumer's."""


@dataclass(slots=True)
class Consumer:
    """`lost_ms` is when its connection broke; None while it is there."""

    group_id: str
    id: str
    incarnation: str
    gateway_id: str
    lost_ms: int | None = None

    @property
    def key(self) -> Key:
        return self.group_id, self.id


@dataclass(slots=True)
class Groups:
    by_id: dict[str, Group] = field(default_factory=dict)
    targets: Ownership = field(default_factory=Ownership)
    handoffs: Handoffs = field(default_factory=Handoffs)
    consumers: dict[Key, Consumer] = field(default_factory=dict)
    doubtful: dict[str, set[Key]] = field(default_factory=dict)
    """Per gateway that came back: the consumers it has not named again yet."""
    full_since_ms: dict[str, int] = field(default_factory=dict)
    """When a gateway last said that it has no room for a target."""

    @classmethod
    def of(cls, stored: StoredState, now_ms: int) -> Groups:
        return cls(
            {group.id: group for group in stored.groups},
            Ownership.of(stored.targets, above=stored.above),
            Handoffs.of(stored.target_moves, now_ms),
        )

    def all(self) -> tuple[Group, ...]:
        return tuple(self.by_id[group_id] for group_id in sorted(self.by_id))

    def of_group(self, group_id: str) -> list[Consumer]:
        return [c for _, c in sorted(self.consumers.items()) if c.group_id == group_id]

    def of_gateway(self, gateway_id: str) -> list[Consumer]:
        return [c for _, c in sorted(self.consumers.items()) if c.gateway_id == gateway_id]

    def owned_by(self, key: Key) -> list[Owner]:
        group_id, consumer_id = key
        return [o for o in self.targets.of_node(consumer_id) if o.ref.topic == group_id]

    def has(self, ref: PartitionRef) -> bool:
        """Whether it is a target of a group that there is."""
        group = self.by_id.get(ref.topic)
        return group is not None and 0 <= ref.partition < group.targets

    def is_target_name(self, name: str) -> bool:
        """Whether positions and letters of a group that there is are kept under it."""
        return any(
            name == group.target_name(number)
            for group in self.by_id.values()
            if name.startswith(f"{group.id}/")
            for number in range(group.targets)
        )

    def epochs(self, group: Group) -> dict[str, int]:
        """Under which each of its targets was given out last, by the names of the targets."""
        owners = self.targets.owners
        return {
            group.target_name(ref.partition): owners[ref].epoch
            for ref in group.refs()
            if ref in owners
        }

    def strangers(self) -> list[Owner]:
        """What belongs to consumers that nobody has announced since this coordinator started."""
        return [
            owner
            for owner in self.targets.owned()
            if (owner.ref.topic, owner.node_id) not in self.consumers
        ]

    # --- learning ------------------------------------------------------------------------------

    def recall(self, groups: Iterable[Group], targets: Iterable[Owner]) -> None:
        """Somebody remembers these; of two owners the one with the higher epoch is right."""
        for group in groups:
            self.by_id.setdefault(group.id, group)
        for owner in targets:
            if self.has(owner.ref):
                self.targets.claim(owner)

    # --- the end -------------------------------------------------------------------------------

    def end(self, group_id: str) -> list[Consumer]:
        """Forget a group, but for the epochs of its targets; returns who was in it."""
        group = self.by_id.pop(group_id)
        members = self.of_group(group_id)
        for consumer in members:
            del self.consumers[consumer.key]
        self.handoffs.end(group.refs())
        for ref in group.refs():
            if self.targets.is_owned(ref):
                self.targets.take(ref, NOBODY)
        return members

    def forgive(self, absent_ms: int) -> None:
        self.handoffs.forgive(absent_ms)
        self.full_since_ms = {name: ms + absent_ms for name, ms in self.full_since_ms.items()}
        for consumer in self.consumers.values():
            if consumer.lost_ms is not None:
                consumer.lost_ms += absent_ms
