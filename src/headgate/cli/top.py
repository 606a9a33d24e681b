"""`headgate top`: the whole system in a terminal, as it changes.

Invariant: it only looks; what it costs the system is one overview per look, like a browser with the
dashboard, and the partitions of one topic while they are shown.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from headgate.cli.command_line import Option
from headgate.cli.output import NO_URL, UrlOption, await_, calls_to
from headgate.errors import InvalidRequest, OperatorError

if TYPE_CHECKING:
    from headgate.cli.views.top_screen import TopScreen

EVERY_MIN_S = 0.5
WITHOUT_TERMINAL = "headgate top needs a terminal; `headgate status` prints what there is"
WITHOUT_TEXTUAL = "headgate top needs textual: run pip install 'headgate[top]'"


def top(
    every_s: Annotated[
        float,
        Option("--every", min=EVERY_MIN_S, metavar="SECONDS", help="How often to look."),
    ] = 1.0,
    url: UrlOption = NO_URL,
) -> None:
    """Watch rates, lag, partitions, gateways and what needs attention, until q or Ctrl-C.

    1 to 6 choose a table, Enter on a topic shows its partitions. `headgate status --watch` needs
    nothing installed, and the dashboard at /ui/ of a gateway shows more.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest(WITHOUT_TERMINAL)
    try:
        from headgate.cli.views.top_screen import TopScreen
    except ModuleNotFoundError as error:
        raise OperatorError(f"{WITHOUT_TEXTUAL} ({error})") from None
    await_(_watch(url, every_s, TopScreen))


async def _watch(url: str, every_s: float, make: type[TopScreen]) -> None:
    from headgate.model.api import TopicInfo
    from headgate.model.overview_api import Overview

    async with calls_to(url) as client:

        async def at_all() -> Overview:
            return await client.get("/v1/overview", Overview)

        async def at_topic(name: str) -> TopicInfo:
            return await client.get(f"/v1/topics/{quote(name, safe='')}", TopicInfo)

        seen = await at_all()  # What is wrong with the address is a sentence, not a screen.
        screen = make(at_all, at_topic, seen, url=url, every_s=every_s, clock=time.monotonic)
        # After a SIGTERM, too, the terminal has to be as it was.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, screen.exit)
        await screen.run_async()
