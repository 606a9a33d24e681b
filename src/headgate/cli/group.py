"""`headgate group`: consumer groups, how far they are, and where an operator has them begin.

Invariant: what will come again and what will never come is said before it happens, and the operator
has agreed to it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import click

from headgate.cli.command_line import Argument, Group, Option
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
from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from headgate.model.groups_api import GroupInfo, GroupList, GroupReset

app = Group(help="Look at consumer groups, and have one begin elsewhere.")

RESET_TIMEOUT_S = 60.0
TopicArgument = Annotated[str, Argument(metavar="TOPIC", help="The topic that it shares.")]
GroupArgument = Annotated[str, Argument(metavar="GROUP", help="The name of the group.")]


@app.command("list")
def list_groups(url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """List the consumer groups."""
    found = await_(_list(url))
    if as_json:
        print_json(found)
    elif found.groups:
        from headgate.cli.views.group import groups_view

        console().print(groups_view(found))
    else:
        say("there are no consumer groups")


@app.command()
def describe(
    topic: TopicArgument, group: GroupArgument, url: UrlOption = NO_URL, as_json: JsonOption = False
) -> None:
    """Show who owns its targets, and up to where they have processed each partition."""
    found = await_(_describe(url, topic, group))
    if as_json:
        print_json(found)
    else:
        from headgate.cli.views.group import group_view

        console().print(group_view(found))


@app.command()
def reset(
    topic: TopicArgument,
    group: GroupArgument,
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="earliest|latest|TIME",
            help="Where it begins: with the first record there is, with what comes from now on, or "
            "with what was appended since a time such as 2026-01-31T12:00:00Z.",
        ),
    ],
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would happen.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Don't ask.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Have a group go back, or past records.

    What it goes back to is handed out again, in order per key; what it goes past never is. Its
    consumers are told of either (resync).
    """
    planned = await_(_reset(url, topic, group, to, dry_run=True))
    if dry_run and as_json:
        print_json(planned)
        return
    _warn(planned)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"resetting {group} can't be undone, and nobody can be asked here: add --yes"
            )
        click.confirm(f"Reset {group}?", abort=True, err=True)
    done = await_(_reset(url, topic, group, to, dry_run=False))
    if as_json:
        print_json(done)
    else:
        print(f"{group} begins at {to} in {len(done.partitions)} partitions of {topic}")


def _warn(planned: GroupReset) -> None:
    again = sum(one.repeats_max for one in planned.partitions)
    never = sum(one.skips_max for one in planned.partitions)
    if again:
        say(f"up to {_records(again)} will be handed out again; consumers are told to resync")
    if never:
        say(f"up to {_records(never)} will never be handed out; consumers are told to resync")
    if not again and not never:
        say(f"{planned.group} is there already; what is in hand may be handed out twice")
    for one in planned.partitions:
        where = f"{planned.topic}:{one.partition}"
        say(f"{where} from {one.lowest + 1:,}-{one.highest + 1:,} to {one.next_seq:,}")


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


async def _list(url: str) -> GroupList:
    from headgate.model.groups_api import GroupList

    async with calls_to(url) as client:
        return await client.get("/v1/groups", GroupList)


async def _describe(url: str, topic: str, group: str) -> GroupInfo:
    from headgate.model.groups_api import GroupInfo

    async with calls_to(url) as client:
        return await client.get(_path(topic, group), GroupInfo)


async def _reset(url: str, topic: str, group: str, to: str, *, dry_run: bool) -> GroupReset:
    from headgate.model.groups_api import GroupReset, ResetGroup

    async with calls_to(url, timeout_s=RESET_TIMEOUT_S) as client:
        path = f"{_path(topic, group)}/reset"
        return await client.post(path, ResetGroup(to, dry_run), GroupReset)


def _path(topic: str, group: str) -> str:
    from urllib.parse import quote

    return f"/v1/groups/{quote(topic, safe='')}/{quote(group, safe='')}"
