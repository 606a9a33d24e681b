"""`headgate status`: which nodes there are, what each owns, which partitions move, and how far
behind each is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from headgate.cli.command_line import Option
from headgate.cli.output import NO_URL, JsonOption, UrlOption, await_, calls_to, console, print_json
from headgate.errors import HeadgateError, NotNow

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.client.http import HttpClient
    from headgate.model.api import Status

EVERY_MIN_S = 0.2


def status(
    partitions: Annotated[
        bool, Option("--partitions", help="Show every partition, however many there are.")
    ] = False,
    watch: Annotated[
        bool, Option("--watch", help="Refresh what fits the terminal until Ctrl-C.")
    ] = False,
    every_s: Annotated[
        float,
        Option("--every", min=EVERY_MIN_S, metavar="SECONDS", help="How often to refresh."),
    ] = 1.0,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, topics, partitions with owners and lag, moves, lanes and gateways.

    docs/operations.md explains every line and column, docs/glossary.md the words; `headgate doctor`
    says what isn't well and what to do.
    """
    if not watch:
        await_(_once(url, as_json, everything=partitions))
        return
    try:
        await_(_watch(url, as_json, every_s, everything=partitions))
    except KeyboardInterrupt:
        return  # The way to end it.


async def _once(url: str, as_json: bool, *, everything: bool) -> None:
    async with calls_to(url) as client:
        status = await _ask(client)
    if as_json:
        print_json(status)
        return
    from headgate.cli.views.status import status_view

    console().print(status_view(status, url=url, everything=everything))


async def _watch(url: str, as_json: bool, every_s: float, *, everything: bool) -> None:
    from rich.live import Live

    from headgate.cli.views.status import status_view

    async with calls_to(url) as client:
        status = await _ask(client)
        if as_json:
            while True:
                print_json(status)
                await asyncio.sleep(every_s)
                status = await _ask(client)
        view = status_view(status, url=url, everything=everything)
        with Live(view, console=console(), auto_refresh=False) as live:
            while True:
                await asyncio.sleep(every_s)
                try:
                    view = status_view(await _ask(client), url=url, everything=everything)
                    live.update(view, refresh=True)
                except NotNow as error:
                    live.update(_outdated(view, error), refresh=True)


def _outdated(view: RenderableType, error: HeadgateError) -> RenderableType:
    """The last view, while no coordinator answers: one may be on its way back."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(f"not up to date: {error.message}", style="red"), view)


async def _ask(client: HttpClient) -> Status:
    from headgate.model.api import Status

    return await client.get("/v1/status", Status)
