"""`headgate partition`: where routers read a partition from, as an operator decides.

Invariant: what will come again and what will never come is said before it happens, and the operator
has agreed to it.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import click

from headgate.cli.command_line import Argument, Group, Option
from headgate.cli.output import NO_URL, JsonOption, UrlOption, await_, calls_to, print_json, say
from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from headgate.model.api import ResetAnswer, ResetTo

app = Group(help="Let routers read a partition from elsewhere.")

RESET_TIMEOUT_S = 45.0
PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9][A-Za-z0-9._-]{0,127}):(?P<number>[0-9]{1,9})")


@app.command()
def reset(
    partition: Annotated[
        str, Argument(metavar="TOPIC:P", help="The partition, such as flights:0.")
    ],
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="earliest|latest|SEQ",
            help="What is read next: the first record there is, what comes from now on, or SEQ.",
        ),
    ],
    resync: Annotated[
        bool, Option("--resync", help="Tell subscribers of what is skipped.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Don't ask.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Go back in a partition, or past records of it.

    Going back delivers records again, marked as redeliveries, to the subscribers there are then,
    and puts consumer groups back. Going forward skips records: subscribers don't get them, and hear
    of it only with --resync.
    """
    topic, number = _partition(partition)
    target = _target(to)
    planned = await_(_reset(url, topic, number, target, resync, dry_run=True))
    _warn(planned)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"resetting {partition} can't be undone, and nobody can be asked here: add --yes"
            )
        click.confirm(f"Reset {partition}?", abort=True, err=True)
    done = await_(_reset(url, topic, number, target, resync, dry_run=False))
    if as_json:
        print_json(done)
    else:
        print(f"{partition} is read from {done.next_seq:,} on")


def _partition(text: str) -> tuple[str, int]:
    found = PARTITION.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{text!r} is no partition; name one as TOPIC:P, such as flights:0")
    return found["topic"], int(found["number"])


def _target(text: str) -> ResetTo:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    raise InvalidRequest(f"--to {text!r} is neither earliest, latest nor the seq of a record")


def _warn(planned: ResetAnswer) -> None:
    place = f"{planned.topic}:{planned.partition}"
    if planned.repeats:
        say(
            f"{place} goes back from {planned.settled + 1:,} to {planned.next_seq:,}: "
            f"{_records(planned.repeats)} will be delivered again, marked as redeliveries"
        )
    elif planned.skips:
        told = "subscribers are told to resync" if planned.resync else "and nobody is told"
        say(
            f"{place} goes on from {planned.settled + 1:,} to {planned.next_seq:,}: "
            f"{_records(planned.skips)} will be skipped, {told}"
        )
    else:
        say(f"{place} is there already; what is on its way may be delivered twice")


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


async def _reset(
    url: str, topic: str, number: int, to: ResetTo, resync: bool, *, dry_run: bool
) -> ResetAnswer:
    from headgate.model.api import ResetAnswer, ResetPartition

    path = f"/v1/topics/{topic}/partitions/{number}/reset"
    async with calls_to(url, timeout_s=RESET_TIMEOUT_S) as client:
        return await client.post(path, ResetPartition(to, resync, dry_run), ResetAnswer)
