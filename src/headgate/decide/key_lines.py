"""Which of what a consumer has in hand stand behind one another: those of one key do.

A consumer that wants one of them later gets none behind it before that. Invariant: one without a
key stands in nobody's way. Nothing is remembered for long of what isn't in hand any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

FEW = 64
"""Fewer than these aren't looked through."""

Line = tuple[int, str, str]
"""Partition, collection and key."""


class KeyLines:
    def __init__(self) -> None:
        self._stands: dict[Hashable, tuple[Line, tuple[int, bool]]] = {}
        """Where each stands: a redelivery before the record itself."""
        self._most = FEW

    def stand(self, thing: Hashable, line: Line, seq: int, *, redelivery: bool) -> None:
        self._stands[thing] = line, (seq, not redelivery)

    def forget(self, is_gone: Callable[[Hashable], bool]) -> None:
        """Those that are gone, whenever there may be many of them."""
        if len(self._stands) > self._most:
            self._stands = {one: at for one, at in self._stands.items() if not is_gone(one)}
            self._most = FEW + 2 * len(self._stands)

    def behind(self, first: Collection[Hashable]) -> set[Hashable]:
        """All that stand behind one of these."""
        heads: dict[Line, tuple[int, bool]] = {}
        for thing in first:
            if thing in self._stands:
                line, order = self._stands[thing]
                heads[line] = min(order, heads.get(line, order))
        return {
            thing
            for thing, (line, order) in self._stands.items()
            if line in heads and order > heads[line]
        }
