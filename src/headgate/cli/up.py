"""`headgate up`: every role on this machine, supervised, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Annotated

import click
from rich.console import Console

from headgate.cli.command_line import Option
from headgate.cli.roles import ConfigOption, DataOption, InsecureOption, SetOption, given
from headgate.cli.starting import Starting
from headgate.config import LoadedConfig, load_config
from headgate.tasks import first_of

NEIGHBOURS = ("public.port", "public.ws_port", "coordinator.http_port")
"""Ports that follow each other."""
INTERNAL = (
    "coordinator.router_port",
    "coordinator.consumer_port",
    "ingest.port",
    "gateway.client_port",
)


def up(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    insecure: InsecureOption = False,
    port: Annotated[
        int | None,
        Option(
            min=0,
            max=65_536 - len(NEIGHBOURS),
            metavar="N",
            help="The public port; WebSocket subscribers are served at the next one, the "
            "coordinator's /health at the one after that (0: any free ones; default: 8780).",
        ),
    ] = None,
) -> None:
    """Run all of Headgate here; prints one line `ready URL` when everything serves."""
    said = given(data, settings, insecure)
    loaded = load_config(command_line=said, config_file=config)
    if port is not None:
        chosen = {key: port and port + step for step, key in enumerate(NEIGHBOURS)}
        # Their defaults aren't used here anyway, so they are in no chosen port's way.
        chosen |= {key: 0 for key in INTERNAL if loaded.origins[key].kind == "default"}
        loaded = load_config(command_line={**chosen, **said}, config_file=config)
    asyncio.run(_up(loaded))


async def _up(loaded: LoadedConfig) -> None:
    from headgate.local import running

    console = Console(stderr=True)

    def say(sentence: str) -> None:
        console.print(f"headgate: {sentence}", markup=False, highlight=False, soft_wrap=True)

    for warning in loaded.warnings:
        say(warning)
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        """The second signal doesn't wait for what is in flight."""
        (hurry if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    starting = Starting()
    async with AsyncExitStack() as stack:
        with console.status(starting):

            def progress(role: str) -> None:
                starting.is_ready(role)
                if not console.is_terminal:
                    console.print(f"{role} is ready", highlight=False)

            address, supervisor = await stack.enter_async_context(
                running(loaded, stopping, say, progress, hurry)
            )
        if address is not None:
            click.echo(f"ready {address}")
            await first_of(supervisor.watch(), stopping.wait())
        say("stopping")
