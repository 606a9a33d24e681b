"""What pipelines and letters ask the lane about the world as it is now, and tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headgate.decide.settling import Outcome
from headgate.errors import Fenced
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef


class Surroundings(Protocol):
    def gateway_url(self, gateway_id: str) -> str | None:
        """Where the gateway takes deliveries; None while it isn't known."""

    def is_at(self, subscription_id: str, gateway_id: str) -> bool:
        """Is the subscription alive, and at that gateway?"""

    def low(self, subscriptions: Sequence[str]) -> Sequence[str]:
        """Those of low priority."""

    def fences(self) -> dict[PartitionRef, Fence]:
        """The partitions that the lane has, and under which fence."""

    def fence(self, ref: PartitionRef) -> Fence | None:
        """Under which fence the lane has `ref`; None once it is somebody else's."""

    def read_seq(self, ref: PartitionRef) -> int:
        """How far the lane has read `ref`, and put what it found; 0 once it is somebody else's."""

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """A part of a record is through, in a letter, or nobody's."""

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """Somebody newer has `ref`."""


def ref_of(delivery: Delivery) -> PartitionRef:
    return PartitionRef(delivery.topic, delivery.partition)


def let_go(surroundings: Surroundings, error: Fenced) -> None:
    """A store has seen somebody newer."""
    topic, partition = error.details["topic"], error.details["partition"]
    assert isinstance(topic, str)
    assert isinstance(partition, int)
    surroundings.overtaken(PartitionRef(topic, partition), error.message)
