"""What can meet in a run: each pair of what lasts for a while, by name."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Final

LASTING: Final = (
    "cut link",
    "dead consumer",
    "draining",
    "election away",
    "frozen gateway",
    "frozen ingest",
    "frozen router",
    "joining",
    "leaving subscriber",
    "letters away",
    "log away",
    "no coordinator",
    "no gateway",
    "no ingest",
    "no router",
    "positions away",
    "reset",
    "retried letters",
    "slow link",
    "slow subscriber",
    "state away",
    "stopping gateway",
    "stopping router",
    "subscribing",
)

SITUATIONS: Final = tuple(
    f"{one} while {two}" for one, two in combinations_with_replacement(LASTING, 2)
)
