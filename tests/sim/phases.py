"""How far repartitions are, as whoever leads keeps it: what is to meet one in its middle waits for
that, because getting there takes a tenth of a second in one run and a quarter of a minute in the
next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

from headgate.model.topology import Topic

Phase = Literal["announced", "sealing", "fenced", "draining", "drained", "over"]
PHASES: Final[tuple[Phase, ...]] = (
    "announced",
    "sealing",
    "fenced",
    "draining",
    "drained",
    "over",
)
FENCED: Final = PHASES.index("fenced")
OVER: Final = PHASES.index("over")
Mark = tuple[int, int]
"""A version, and how far the repartition is that brings it."""


class Phases:
    """Of every topic."""

    def __init__(self) -> None:
        self.fenced: dict[tuple[str, int], int] = {}
        """Of each topic and version the generation since which it is there."""
        self.partitions: dict[str, int] = {}
        """How many each topic has."""
        self.most: dict[str, int] = {}
        """The same at its largest, since it was made."""
        self.is_forgotten = False
        """Whether coordinators have lost what they had stored, and don't know yet what nodes do."""
        self._reached: dict[str, Mark] = {}

    def kept(
        self, topics: Collection[Topic], deleted: Iterable[str] = (), *, learns: bool = False
    ) -> None:
        if topics and not learns:
            self.is_forgotten = False
        for name in deleted:
            self.most.pop(name, None)
        for topic in topics:
            self.partitions[topic.name] = topic.partitions
            self.most[topic.name] = max(topic.partitions, self.most.get(topic.name, 0))
            self._reached[topic.name] = _far(topic)
            under_way = topic.repartition
            if under_way is not None and under_way.phase == "fenced":
                self.fenced[topic.name, topic.version] = under_way.since

    def next(self, topic: str, phase: Phase) -> Mark:
        """Of the repartition that is under way, where it isn't so far yet, or of the next one."""
        version, far = self._reached.get(topic, (1, OVER))
        wanted = PHASES.index(phase)
        return version + (far >= wanted), wanted

    def has_reached(self, topic: str, mark: Mark) -> bool:
        return self._reached.get(topic, (1, OVER)) >= mark


def _far(topic: Topic) -> Mark:
    under_way = topic.repartition
    far = OVER if under_way is None else PHASES.index(under_way.phase)
    # Before its fence a topic still has the version that it leaves.
    return topic.version + (far < FENCED), far
