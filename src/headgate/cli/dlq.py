"""`headgate dlq`: look at letters, send them again, or delete them."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlencode

import click
import msgspec

from headgate.cli.command_line import Argument, Group, Option
from headgate.cli.letters_change import Change, Chosen, run_change
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
from headgate.errors import InvalidRequest
from headgate.model.letters_api import (
    CHUNK,
    ID_MAX,
    LISTED_MAX,
    LetterFilter,
    LetterInfo,
    LetterList,
)

app = Group(help="Look at dead letters, send them again, or delete them.")
PATH = "/v1/dead-letters"


class ReasonChoice(StrEnum):
    UNREACHABLE = "unreachable"
    OVERLOADED = "overloaded"
    TOO_OLD = "too_old"
    REJECTED = "rejected"
    SHED = "shed"
    LEFT = "left"
    FAILED = "failed"


GatewayOption = Annotated[str | None, Option(help="Only letters for this gateway.")]
GroupOption = Annotated[str | None, Option(help="Only letters of this consumer group.")]
TopicOption = Annotated[str | None, Option(help="Only letters of this topic.")]
PartitionOption = Annotated[int | None, Option(min=0, help="Only of this partition.")]
KeyOption = Annotated[str | None, Option(help="Only letters of events with this key.")]
ReasonOption = Annotated[ReasonChoice | None, Option(help="Only letters with this reason.")]
OlderOption = Annotated[
    str | None,
    Option("--older-than", metavar="AGE", help="Only older ones; an age such as 1h or 7d."),
]
NewerOption = Annotated[str | None, Option("--newer-than", metavar="AGE", help="Only newer ones.")]
IdsArgument = Annotated[
    list[int] | None, Argument(metavar="[ID]...", help="Letters, as `list` names them.")
]
AllOption = Annotated[bool, Option("--all", help="Every dead letter.")]
DryRunOption = Annotated[bool, Option("--dry-run", help="Only count them.")]
AfterOption = Annotated[
    int,
    Option(
        "--after", metavar="ID", min=0, max=ID_MAX, help="Go on after this one, with higher ids."
    ),
]


@app.command("list")
def list_letters(
    gateway: GatewayOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    key: KeyOption = None,
    reason: ReasonOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    parked: Annotated[
        bool, Option("--parked", help="Parked letters instead of dead ones.")
    ] = False,
    limit: Annotated[int, Option(min=1, help="How many at most.")] = CHUNK,
    after: AfterOption = 0,
    documents: Annotated[
        bool, Option("--documents", help="With --json: also the documents.")
    ] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the oldest ids first; or those that are parked."""
    wanted = _filter(gateway, group, topic, partition, key, reason, older_than, newer_than)
    found = await_(_list(url, wanted, parked, limit, after, documents=documents and as_json))
    if as_json:
        print_json(found)
        return
    if found.letters:
        from headgate.cli.views.letters import letters_table

        console().print(letters_table(found.letters))
    else:
        say(f"there are no {'parked' if parked else 'dead'} letters" + _of_that_kind(wanted))
    if found.more:
        say(f"there are more: add --after {found.last_id}, or --limit")


@app.command()
def show(
    letter: Annotated[int, Argument(metavar="ID", min=1, max=ID_MAX, help="The letter.")],
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Show a letter: why it is there, what was tried, and the whole event."""
    found = await_(_show(url, letter))
    if as_json:
        print_json(found)
    else:
        from headgate.cli.views.letters import letter_view

        console().print(letter_view(found))


@app.command()
def retry(
    ids: IdsArgument = None,
    gateway: GatewayOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    key: KeyOption = None,
    reason: ReasonOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    all_: AllOption = False,
    dry_run: DryRunOption = False,
    after: AfterOption = 0,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again: these, those of a kind, or all of them.

    They are delivered to everybody who is subscribed now, those of a consumer group to that group,
    outside the order, and marked as redeliveries. What nobody wants stays dead, and the command
    says so.
    """
    wanted = _filter(gateway, group, topic, partition, key, reason, older_than, newer_than)
    chosen = _chosen(ids, wanted, everything=all_, after=after)
    _run(url, Change("retry", "retried", waits=True), chosen, dry_run=dry_run, as_json=as_json)


@app.command()
def delete(
    ids: IdsArgument = None,
    gateway: GatewayOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    key: KeyOption = None,
    reason: ReasonOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    all_: AllOption = False,
    dry_run: DryRunOption = False,
    after: AfterOption = 0,
    yes: Annotated[bool, Option("--yes", "-y", help="Don't ask.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters for good: these, those of a kind, or all of them."""
    wanted = _filter(gateway, group, topic, partition, key, reason, older_than, newer_than)
    chosen = _chosen(ids, wanted, everything=all_, after=after)
    change = Change("delete", "deleted", options=("--yes",) if yes else ())
    if not (yes or dry_run or chosen.ids):
        _ask(url, change, chosen)
    _run(url, change, chosen, dry_run=dry_run, as_json=as_json)


def _ask(url: str, change: Change, chosen: Chosen) -> None:
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "deleting letters can't be undone, and nobody can be asked here: add --yes"
        )
    count = await_(run_change(url, change, chosen, dry_run=True)).count
    if count:
        click.confirm(f"Delete {plural(count, 'dead letter')} for good?", abort=True, err=True)


def _run(url: str, change: Change, chosen: Chosen, *, dry_run: bool, as_json: bool) -> None:
    if dry_run and chosen.after:
        raise InvalidRequest("--dry-run counts every letter that is meant: leave out --after")
    changed = await_(run_change(url, change, chosen, dry_run=dry_run))
    if as_json:
        print_json(changed)
    elif dry_run:
        print(f"{plural(changed.count, 'dead letter')} would be {change.done}")
    if changed.dead_again:
        raise click.exceptions.Exit(1)


def _filter(
    gateway: str | None,
    group: str | None,
    topic: str | None,
    partition: int | None,
    key: str | None,
    reason: ReasonChoice | None,
    older_than: str | None,
    newer_than: str | None,
) -> LetterFilter:
    return LetterFilter(
        gateway=gateway,
        group=group,
        topic=topic,
        partition=partition,
        key=key,
        reason=reason.value if reason else None,
        older_than=older_than,
        newer_than=newer_than,
    )


def _chosen(ids: list[int] | None, wanted: LetterFilter, *, everything: bool, after: int) -> Chosen:
    """Raises where the letters are named in no way, or in several that contradict each other."""
    filtered = wanted != LetterFilter()
    if not (ids or filtered or everything):
        raise InvalidRequest(
            "say which letters: their IDs, a filter such as --gateway or --older-than, or --all"
        )
    if ids and (filtered or everything):
        raise InvalidRequest("name letters by their IDs or by filters, not both")
    if filtered and everything:
        raise InvalidRequest("--all means every dead letter: leave it out, or the filters")
    if wrong := [one for one in ids or () if not 1 <= one <= ID_MAX]:
        raise InvalidRequest(f"{wrong[0]} is no letter's ID: see `headgate dlq list`")
    return Chosen(tuple(sorted(set(ids or ()))), wanted, after)


def _of_that_kind(wanted: LetterFilter) -> str:
    return " of that kind" if wanted != LetterFilter() else ""


async def _list(
    url: str, wanted: LetterFilter, parked: bool, limit: int, after: int, *, documents: bool
) -> LetterList:
    """Page by page, because the server bounds its answers."""
    found = LetterList([], after, more=True)
    parameters = {
        **{name: str(value) for name, value in msgspec.to_builtins(wanted).items()},
        "state": "parked" if parked else "dead",
        "documents": "true" if documents else "false",
    }
    async with calls_to(url) as client:
        while found.more and len(found.letters) < limit:
            most = min(limit - len(found.letters), LISTED_MAX)
            asked = urlencode({**parameters, "after": found.last_id, "limit": most})
            page = await client.get(f"{PATH}?{asked}", LetterList)
            found = LetterList([*found.letters, *page.letters], page.last_id, page.more)
    return found


async def _show(url: str, letter: int) -> LetterInfo:
    async with calls_to(url) as client:
        return await client.get(f"{PATH}/{letter}", LetterInfo)
