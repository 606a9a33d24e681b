"""How consumer groups look in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.views.tables import Grid, number
from headgate.model.groups_api import GroupInfo, GroupList


def groups_view(found: GroupList) -> Grid:
    rows = [
        (
            one.group,
            one.topic,
            number(one.targets),
            number(one.unowned),
            number(one.moving),
            number(len(one.consumers)),
            one.where or "-",
        )
        for one in found.groups
    ]
    return Grid(("group", "topic", "targets>", "unowned>", "moving>", "consumers>", "?where"), rows)


def group_view(found: GroupInfo) -> RenderableType:
    partitions = [
        (
            f"{found.topic}:{one.partition}",
            number(one.head),
            number(one.lowest),
            number(one.highest),
            number(one.behind_max),
        )
        for one in found.partitions
    ]
    owners: dict[tuple[str, str], list[int]] = {}
    for one in found.targets:
        owners.setdefault((one.consumer, one.gateway), []).append(one.number)
    consumers = [
        (consumer or "nobody", gateway or "-", ",".join(map(str, numbers)))
        for (consumer, gateway), numbers in sorted(owners.items())
    ]
    where = f" where {found.where}" if found.where else ""
    return Group(
        Text(f"{found.group} of {found.topic}{where}: {len(found.targets)} targets", style="bold"),
        Grid(("consumer", "gateway", "targets"), consumers),
        Text(),
        Grid(("partition", "head>", "lowest>", "highest>", "behind at most>"), partitions),
    )
