"""`headgate token`: who is let in, by tokens that are shown once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from headgate.client.http import HttpClient
    from headgate.model.access_api import CreatedToken, TokenList

app = Group(help="Make, list and revoke API tokens.")

NameArgument = Annotated[str, Argument(metavar="NAME", help="What the token is called.")]


@app.command()
def create(
    name: NameArgument,
    grant: Annotated[
        list[str] | None,
        Option(
            metavar="GRANT",
            help="What it may do, such as 'produce on orders.*', 'subscribe on flights where "
            "tenant == claims.tenant', 'read:topics' or 'admin'; may be given several times.",
        ),
    ] = None,
    expires: Annotated[
        str | None, Option(metavar="DURATION", help="How long it is good, such as 30d.")
    ] = None,
    tenant: Annotated[str, Option(help="The tenant it belongs to; claims.tenant in filters.")] = "",
    events_per_s: Annotated[
        int | None, Option(min=1, help="Most events it may produce per second.")
    ] = None,
    bytes_per_s: Annotated[
        int | None, Option(min=1, help="Most bytes it may produce per second.")
    ] = None,
    connections: Annotated[
        int | None, Option(min=1, help="Most connections it may have at each gateway.")
    ] = None,
    subscriptions: Annotated[
        int | None, Option(min=1, help="Most subscriptions it may have at each gateway.")
    ] = None,
    filter_cost: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="Most time its filters may take together for one document, at worst, such as 5ms.",
        ),
    ] = None,
    first: Annotated[
        bool,
        Option("--first", help="The first administrator's, on the coordinator's machine (--data)."),
    ] = False,
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", help="The coordinator's data folder, for --first."),
    ] = None,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Make an API token. It is printed this once and kept nowhere."""
    from headgate.decide.durations import parse_duration_ms
    from headgate.model.access import Limits
    from headgate.model.access_api import CreateToken

    grants = grant or (["admin"] if first else [])
    if not grants:
        raise InvalidRequest("say what it may do with --grant, such as --grant 'produce'")
    limits = Limits(
        events_per_s or 0,
        bytes_per_s or 0,
        connections or 0,
        subscriptions or 0,
        parse_duration_ms(filter_cost) * 1_000 if filter_cost else 0,
    )
    wanted = CreateToken(name, grants, tenant, expires, limits, first)
    made = await_(_create(_local_client(data) if first else calls_to(url), wanted))
    if as_json:
        print_json(made)
        return
    say(f"token {name}, to be sent as Authorization: Bearer; it isn't shown again:")
    print(made.token)


def _local_client(data: Path | None) -> HttpClient:
    """To the coordinator of that folder, with the admin's key that lies in it."""
    from headgate.adapters.embedded.folder import DataFolder
    from headgate.client.credentials import Credentials
    from headgate.client.http import HttpClient
    from headgate.config import load_config
    from headgate.wiring.access import admin_key

    root = data or load_config().config.data
    left = admin_key(DataFolder.to_read(root, otherwise="name the coordinator's with --data"))
    return HttpClient(left.url, credentials=Credentials(left.key))


async def _create(client: HttpClient, wanted: object) -> CreatedToken:
    from headgate.model.access_api import CreatedToken

    async with client:
        return await client.post("/v1/tokens", wanted, CreatedToken)


@app.command("list")
def list_tokens(url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """Show which tokens there are, and what they may do."""
    found = await_(_list(url))
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table("name", "tenant", "grants", "created", "ends", box=None)
    for one in found.tokens:
        ends = _shown(one.expires_ms) if one.expires_ms else "never"
        table.add_row(one.name, one.tenant, "; ".join(one.grants), _shown(one.created_ms), ends)
    console().print(table)


async def _list(url: str) -> TokenList:
    from headgate.model.access_api import TokenList

    async with calls_to(url) as client:
        return await client.get("/v1/tokens", TokenList)


@app.command()
def revoke(name: NameArgument, url: UrlOption = NO_URL) -> None:
    """End a token: clients that are connected with it are gone within seconds."""
    await_(_revoke(url, name))
    say(f"revoked token {name}")


async def _revoke(url: str, name: str) -> None:
    from urllib.parse import quote

    async with calls_to(url) as client:
        await client.delete(f"/v1/tokens/{quote(name, safe='')}")


def _shown(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M")
