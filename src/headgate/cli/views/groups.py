"""Consumer groups as `headgate status` shows them: one row per group."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.cli.views.tables import Grid, number
from headgate.model.api import ConsumerStatus, GroupStatus

CONSUMERS_SHOWN = 6


def groups_table(groups: Sequence[GroupStatus]) -> Grid:
    rows = [
        (
            f"{group.topic}/{group.group}",
            number(group.targets),
            number(group.unowned),
            number(group.moving),
            number(len(group.consumers)),
            _consumers(group.consumers),
        )
        for group in groups
    ]
    return Grid(
        ("group", "targets>", "unowned>", "moving>", "consumers>", "who has how many"), rows
    )


def _consumers(consumers: Sequence[ConsumerStatus]) -> str:
    named = [
        f"{one.id}{'' if one.state == 'connected' else ' (lost)'} {len(one.targets)}"
        for one in consumers[:CONSUMERS_SHOWN]
    ]
    more = len(consumers) - CONSUMERS_SHOWN
    return ", ".join([*named, f"{more} more"] if more > 0 else named)
