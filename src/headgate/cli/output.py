"""What the commands share at their edge: the address, JSON, sentences, tables, running a coroutine.

Invariant: data goes to standard output, everything said about it to standard error.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click

from headgate.cli.command_line import Option
from headgate.model.api import DEFAULT_URL

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from headgate.client.credentials import Token
    from headgate.client.http import HttpClient


def _server_url(given: str) -> str:
    """--url, else HEADGATE_URL (of the environment or `.env`), else the default."""
    from headgate.config import server_url

    return server_url(given or None)


UrlOption = Annotated[
    str,
    Option(
        "--url",
        callback=_server_url,
        help=f"The public address of a Headgate [HEADGATE_URL; default {DEFAULT_URL}].",
        show_default=False,
    ),
]
NO_URL = ""
"""The default of a UrlOption: what the callback then finds."""
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]

T = TypeVar("T")

RESTART_S = 3.0
"""For so long a command tries an address again at which nothing answers: it may be restarting."""


def calls_to(url: str, *, timeout_s: float = 10.0) -> HttpClient:
    """The public address, for a command."""
    from headgate.client.credentials import credentials
    from headgate.client.http import HttpClient

    said = credentials(token_source())
    return HttpClient(url, timeout_s=timeout_s, patience_s=RESTART_S, credentials=said)


@dataclass(slots=True)
class _Said:
    """The credential that the command line names."""

    token_file: Path | None = None


_said = _Said()


def _says_token_file(_context: Any, _option: Any, path: Path | None) -> None:
    _said.token_file = path or _said.token_file


def token_file_option() -> click.Option:
    """`--token-file`, for any command: its value is remembered here, not handed to the command."""
    return click.Option(
        ["--token-file"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=_says_token_file,
        help="A file with the token to say [HEADGATE_TOKEN_FILE, or HEADGATE_TOKEN].",
    )


def token_source() -> Token | None:
    """Who asks: `--token-file`, else HEADGATE_TOKEN_FILE, else HEADGATE_TOKEN (of the environment
    or `.env`), else nobody. A file is read anew when a new token is needed."""
    from headgate.config import find_token, read_token

    found = find_token(_said.token_file)
    return partial(read_token, found) if isinstance(found, Path) else found


def await_(work: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine from start to end; Ctrl-C cancels it, and a second one waits for nothing.

    `asyncio.run` alone would overlook a Ctrl-C that comes just before it waits, or to another
    thread, until something else happens. A command that ignores Ctrl-C, as one in the background of
    a script does, goes on ignoring it.
    """
    interrupted = False

    async def interruptible() -> T:
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            loop.remove_signal_handler(signal.SIGINT)
            this.cancel()

        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await work

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


def print_json(value: object) -> None:
    """One line with the JSON of `value`."""
    import msgspec

    write_line(msgspec.json.encode(value))


def write_line(line: bytes) -> None:
    """One line to standard output, at once: a program that reads it may be waiting for it."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def say(sentence: str) -> None:
    """One line to standard error."""
    print(sentence, file=sys.stderr, flush=True)


def console(*, aside: bool = False) -> Console:
    """For tables on standard output, or `aside` on standard error; as wide as they need where
    nobody watches."""
    from rich.console import Console

    class PlainEnd(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Answered in one place, for all commands.

    watched = (sys.stderr if aside else sys.stdout).isatty()
    return PlainEnd(stderr=aside, soft_wrap=not watched, width=None if watched else 240)


def counting_bar(label: str, *, remaining: bool) -> Progress:
    """A bar on stderr for work that is counted, with the time left or the time gone; shows nothing
    where nobody watches."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn() if remaining else TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
