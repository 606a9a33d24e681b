"""The `headgate` command: which commands there are, and how each of them ends.

Invariants: a user's mistake is one sentence on standard error and exit code 2 (several in a
configuration are a line each), another failure one sentence and exit code 1, never a traceback. A
command's module is imported when that command runs, so that `headgate --help` and the quick
commands don't wait for the heavy ones.
"""

from __future__ import annotations

import atexit
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click

from headgate.cli.command_line import command_of
from headgate.errors import ANOTHER_ADDRESS, HeadgateError, InvalidRequest

INTERRUPTED = 130
PIPE_CLOSED = 141


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """`target` is `module:name` of a function or of a group of commands."""

    target: str
    help: str

    def load(self, name: str) -> click.Command:
        module, attribute = self.target.split(":")
        found = getattr(importlib.import_module(module), attribute)
        command = found if isinstance(found, click.Command) else command_of(found)
        command.name = name
        _take_token_files(command)
        return command


def _take_token_files(command: Any) -> None:
    """Whatever calls an address may be told where the token is to say there."""
    for inner in getattr(command, "commands", {}).values():
        _take_token_files(inner)
    if any(parameter.name == "url" for parameter in command.params):
        from headgate.cli.output import token_file_option

        command.params.append(token_file_option())


COMMANDS = {
    "up": LazyCommand("headgate.cli.up:up", "Run all roles on this machine."),
    "coordinator": LazyCommand(
        "headgate.cli.roles:coordinator", "Run the coordinator: members, topics, assignments."
    ),
    "ingest": LazyCommand("headgate.cli.roles:ingest", "Run an ingest node: takes events in."),
    "router": LazyCommand("headgate.cli.roles:router", "Run a router: matches and delivers."),
    "gateway": LazyCommand("headgate.cli.roles:gateway", "Run a gateway: serves users."),
    "topic": LazyCommand(
        "headgate.cli.topic:app", "Create, list, describe, repartition and delete topics."
    ),
    "partition": LazyCommand(
        "headgate.cli.partition:app", "Let routers read a partition from elsewhere."
    ),
    "token": LazyCommand("headgate.cli.token:app", "Make, list and revoke API tokens."),
    "log": LazyCommand("headgate.cli.log:app", "Look at what is stored of a topic."),
    "connector": LazyCommand(
        "headgate.cli.connector:app", "Bring the changes of a database into topics."
    ),
    "produce": LazyCommand("headgate.cli.produce:produce", "Send JSON lines to a topic."),
    "subscribe": LazyCommand(
        "headgate.cli.subscribe:subscribe", "Print the events of a topic as they happen."
    ),
    "explain": LazyCommand(
        "headgate.cli.explain:explain", "Say what became of a record, and which subscribers got it."
    ),
    "group": LazyCommand(
        "headgate.cli.group:app", "Look at consumer groups, and have one begin elsewhere."
    ),
    "filter": LazyCommand("headgate.cli.filter:app", "Try a filter on documents."),
    "status": LazyCommand("headgate.cli.status:status", "Show nodes, topics, moves and lag."),
    "top": LazyCommand("headgate.cli.top:top", "Watch the whole system in a terminal."),
    "dlq": LazyCommand(
        "headgate.cli.dlq:app", "Look at dead letters, send them again, or delete them."
    ),
    "node": LazyCommand("headgate.cli.node:app", "List the nodes, and drain one of them."),
    "rebalance": LazyCommand(
        "headgate.cli.rebalance:rebalance", "Spread the partitions evenly over the nodes."
    ),
    "doctor": LazyCommand("headgate.cli.doctor:doctor", "Check this machine and what runs."),
    "demo": LazyCommand("headgate.cli.demo:demo", "Show the whole system with simulated aircraft."),
    "bench": LazyCommand("headgate.cli.bench:bench", "Measure, and compare with a baseline."),
    "config": LazyCommand("headgate.cli.config:app", "Look at the configuration."),
    "completion": LazyCommand(
        "headgate.cli.completion:completion", "Have a shell complete commands with Tab."
    ),
}
"""Every command, in the order of the help text."""


def usage_sentence(wrong: str, command: str) -> str:
    """What is `wrong` with a command line, and where to read on."""
    wrong = wrong.rstrip(".")
    see = " See" if wrong.endswith("?") else "; see"
    return f"{wrong}{see} `{command} --help`"


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A wrong option, argument or command is said as everything else is."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # Without arguments the help text is the answer.
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "headgate"
        raise InvalidRequest(usage_sentence(error.format_message(), command)) from None


class Commands(click.Group):
    """The group of COMMANDS; loads the one that is called, and only that."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The real command once it was called for, until then one that has only its help."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        return click.Command(cmd_name, help=COMMANDS[cmd_name].help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        called = args[0]
        if called in COMMANDS:
            self.commands[called] = COMMANDS[called].load(called)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                # Loaded (cli/entry.py): from here on there may be something to end in order.
                signal.signal(signal.SIGINT, signal.default_int_handler)
        else:
            # A mistyped name is compared with these.
            known = {name: self.get_command(ctx, name) for name in COMMANDS}
            self.commands.update({name: one for name, one in known.items() if one is not None})
        return super().resolve_command(ctx, args)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _one_sentence():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        # Here and not around the whole: the library would turn these into codes of its own.
        try:
            with _one_sentence():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            # The program that read our output has left; flushing at exit must not complain about
            # it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(PIPE_CLOSED) from None


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        print(f"headgate {version('headgate')}")
        ctx.exit()


app = Commands(
    "headgate",
    help="Routes every change in a user's data to everyone who asked for it.",
    no_args_is_help=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        )
    ],
)


def run() -> None:
    """The entry point of the `headgate` command."""
    code = _exit_code()
    # Python's own way out takes the interpreter down under the threads of the HTTP client, and one
    # that comes back at that moment aborts the process: with about one call in ten, on Python 3.11.
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _write_whole_lines() -> None:
    """With PYTHONUNBUFFERED set, standard output drops what doesn't fit a pipe at once."""
    raw = sys.stdout.buffer
    if isinstance(raw, io.RawIOBase):
        buffered = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffered, sys.stdout.encoding, line_buffering=True)


def _exit_code() -> int:
    try:
        _write_whole_lines()
        app(prog_name="headgate")
    except HeadgateError as error:
        how = " with --url" if error.message.endswith(ANOTHER_ADDRESS) else ""
        for sentence in str(error).splitlines():
            print(f"headgate: {sentence}{how}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
