"""What the demo's subscribers ask for: each filter as Headgate gets it, and as plain Python.

Invariant: the two say the same in different words. The plain one decides which deliveries the demo
expects, so a filter that Headgate got wrong shows as lost or unexpected events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.demo.aircraft import Report


@dataclass(frozen=True, slots=True)
class Watch:
    """One subscriber; `where` is its filter in CEL (None: everything)."""

    name: str
    where: str | None
    expects: Callable[[Report], bool]


WATCHES: tuple[Watch, ...] = (
    Watch("everything", None, lambda report: True),  # noqa: ARG005  # one signature for all
    Watch("low", "altitude < 3000", lambda report: report.altitude < 3_000),
    Watch(
        "emergency",
        'squawk in ["7500", "7600", "7700"]',
        lambda report: report.squawk in {"7500", "7600", "7700"},
    ),
    Watch(
        "airline",
        'callsign.startsWith("HG1") && speed > 300',
        lambda report: report.callsign[:3] == "HG1" and report.speed > 300,
    ),
)


def expected_by(report: Report) -> list[int]:
    """The indexes of the watches that must get `report`."""
    return [index for index, watch in enumerate(WATCHES) if watch.expects(report)]
