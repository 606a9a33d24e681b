"""How much each of many may do per second.

Every principal has an allowance that fills up by the second and holds `BURST_S` of them. As long as
something is left of it, a request passes whole, and what it took beyond that the principal waits
for afterwards: so a request larger than an allowance holds isn't refused for ever, and nobody gets
more on average.

Invariants: no clock of its own; what is refused takes nothing; at most `known` are remembered, and
the one that is forgotten has been quiet for longest.
"""

from __future__ import annotations

from collections import OrderedDict

BURST_S = 2.0
KNOWN_MAX = 10_000


class Rate:
    def __init__(self, *, known: int = KNOWN_MAX) -> None:
        self._known = known
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each had left, and when that was."""

    def wait_s(self, who: str, per_s: float, now_s: float) -> float:
        """How long `who`, who may do `per_s`, has to wait until there is something left; 0.0: there
        is. Without a limit (0) there always is."""
        if not per_s or who not in self._left:
            return 0.0
        left = self._left_of(who, per_s, now_s)
        return 0.0 if left > 0 else -left / per_s or 1.0 / per_s

    def take(self, who: str, amount: float, per_s: float, now_s: float) -> None:
        """Count `amount` against the allowance of `who`, even beyond what is left of it."""
        if not per_s:
            return
        self._left[who] = (self._left_of(who, per_s, now_s) - amount, now_s)
        self._left.move_to_end(who)
        while len(self._left) > self._known:
            self._left.popitem(last=False)

    def _left_of(self, who: str, per_s: float, now_s: float) -> float:
        full = per_s * BURST_S
        left, at_s = self._left.get(who, (full, now_s))
        return min(full, left + max(0.0, now_s - at_s) * per_s)
