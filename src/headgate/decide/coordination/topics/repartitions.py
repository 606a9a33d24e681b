"""How a topic gets another number of partitions, phase by phase, and how far each one is.

Invariant: a topic has one repartition at a time. What must survive the coordinator stands in the
topic itself (`Topic.repartition`); here is what nodes say again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.decide.states import Table
from headgate.model.control.to_coordinator import Sealed
from headgate.model.event import PartitionRef


class Phase(StrEnum):
    ANNOUNCED = "announced"
    SEALING = "sealing"
    FENCED = "fenced"
    DRAINING = "draining"
    DRAINED = "drained"
    FINALIZED = "finalized"
    ABORTED = "aborted"


class Event(StrEnum):
    OPENED = "every partition has an owner that serves it"
    SEALED = "every owner has sealed"
    TOO_LATE = "it took too long"
    KNOWN = "every gateway knows"
    SETTLED = "the former versions are settled"
    ADOPTED = "every node and client routes by it, or had the time to"


LIFE: Final = Table(
    Phase.ANNOUNCED,
    {
        Phase.ANNOUNCED: {Event.OPENED: Phase.SEALING, Event.TOO_LATE: Phase.ABORTED},
        Phase.SEALING: {Event.SEALED: Phase.FENCED, Event.TOO_LATE: Phase.ABORTED},
        Phase.FENCED: {Event.KNOWN: Phase.DRAINING},
        Phase.DRAINING: {Event.SETTLED: Phase.DRAINED},
        Phase.DRAINED: {Event.ADOPTED: Phase.FINALIZED},
        Phase.FINALIZED: {},
        Phase.ABORTED: {},
    },
    {
        Phase.ANNOUNCED: "the partitions to come get owners; everything goes on as before",
        Phase.SEALING: "owners refuse appends, which wait, and say where their partitions end",
        Phase.FENCED: "the new version is kept and told, and taken by producers; lanes wait for "
        "the gateways to know it",
        Phase.DRAINING: "lanes read on, each partition behind those that share keys with it",
        Phase.DRAINED: "everything of the former versions is settled",
        Phase.FINALIZED: "every node and client routes by the new version, or had the time to",
        Phase.ABORTED: "nothing has changed, and what was sealed is open again",
    },
)


@dataclass(slots=True)
class Progress:
    """What is known of a repartition beside what is kept: since when it is in its phase, where
    partitions end that are sealed, under which epoch, and why it waits."""

    since_ms: int
    sealed: dict[PartitionRef, Sealed] = field(default_factory=dict)
    waits_for: str = ""


@dataclass(slots=True)
class Repartitions:
    """By topic: the repartitions that are under way, and why the last one of other topics was given
    up."""

    progress: dict[str, Progress] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)

    def of(self, name: str, now_ms: int) -> Progress:
        return self.progress.setdefault(name, Progress(now_ms))

    def forgive(self, absent_ms: int) -> None:
        for progress in self.progress.values():
            progress.since_ms += absent_ms

    def end(self, name: str) -> None:
        self.progress.pop(name, None)
        self.given_up.pop(name, None)
