"""`headgate explain`: where a record is, what became of it, and why a subscriber did or didn't get
it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import msgspec

from headgate.cli.command_line import Argument, Option
from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    calls_to,
    console,
    print_json,
)
from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from headgate.model.explain_api import DryRun, Explanation

TIMEOUT_S = 30.0
DOCUMENT_BYTES_MAX = 2 * 1024 * 1024


def explain(
    record: Annotated[str, Argument(metavar="EVENT_ID|TOPIC:P:SEQ", help="The record.")] = "",
    subscription: Annotated[
        str | None, Option("--subscription", metavar="ID", help="Only this subscription.")
    ] = None,
    where: Annotated[
        str | None,
        Option("--where", metavar="CEL", help="Ask this filter instead of the subscriptions."),
    ] = None,
    topic: Annotated[
        str, Option("--topic", metavar="NAME", help="Where to look for the event id.")
    ] = "",
    document: Annotated[
        str | None,
        Option(
            "--document",
            metavar="FILE",
            help="Say which subscribers would get this document (- is standard input).",
        ),
    ] = None,
    key: Annotated[
        str | None, Option("--key", help="With --document: the key of the event.")
    ] = None,
    collection: Annotated[
        str, Option("--collection", help="With --document: its collection.")
    ] = "",
    matching: Annotated[
        bool, Option("--matching", help="Only subscriptions that the record concerns.")
    ] = False,
    limit: Annotated[
        int, Option("--limit", min=1, max=500, help="How many subscriptions at most.")
    ] = 20,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Say where a record is, what became of it, and why a subscriber got it or didn't.

    Nothing is consumed, moved or delivered by asking. What was tried is known for as long as lanes
    and gateways remember it; the answer says what isn't known any more.
    """
    from headgate.model.explain_api import DryRun

    about = {"subscription": subscription, "where": where}
    if document is not None:
        if record:
            raise InvalidRequest("name a record, or give a --document: not both")
        if not topic:
            raise InvalidRequest("for which topic is the document? add --topic NAME")
        body = DryRun(
            topic,
            _document(document),
            key,
            collection,
            subscription=subscription,
            where=where,
            show="matching" if matching else "all",
            limit=limit,
        )
        answer = await_(_would(url, body))
    elif not record:
        raise InvalidRequest(
            "which record? name TOPIC:PARTITION:SEQ or an event id, or give a --document"
        )
    elif key is not None or collection:
        raise InvalidRequest("--key and --collection are those of a --document")
    else:
        given = {"record": record, "topic": topic, **about}
        query = {name: text for name, text in given.items() if text}
        query |= {"limit": str(limit)} | ({"show": "matching"} if matching else {})
        answer = await_(_became(url, query))
    if as_json:
        print_json(answer)
        return
    from headgate.cli.views.explain import explanation_view

    console().print(explanation_view(answer))


async def _became(url: str, query: dict[str, str]) -> Explanation:
    from headgate.model.explain_api import Explanation

    async with calls_to(url, timeout_s=TIMEOUT_S) as client:
        return await client.get(f"/v1/explain?{urlencode(query)}", Explanation)


async def _would(url: str, body: DryRun) -> Explanation:
    from headgate.model.explain_api import Explanation

    async with calls_to(url, timeout_s=TIMEOUT_S) as client:
        return await client.post("/v1/explain", body, Explanation)


def _document(name: str) -> msgspec.Raw:
    """As it stands in the file; raises InvalidRequest where that is no JSON."""
    raw = read_bytes(name, DOCUMENT_BYTES_MAX)
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{_shown(name)} is not a JSON document: {error}") from None
    return msgspec.Raw(raw)


def read_bytes(name: str, limit_bytes: int) -> bytes:
    """The whole file, or standard input; raises InvalidRequest for what can't be read."""
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise InvalidRequest(f"{name} can't be read: {error.strerror}") from None
    if len(raw) > limit_bytes:
        raise InvalidRequest(f"{_shown(name)} is longer than {limit_bytes:,} bytes")
    return raw


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name
