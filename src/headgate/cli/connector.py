"""`headgate connector`: connectors that bring a database's changes into topics.

Invariant: what will be left out, or begun elsewhere, is said before it happens, and the operator
has agreed to it.
"""

from __future__ import annotations

import sys
from pathlib import Path
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
    from headgate.model.connectors_api import (
        ConnectorInfo,
        ConnectorList,
        CreateConnector,
        DeletedConnector,
        OriginChecked,
    )

CHECK_TIMEOUT_S = 60.0
"""An ingest node looks at the origin first."""
FAILED = 1

app = Group(help="Bring the changes of a database into topics.")

NameArgument = Annotated[str, Argument(metavar="NAME", help="The connector.")]
MaybeName = Annotated[
    str, Argument(metavar="[NAME]", help="The connector; a --file names its own.")
]
TypeOption = Annotated[str, Option("--type", help="What it reads.")]
UriOption = Annotated[
    str,
    Option(
        "--uri",
        help="Where the database is; a password as ${NAME} or ${file:PATH} of the ingest nodes.",
    ),
]
DsnOption = Annotated[
    str,
    Option("--dsn", help="The same for postgresql, as a URL or as keywords."),
]
TableOption = Annotated[
    list[str] | None,
    Option("--table", metavar="SCHEMA.NAME", help="Which tables (else all; SCHEMA.*)."),
]
DatabaseOption = Annotated[str, Option("--database", help="Which database (else all).")]
CollectionOption = Annotated[str, Option("--collection", help="Which collection (else all).")]
TopicOption = Annotated[str, Option("--topic", help="Gets what no --route leads elsewhere.")]
RouteOption = Annotated[
    list[str] | None,
    Option("--route", metavar="PATTERN=TOPIC", help="Collections like PATTERN go to TOPIC."),
]
SetOption = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Another setting of its type."),
]
FileOption = Annotated[
    Path | None,
    Option("--file", metavar="FILE", help="YAML with one connector, or several."),
]
FromOption = Annotated[str, Option("--from", metavar="now|TIME|POSITION", help="Where it begins.")]
YesOption = Annotated[bool, Option("--yes", "-y", help="Don't ask.")]


@app.command()
def create(
    name: MaybeName = "",
    kind: TypeOption = "mongodb",
    uri: UriOption = "",
    dsn: DsnOption = "",
    database: DatabaseOption = "",
    collection: CollectionOption = "",
    tables: TableOption = None,
    topic: TopicOption = "",
    routes: RouteOption = None,
    settings: SetOption = None,
    file: FileOption = None,
    begins: FromOption = "now",
    snapshot: Annotated[
        bool,
        Option("--snapshot", help="Read what is there already, too, beside the changes."),
    ] = False,
    no_check: Annotated[
        bool, Option("--no-check", help="Create it without a look at the database first.")
    ] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Create a connector, once everything it needs is there.

    Asked again for the same, it changes nothing. docs/connectors.md explains the settings.
    """
    wanted = _wanted(
        name, kind, uri, dsn, database, collection, tables, topic, routes, settings, file, begins,
        snapshot=snapshot,
    )  # fmt: skip
    for one in wanted:
        made = await_(_create(url, one, check=not no_check))
        if as_json:
            print_json(made)
        else:
            topics = ", ".join(fed.topic for fed in made.topics)
            print(f"created {made.name}: {made.type} into {topics}, {made.state}")


@app.command()
def check(
    name: MaybeName = "",
    kind: TypeOption = "mongodb",
    uri: UriOption = "",
    dsn: DsnOption = "",
    database: DatabaseOption = "",
    collection: CollectionOption = "",
    tables: TableOption = None,
    topic: TopicOption = "",
    routes: RouteOption = None,
    settings: SetOption = None,
    file: FileOption = None,
    begins: FromOption = "now",
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Look whether a connector could start, and say what is missing; nothing is created.

    An ingest node looks, because they read. Exit code 1 when something is missing.
    """
    wanted = _wanted(
        name or "unnamed", kind, uri, dsn, database, collection, tables, topic or "any", routes,
        settings, file, begins, may_be_unnamed=True,
    )  # fmt: skip
    is_ok = True
    for one in wanted:
        found = await_(_check(url, one))
        is_ok = is_ok and found.ok
        _show_findings(found, one.name if len(wanted) > 1 else "", as_json=as_json)
    if not is_ok:
        raise click.exceptions.Exit(FAILED)


@app.command("list")
def list_connectors(url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """List all connectors."""
    from headgate.cli.views.connector import connectors_table

    found = await_(_list(url))
    if as_json:
        print_json(found)
    elif found.connectors:
        console().print(connectors_table(found.connectors))
    else:
        say("there are no connectors: create one with `headgate connector create NAME`")


@app.command()
def describe(name: NameArgument, url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """Show how a connector fares: state, position, lag, the history that is left, and why."""
    _show(await_(_describe(url, name)), as_json=as_json)


@app.command()
def pause(name: NameArgument, url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """Let a connector rest, for as long as its database keeps the history."""
    _done(await_(_post(url, name, "pause")), f"{name} is paused", as_json=as_json)


@app.command()
def resume(name: NameArgument, url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """Let a paused connector go on where it was."""
    _done(await_(_post(url, name, "resume")), f"{name} goes on", as_json=as_json)


@app.command()
def skip(
    name: NameArgument, yes: YesOption = False, url: UrlOption = NO_URL, as_json: JsonOption = False
) -> None:
    """Leave out the one change that a connector has stopped at; it is recorded."""
    from headgate.model.connectors_api import SkipChange

    found = await_(_describe(url, name))
    if found.state != "stopped" or not found.stopped_at:
        # The server would skip where it is by now, which nobody has seen.
        raise InvalidRequest(
            f"connector {name} hasn't stopped at a change, so there is none to skip; see `headgate "
            f"connector describe {name}`"
        )
    say(f"{name} has stopped at {found.stopped_what or 'a change'} ({found.stopped_at})")
    _agreed(yes, f"skipping it leaves it out of {name} for good", "Leave that change out?")
    body = SkipChange(found.stopped_at)
    _done(await_(_post(url, name, "skip", body)), f"{name} leaves it out", as_json=as_json)


@app.command()
def reset(
    name: NameArgument,
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="now|snapshot|TIME|POSITION",
            help="Where it begins anew: now, 2026-11-18T12:00:00Z, or a record's source; snapshot: "
            "now, with all that is there, and deletes of what isn't.",
        ),
    ],
    yes: YesOption = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Let a connector begin anew elsewhere, such as where its database's history was lost.

    Changes between where it was and where it begins are never read, or are read once more.
    """
    from headgate.model.connectors_api import ResetConnector

    found = await_(_describe(url, name))
    between = (
        "what it finds there is read, and what the log has beyond that is deleted"
        if to == "snapshot"
        else "what is between is left out, or comes once more"
    )
    say(
        f"{name} stands at {found.position or 'its beginning'} and will begin anew at {to}: "
        f"{between}"
    )
    _agreed(yes, f"resetting {name} can't be undone", f"Reset {name}?")
    done = await_(_post(url, name, "reset", ResetConnector(to)))
    _done(done, f"{name} begins anew at {done.begin_at}", as_json=as_json)


@app.command()
def snapshot(
    name: NameArgument,
    tables: Annotated[
        list[str] | None,
        Option("--table", metavar="SCHEMA.NAME", help="This table alone (several)."),
    ] = None,
    collections: Annotated[
        list[str] | None,
        Option("--collection", metavar="NAME", help="This collection alone (several)."),
    ] = None,
    cancel: Annotated[
        bool,
        Option("--cancel", help="End the snapshots that aren't done; rows that were read stay."),
    ] = False,
    no_wait: Annotated[bool, Option("--no-wait", help="Don't wait until it is done.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Read what a connector's tables or collections hold, beside their changes, and show how far.

    It goes on without this command, too; `headgate connector describe` shows it.
    """
    from headgate.cli.connector_snapshot import cancelled, followed, wanted

    only = [*(tables or []), *(collections or [])]
    if cancel and only:
        raise InvalidRequest("--cancel ends all snapshots of a connector: leave the others out")
    if cancel:
        _done(await_(cancelled(url, name)), f"{name} reads changes alone", as_json=as_json)
        return
    asked = await_(wanted(url, name, only))
    if no_wait or as_json:
        _done(asked, f"{name} reads what is there", as_json=as_json)
        return
    await_(followed(url, name, only))


@app.command()
def delete(
    name: NameArgument, yes: YesOption = False, url: UrlOption = NO_URL, as_json: JsonOption = False
) -> None:
    """Delete a connector, and how far it was; the records that it brought stay."""
    if not yes:
        await_(_describe(url, name))  # A name that is mistyped is nothing to confirm.
    _agreed(yes, f"deleting {name} forgets how far it was", f"Delete {name}?")
    left = await_(_delete(url, name)).left
    if as_json:
        print_json({"deleted": name} | ({"left": left} if left else {}))
    else:
        print(f"deleted {name}")
    if left:
        say(left)


# --- what is wanted ------------------------------------------------------------------------------


def _wanted(
    name: str,
    kind: str,
    uri: str,
    dsn: str,
    database: str,
    collection: str,
    tables: list[str] | None,
    topic: str,
    routes: list[str] | None,
    settings: list[str] | None,
    file: Path | None,
    begins: str,
    *,
    snapshot: bool = False,
    may_be_unnamed: bool = False,
) -> list[CreateConnector]:
    from headgate.cli.connector_wishes import from_file, from_options

    if file is not None:
        given = uri or dsn or database or collection or tables or routes or settings or snapshot
        if given or ((name or topic) and not may_be_unnamed):
            raise InvalidRequest("the file says it all: leave out the name and the other options")
        return from_file(file)
    if not name:
        raise InvalidRequest("name the connector, or say --file FILE with all of it")
    return [
        from_options(
            name,
            kind,
            uri=uri,
            dsn=dsn,
            database=database,
            collection=collection,
            tables=tables or [],
            topic=topic,
            routes=routes or [],
            settings=settings or [],
            begins=begins,
            snapshot=snapshot,
        )
    ]


def _agreed(yes: bool, what: str, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{what}, and nobody can be asked here: add --yes")
    click.confirm(question, abort=True, err=True)


# --- what is shown -------------------------------------------------------------------------------


def _show(found: ConnectorInfo, *, as_json: bool) -> None:
    from headgate.cli.views.connector import description

    if as_json:
        print_json(found)
        return
    out = console()
    for line in description(found):
        out.print(line)


def _done(found: ConnectorInfo, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print(sentence)


def _show_findings(found: OriginChecked, name: str, *, as_json: bool) -> None:
    from headgate.cli.views.connector import findings_table

    if as_json:
        print_json(found)
        return
    if name:
        print(f"{name}:")
    console().print(findings_table(found.findings))


# --- the server ----------------------------------------------------------------------------------


def path_of(name: str, action: str = "") -> str:
    import re

    from headgate.model.api import NAME_PATTERN, NAME_RULE

    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(f"{name!r} can't be a connector: a name has {NAME_RULE}")
    return f"/v1/connectors/{name}" + (f"/{action}" if action else "")


async def _create(url: str, wanted: CreateConnector, *, check: bool) -> ConnectorInfo:
    import msgspec

    from headgate.cli.views.connector import findings_table
    from headgate.model.connectors_api import ConnectorInfo, OriginFinding

    path = "/v1/connectors" + ("" if check else "?check=false")
    async with calls_to(url, timeout_s=CHECK_TIMEOUT_S) as client:
        try:
            return await client.post(path, wanted, ConnectorInfo)
        except InvalidRequest as error:
            if found := error.details.get("findings"):
                findings = msgspec.convert(found, list[OriginFinding])
                console(aside=True).print(findings_table(findings))
            raise


async def _check(url: str, wanted: CreateConnector) -> OriginChecked:
    from headgate.model.connectors_api import OriginChecked, OriginSettings

    async with calls_to(url, timeout_s=CHECK_TIMEOUT_S) as client:
        body = OriginSettings(wanted.type, wanted.settings)
        return await client.post("/v1/connectors/check", body, OriginChecked)


async def _list(url: str) -> ConnectorList:
    from headgate.model.connectors_api import ConnectorList

    async with calls_to(url) as client:
        return await client.get("/v1/connectors", ConnectorList)


async def _describe(url: str, name: str) -> ConnectorInfo:
    from headgate.model.connectors_api import ConnectorInfo

    async with calls_to(url) as client:
        return await client.get(path_of(name), ConnectorInfo)


async def _post(url: str, name: str, action: str, body: object = None) -> ConnectorInfo:
    from headgate.model.connectors_api import ConnectorInfo

    async with calls_to(url) as client:
        return await client.post(path_of(name, action), {} if body is None else body, ConnectorInfo)


async def _delete(url: str, name: str) -> DeletedConnector:
    import msgspec

    from headgate.model.connectors_api import DeletedConnector

    async with calls_to(url, timeout_s=CHECK_TIMEOUT_S) as client:
        answer = await client.call("DELETE", path_of(name))
    return msgspec.json.decode(answer, type=DeletedConnector) if answer else DeletedConnector(name)
