"""How far a gateway is behind, and what that means for what comes next.

    normal   everything is sent
    soft     low priority is shed
    hard     everything is parked

What counts is all that waits for the gateway: in its pipeline, on its way, and at the gateway
itself. Once it is behind it has to get well below the marks to be normal again, so that a gateway
at the edge doesn't flap.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model.control.reports import PressureLevel


@dataclass(frozen=True, slots=True)
class Watermarks:
    """In percent of `queue_size`, the most that may wait for a gateway, and of `queue_bytes`, the
    most that their documents may have; what is nearer counts."""

    soft: int = 70
    hard: int = 90
    resume: int = 60
    queue_size: int = 10_000
    queue_bytes: int = 64 * 1024 * 1024


class Pressure:
    """`fill` is what the gateway said last: how much of its own room is taken (0 to 1)."""

    __slots__ = (
        "_hard_from",
        "_per_byte",
        "_resume_below",
        "_soft_from",
        "_watermarks",
        "fill",
        "hard",
        "level",
        "soft",
    )

    def __init__(self, watermarks: Watermarks) -> None:
        self._watermarks = watermarks
        self._per_byte = watermarks.queue_size / watermarks.queue_bytes
        self.level: PressureLevel = "normal"
        self.soft = self.hard = 0
        """How often it rose to either level."""
        self.fill = 0.0
        self.filled(0.0)

    def filled(self, fill: float) -> None:
        """The gateway said how full it is."""
        self.fill = fill
        marks = self._watermarks
        room = marks.queue_size / 100
        at_gateway = fill * marks.queue_size
        self._soft_from = marks.soft * room - at_gateway
        self._hard_from = marks.hard * room - at_gateway
        self._resume_below = marks.resume * room - at_gateway

    def weigh(self, waiting: float, size_bytes: int = 0) -> PressureLevel:
        """The level with `waiting` in the pipeline and on the way, of that size."""
        waiting = max(waiting, size_bytes * self._per_byte)
        if waiting >= self._soft_from:
            if waiting >= self._hard_from:
                self.hard += self.level != "hard"
                self.level = "hard"
            elif self.level == "normal":
                self.soft += 1
                self.level = "soft"
        elif self.level != "normal" and waiting < self._resume_below:
            self.level = "normal"
        return self.level
