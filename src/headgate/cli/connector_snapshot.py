"""`headgate connector snapshot`: asked for, followed with a bar, ended.

Invariant: a snapshot doesn't depend on who looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.cli.connector import path_of
from headgate.cli.output import calls_to, console, say
from headgate.cli.views.connector import snapshot_line
from headgate.model.connectors_api import ConnectorInfo, SnapshotConnector, SnapshotInfo

LOOK_EVERY_S = 0.5


async def wanted(url: str, name: str, only: Sequence[str]) -> ConnectorInfo:
    async with calls_to(url) as client:
        body = SnapshotConnector(list(only))
        return await client.post(path_of(name, "snapshot"), body, ConnectorInfo)


async def cancelled(url: str, name: str) -> ConnectorInfo:
    import msgspec

    async with calls_to(url) as client:
        answer = await client.call("DELETE", path_of(name, "snapshot"))
    return msgspec.json.decode(answer, type=ConnectorInfo)


async def followed(url: str, name: str, only: Sequence[str]) -> None:
    """Until it is done, or an operator has cancelled it."""
    out = console(aside=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    said = ""
    rows = 0
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        async with calls_to(url) as client:
            while True:
                found = await client.get(path_of(name), ConnectorInfo)
                present = _present(found, only)
                if present is None:
                    break
                rows = present.rows
                bar.update(
                    task,
                    completed=present.rows,
                    total=present.expected,
                    description=snapshot_line(present)[:60],
                )
                if (news := _news(found, present)) != said:
                    said = news
                    say(news)
                await asyncio.sleep(LOOK_EVERY_S)
    # One that is over before the next look was no less taken.
    seen = f", {rows:,} rows were seen to be handed in" if rows else ""
    print(f"{name}: the snapshot is over{seen}")


def _present(found: ConnectorInfo, only: Sequence[str]) -> SnapshotInfo | None:
    asked = list(dict.fromkeys(only))
    return next((one for one in found.snapshots if one.collections == asked), None)


def _news(found: ConnectorInfo, present: SnapshotInfo) -> str:
    """What is worth a line of its own."""
    if found.state != "running":
        return f"{found.name} is {found.state}" + (f": {found.reason}" if found.reason else "")
    if present.state == "failing":
        return f"{present.reason}; it is tried again"
    where = present.collection or present.state
    return f"{found.name}: {where}"
