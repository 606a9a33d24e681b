"""What a router is built with, and the plan of each of its windows: a lane for some of its
partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headgate.decide.windows import Patience, plan_lanes
from headgate.model.control import Assign
from headgate.model.lanes import LaneSettings, LaneSpec, WindowPlan


@dataclass(frozen=True, slots=True)
class RouterSettings:
    node_id: str
    incarnation: str
    coordinator: str
    slots: int
    data: Path
    lane: LaneSettings
    weight: float = 1.0
    http: tuple[str, int] = ("127.0.0.1", 0)
    """Where it serves /health and /metrics."""
    origins: tuple[str, ...] = ()
    """Of web pages that may look at those."""
    patience: Patience = field(default_factory=Patience)


def plan_window(settings: RouterSettings, assignment: Assign | None, window: int) -> WindowPlan:
    """The lanes of `window`, attempt 0; without anything to read it only keeps workers warm."""
    if assignment is None or not assignment.sources:
        return WindowPlan(window, warm=settings.slots)
    lanes = [
        LaneSpec(
            router_id=settings.node_id,
            incarnation=settings.incarnation,
            lane=number,
            window=window,
            attempt=0,
            assignment=assignment.number,
            owns=owns,
            coordinator=settings.coordinator,
            data=str(settings.data),
            settings=settings.lane,
        )
        for number, owns in enumerate(plan_lanes(assignment.sources, settings.slots))
    ]
    return WindowPlan(window, tuple(lanes))
