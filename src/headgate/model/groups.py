"""Consumer groups: several consumers that share a topic, each key with one of them.

A group cuts its topic into a fixed number of target partitions by the hash of the keys; consumers
own targets as ingest nodes own log partitions. Invariant: a group's number of targets never
changes, because the positions of its targets mean nothing under another one.
"""

from __future__ import annotations

import msgspec

from headgate.model.event import PartitionRef

PREFIX = "@group/"
"""Begins what no topic can be called, so that targets are never taken for partitions of a topic."""
PREFIX_END = "@group0"
"""The first name after all that begin so."""
MAX_TARGETS = 1_024


class Group(msgspec.Struct, frozen=True):
    """`where` is the filter that all its consumers share. `starts` are the seqs after which the
    partitions of the topic begin for a group that has processed nothing yet."""

    id: str
    topic: str
    name: str
    targets: int
    where: str | None = None
    starts: tuple[int, ...] = ()

    def refs(self) -> list[PartitionRef]:
        return [PartitionRef(self.id, number) for number in range(self.targets)]

    def begins_after(self, partition: int) -> int:
        return self.starts[partition] if partition < len(self.starts) else 0

    def position_ref(self, target: int, partition: int) -> PartitionRef:
        """Where the store keeps how far `target` has processed `partition` of the topic."""
        return PartitionRef(self.target_name(target), partition)

    def position_refs(self, partition: int) -> list[PartitionRef]:
        """Where it keeps how far all its targets have processed `partition`."""
        return [self.position_ref(number, partition) for number in range(self.targets)]

    def target_name(self, target: int) -> str:
        """Under which its positions and its letters are kept; another for another number of
        targets, which cut the topic otherwise."""
        return f"{self.id}/{target}-of-{self.targets}"

    def has_target(self, name: str) -> bool:
        """False for the name of a target that the group had when it had another number of them."""
        return name.startswith(f"{self.id}/") and name.endswith(f"-of-{self.targets}")


def group_id(topic: str, name: str) -> str:
    return f"{PREFIX}{topic}/{name}"


def group_of(name: str) -> str:
    """The name of the group whose target has this name; empty where it is no target's."""
    parts = name.split("/")
    return parts[2] if name.startswith(PREFIX) and len(parts) > 2 else ""


def topic_of(group: str) -> str:
    """The topic of the group with that id."""
    return group.removeprefix(PREFIX).partition("/")[0]


def is_target(ref: PartitionRef) -> bool:
    """False for a partition of a topic."""
    return ref.topic.startswith(PREFIX)
