"""Where everything that delivers says what came of it: one way, from the pipelines to the lane,
which acts upon it afterwards. Neither call ends in whoever made it."""

from __future__ import annotations

from typing import Protocol

from headgate.decide.delivery.settling import Outcome
from headgate.errors import Fenced
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef


class Sink(Protocol):
    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """A part of a record is through, in a letter, or nobody's."""

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """Somebody newer has `ref`, which isn't held from now on."""


def let_go(sink: Sink, error: Fenced) -> None:
    """A store has seen somebody newer."""
    topic, partition = error.details["topic"], error.details["partition"]
    assert isinstance(topic, str)
    assert isinstance(partition, int)
    sink.overtaken(PartitionRef(topic, partition), error.message)
