"""`headgate status`: who is there, who owns what, and how far behind it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.output import NO_URL, JsonOption, UrlOption, await_, console, print_json

if TYPE_CHECKING:
    from headgate.client.http import HttpClient
    from headgate.model.api import Status

REFRESH_S = 1.0


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, topics with their lag, lanes, gateways and windows."""
    if not watch:
        await_(_once(url, as_json))
        return
    try:
        await_(_watch(url, as_json))
    except KeyboardInterrupt:
        return  # The way to end it.


async def _once(url: str, as_json: bool) -> None:
    from headgate.client.http import HttpClient

    async with HttpClient(url) as client:
        _show(await _ask(client), as_json)


async def _watch(url: str, as_json: bool) -> None:
    from rich.live import Live

    from headgate.cli.tables import status_view
    from headgate.client.http import HttpClient

    async with HttpClient(url) as client:
        if as_json:
            while True:
                print_json(await _ask(client))
                await asyncio.sleep(REFRESH_S)
        first = await _ask(client)
        with Live(status_view(first), console=console(), auto_refresh=False) as live:
            while True:
                await asyncio.sleep(REFRESH_S)
                live.update(status_view(await _ask(client)), refresh=True)


async def _ask(client: HttpClient) -> Status:
    from headgate.model.api import Status

    return await client.get("/v1/status", Status)


def _show(status: Status, as_json: bool) -> None:
    from headgate.cli.tables import status_view

    if as_json:
        print_json(status)
    else:
        console().print(status_view(status))
