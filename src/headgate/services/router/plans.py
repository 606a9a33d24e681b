"""What a router is built with, and the plan of each of its windows: a lane for some of its
partitions, and what is left out while nobody ends a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headgate.decide.lane.notes import nobody_reads
from headgate.decide.lane.window_shares import Patience, plan_lanes
from headgate.decide.links.passes import Passes
from headgate.model.control.from_coordinator import Assign
from headgate.model.lanes import LaneSettings, LaneSpec, WindowPlan

NOTHING_NOTED = (
    "it has noted nothing that it could go on with, and waits for the coordinator to tell it what "
    "to read; start the coordinator"
)
NO_WINDOW = (
    "the coordinator went away before the window could end that was open when it was assigned; "
    "start the coordinator"
)


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
    advertised_host: str = ""
    """How other nodes reach that address, where it doesn't say so itself."""
    origins: tuple[str, ...] = ()
    """Of web pages that may look at those."""
    passes: Passes = field(default_factory=Passes)
    """What it shows to other roles."""
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


def unread_alone(assignment: Assign | None, plan: WindowPlan | None) -> list[str]:
    """What no lane reads while the coordinator is away: nobody ends the open window that doesn't
    know of it."""
    if assignment is None:
        return [NOTHING_NOTED]
    if plan is None:
        return []
    planned = {owner for lane in plan.lanes for owner in lane.owns}
    missing = [owner.ref for owner in assignment.sources if owner not in planned]
    return nobody_reads(dict.fromkeys(missing, NO_WINDOW))
