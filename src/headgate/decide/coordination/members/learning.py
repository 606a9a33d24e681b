"""A coordinator that finds nothing in its store among nodes that own something.

It believes what they say: of two that claim a partition the higher epoch is right. Meanwhile it
gives nothing away. It has learnt enough when all the nodes that the newest recalled topology
names are back, or when its time is up. A cluster in which nobody remembers anything is new, and
there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Learning:
    may_begin: bool
    until_ms: int | None = None
    """None while it isn't learning."""
    recalled: int = 0
    """The newest generation that a node remembered."""
    missing: set[str] = field(default_factory=set)
    """Nodes of that generation that have not reported yet."""

    @property
    def is_on(self) -> bool:
        return self.until_ms is not None

    @property
    def is_blank(self) -> bool:
        """True while it is learning and nobody has recalled anything yet."""
        return self.is_on and not self.recalled

    def begin(self, until_ms: int) -> None:
        self.may_begin = False
        self.until_ms = until_ms

    def recall(self, generation: int, nodes: Iterable[str]) -> bool:
        """True when that is the newest topology a node has recalled so far."""
        if generation <= self.recalled:
            return False
        self.recalled = generation
        self.missing = set(nodes)
        return True

    def is_complete(self, now_ms: int) -> bool:
        if self.until_ms is None:
            return False
        return now_ms >= self.until_ms or (self.recalled > 0 and not self.missing)

    def end(self) -> None:
        self.until_ms = None
