"""`headgate demo`: the whole system at work, with simulated aircraft.

Invariants: every process that was started and the data folder are gone at the end, also after a
second Ctrl-C; the exit code is 0 only when nothing was lost, out of order or unexpected. With
--json, standard output has the JSON and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import click
from rich.console import Console

from headgate.adapters.processes import end_processes, families_except
from headgate.cli.command_line import Option
from headgate.cli.output import print_json
from headgate.cli.roles import ConfigOption
from headgate.cli.views.demo import Display, LiveDisplay, PlainDisplay
from headgate.client.outages import NAME as CLIENT_LOGGER
from headgate.config import LoadedConfig
from headgate.demo import mongodb, postgresql
from headgate.demo.flight import FlightPath
from headgate.demo.page.booth import Booth
from headgate.demo.screen import summary_table
from headgate.demo.stage import data_folder, demo_config, performance, plan_of
from headgate.demo.summary import LATENCY_NOTES, Summary
from headgate.errors import InvalidRequest
from headgate.tasks import start_thread

UNWATCHED_SECONDS = 30.0
"""How long it runs where nobody could press Ctrl-C."""

INTERRUPTED = 130
MAX_CONSUMERS = 100
KILL_ROUNDS = 3
KILL_GRACE_S = 0.3


class Source(StrEnum):
    """How reports get into the log."""

    PRODUCE = "produce"
    MONGODB = "mongodb"
    POSTGRESQL = "postgresql"


NAMES = {Source.PRODUCE: "", Source.MONGODB: "MongoDB", Source.POSTGRESQL: "PostgreSQL"}


def demo(
    seconds: Annotated[
        float | None,
        Option(min=1, help="Produce for so long (default: until Ctrl-C; 30 without a terminal)."),
    ] = None,
    seed: Annotated[int, Option(help="Another seed shows other aircraft.")] = 1,
    consumers: Annotated[
        int,
        Option(
            min=0,
            max=MAX_CONSUMERS,
            help="So many consumers of one group share the aircraft; half-way one of them leaves.",
        ),
    ] = 0,
    source: Annotated[
        Source,
        Option(
            help="produce: over HTTP. mongodb, postgresql: written there, and read by a connector."
        ),
    ] = Source.PRODUCE,
    uri: Annotated[
        str,
        Option(
            help="mongodb: a replica set that is there, such as mongodb://host/?replicaSet=name, "
            "postgresql: a server, such as postgresql://host/database; instead of one that the "
            "demo starts."
        ),
    ] = "",
    secured: Annotated[
        bool,
        Option(
            "--secured",
            help="Every client needs a token: each subscriber asks for everything, and gets "
            "what its grant shows.",
        ),
    ] = False,
    opens: Annotated[bool, Option("--open", help="Open the demo's page in a browser.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
    config: ConfigOption = None,
) -> None:
    """Run the whole system with simulated aircraft, and check what arrives."""
    if uri and source is Source.PRODUCE:
        raise InvalidRequest("--uri belongs to --source mongodb and --source postgresql")
    logging.getLogger(CLIENT_LOGGER).setLevel(logging.ERROR)  # the screen shows who is away
    console = Console(stderr=as_json, highlight=False)
    # Not console.is_terminal: a setting that forces colours doesn't put anybody there.
    watched = (sys.stderr if as_json else sys.stdout).isatty()
    if seconds is None and not watched:
        seconds = UNWATCHED_SECONDS
    with data_folder() as folder:
        run = _run(
            Path(folder),
            console,
            _Wanted(
                seed,
                seconds,
                consumers,
                source,
                uri,
                secured=secured,
                opens=opens,
                as_json=as_json,
            ),
            config,
            watched=watched,
        )
        summary = asyncio.run(run)
    if summary is None:
        console.print("headgate: stopped before it began")
        raise click.exceptions.Exit(INTERRUPTED)
    if not summary.ok:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was said on the command line; `uri` is the address of the database, if one is given."""

    seed: int
    seconds: float | None
    consumers: int
    source: Source
    uri: str
    secured: bool
    opens: bool
    as_json: bool


async def _run(
    folder: Path, console: Console, wanted: _Wanted, config: Path | None, *, watched: bool
) -> Summary | None:
    """The page's address is known before the system starts, which has to be told."""
    booth = Booth()
    await booth.start()
    try:
        control, secured = booth.url, wanted.secured
        loaded = demo_config(folder / "data", config, control=control, secured=secured)
        for warning in loaded.warnings:
            console.print(f"headgate: {warning}", markup=False, soft_wrap=True)
        plan = plan_of(loaded, seed=wanted.seed, seconds=wanted.seconds, consumers=wanted.consumers)
        display: Display = (LiveDisplay if watched else PlainDisplay)(console, plan)
        return await _perform(loaded, plan, display, console, folder, wanted, booth)
    finally:
        await booth.stop()


async def _perform(
    loaded: LoadedConfig,
    plan: FlightPath,
    display: Display,
    console: Console,
    folder: Path,
    wanted: _Wanted,
    booth: Booth,
) -> Summary | None:
    stopping = asyncio.Event()
    source, uri = wanted.source, wanted.uri

    def interrupted() -> None:
        if stopping.is_set():
            _end_at_once(display, console, folder)
        stopping.set()
        display.stopping()

    def named(address: str) -> None:
        display.named(address)
        if wanted.opens:
            start_thread("browser", lambda: open_page(address))

    def open_page(address: str) -> None:
        """In a thread: it may take its time, or wait for the browser to end."""
        if not webbrowser.open(address):
            sentence = f"no browser could be opened here; open {address} in one yourself"
            loop.call_soon_threadsafe(display.say, sentence)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, interrupted)
    loop.add_signal_handler(signal.SIGWINCH, display.resized)
    with ExitStack() as shown:
        shown.callback(display.close)
        display.open()
        if source is not Source.PRODUCE and not uri:
            display.say(f"{NAMES[source]} starts first")
        async with (
            _written(plan, source, uri, folder) as plan,
            performance(
                loaded,
                plan,
                stopping,
                say=display.say,
                progress=display.progress,
                show=display.show,
                show_every_s=display.show_every_s,
                booth=booth,
                named=named,
            ) as summary,
        ):
            display.close()
            if summary is not None:
                note = LATENCY_NOTES[NAMES[source]]
                _print(summary, console, note, as_json=wanted.as_json)
            # From here on a Ctrl-C has nothing more to wait for.
            stopping.set()
            shown.enter_context(console.status("stopping every process"))
    return summary


@asynccontextmanager
async def _written(
    plan: FlightPath, source: Source, uri: str, folder: Path
) -> AsyncIterator[FlightPath]:
    """The plan with where to write to, before the system starts and until it has ended."""
    if source is Source.MONGODB:
        async with mongodb.place_to_write(uri, folder / "mongodb") as (address, database):
            yield replace(plan, mongodb=address, database=database)
    elif source is Source.POSTGRESQL:
        async with postgresql.place_to_write(uri) as (address, schema):
            yield replace(plan, postgresql=address, database=schema)
    else:
        yield plan


def _end_at_once(display: Display, console: Console, folder: Path) -> NoReturn:
    """Kill what was started, in this very step of the loop: nothing can be started meanwhile."""
    display.close()
    console.show_cursor(True)
    for _ in range(KILL_ROUNDS):  # children of the killed come to us and are next
        if not (left := families_except(())):
            break
        end_processes(left, grace_s=KILL_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    os._exit(INTERRUPTED)


def _print(summary: Summary, console: Console, note: str, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    console.print(summary_table(summary))
    console.print(note, style="dim", markup=False, soft_wrap=not console.file.isatty())
    style = "bold green" if summary.ok else "bold red"
    # One line for programs; a person's terminal breaks it between words.
    console.print(summary.line(), style=style, markup=False, soft_wrap=not console.file.isatty())
