"""How a plan looks before it is carried out: what goes where, and what each node has then."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from headgate.cli.moves import NodeChange, grouped
from headgate.cli.views.tables import Grid, named, number
from headgate.model.api import PlannedMove


def plan_table(moves: Sequence[PlannedMove]) -> Grid:
    rows = [
        (
            group.kind,
            f"{group.from_id or 'nobody'} -> {group.to_id or 'nobody'}",
            number(len(group.partitions)),
            ", ".join(name for name, _ in group.partitions)
            if group.kind == "connector"
            else named(group.partitions),
        )
        for group in grouped(moves)
    ]
    return Grid(("kind", "from -> to", "count>", "partitions"), rows)


def shares_table(shares: Sequence[NodeChange]) -> Grid:
    rows = [
        (
            share.role,
            share.node_id,
            number(share.before),
            number(share.after),
            _change(share.after - share.before),
        )
        for share in shares
    ]
    return Grid(("role", "node", "before>", "after>", "change>"), rows)


def _change(by: int) -> Text:
    return Text(f"{by:+,}" if by else "-", style="bold" if by else "dim")
