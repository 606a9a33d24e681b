"""`headgate rebalance`: show the plan, carry it out, and wait for it if asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from headgate.cli.command_line import Option
from headgate.cli.following import DEFAULT_TIMEOUT, TimeoutOption, WaitOption, none_left, seconds
from headgate.cli.moves import left, shares, under_way
from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    calls_to,
    console,
    print_json,
    say,
)
from headgate.cli.views.tables import plural
from headgate.client.http import HttpClient
from headgate.model.api import PlannedMove, RebalanceAnswer, RebalanceRequest, Status

if TYPE_CHECKING:
    from collections.abc import Sequence


def rebalance(
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the plan.")] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Spread the partitions evenly over the nodes that are there, with as few moves as that takes.

    Headgate does this by itself every few seconds (coordinator.rebalance) and when nodes come and
    go; this shows the plan, and doesn't wait for the next one.
    """
    await_(_rebalance(url, dry_run, seconds(timeout) if wait else None, as_json))


async def _rebalance(url: str, dry_run: bool, wait_s: float | None, as_json: bool) -> None:
    async with calls_to(url) as client:
        status = await client.get("/v1/status", Status)
        plan = await _post(client, dry_run=True)
        if not as_json:
            _show(status, plan.moves)
        moving = under_way(status)
        if not dry_run and plan.moves:
            shown, plan = plan, await _post(client, dry_run=False)
            if plan.moves != shown.moves and not as_json:
                say(f"the plan has changed since: it moves {plural(len(plan.moves), 'partition')}")
        if not dry_run and wait_s is not None:
            moves = [*plan.moves, *moving]
            await none_left(
                client, lambda now: left(now, moves), total=len(moves), timeout_s=wait_s
            )
            if moves and not as_json:
                say("all moves are done")
    if as_json:
        print_json(RebalanceAnswer(plan.moves, dry_run))


async def _post(client: HttpClient, *, dry_run: bool) -> RebalanceAnswer:
    return await client.post("/v1/rebalance", RebalanceRequest(dry_run), RebalanceAnswer)


def _show(status: Status, moves: Sequence[PlannedMove]) -> None:
    from headgate.cli.views.plan import plan_table, shares_table

    if moves:
        out = console()
        out.print(plan_table(moves))
        out.print()
        out.print(shares_table(shares(status, moves)))
    else:
        print("nothing to move: every node has its share")
    if status.moves:
        say(f"{plural(len(status.moves), 'partition')} on the way already: see `headgate status`")
