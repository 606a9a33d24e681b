"""Where everything that delivers says how it ended: one way, from the pipelines to the lane, which
acts upon it afterwards. Neither call goes back into its caller."""

from __future__ import annotations

from typing import Protocol

from headgate.decide.delivery.settling import Outcome
from headgate.errors import Fenced
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef


class Sink(Protocol):
    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """A part of a record is delivered, in a letter, or released."""

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """A newer lane has `ref`, which isn't held from now on."""


def let_go(sink: Sink, error: Fenced) -> None:
    """A store has seen a newer lane."""
    topic, partition = error.details["topic"], error.details["partition"]
    assert isinstance(topic, str)
    assert isinstance(partition, int)
    sink.overtaken(PartitionRef(topic, partition), error.message)
