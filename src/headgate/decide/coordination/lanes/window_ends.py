"""Which windows are over, also for lanes of such a window that appear only afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.model.control.to_coordinator import Hello


@dataclass(slots=True)
class WindowEnds:
    """Per router process the highest window that was told to end; `_last` those that no other
    follows, because the router stops."""

    _ended: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def end(self, incarnation: str, window: int, *, for_good: bool = False) -> None:
        self._ended[incarnation] = max(window, self._ended.get(incarnation, window))
        if for_good:
            self._last[incarnation] = window

    def is_over(self, lane: Hello) -> bool:
        return lane.window <= self._ended.get(lane.incarnation, -1)

    def is_over_for_good(self, lane: Hello) -> bool:
        return lane.window <= self._last.get(lane.incarnation, -1)

    def forget(self, incarnation: str) -> None:
        """That process is gone."""
        self._ended.pop(incarnation, None)
        self._last.pop(incarnation, None)
