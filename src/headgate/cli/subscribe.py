"""`headgate subscribe`: prints the events of a topic, one JSON object per line.

Says `subscribed` on standard error once nothing can be missed, and one sentence there where records
will not come, or where the filter may not be what was meant. A line is written when its event
arrives, and its document is the producer's text, not a copy that was parsed and written again.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import click

from headgate.cli.command_line import Argument, Option
from headgate.cli.output import NO_URL, UrlOption, await_, say, token_source, write_line
from headgate.errors import InvalidFilter
from headgate.tasks import first_of

if TYPE_CHECKING:
    from headgate.client.subscriber import Event, Left, Subscriber


def subscribe(
    topic: Annotated[str, Argument(metavar="TOPIC", help="What to listen to.")],
    where: Annotated[
        str | None, Option("--where", metavar="CEL", help="Only events that match this.")
    ] = None,
    start: Annotated[
        str,
        Option(
            "--from",
            metavar="earliest|now|TIME|P:S,…",
            help="Where to start: at the beginning, now, at a time such as 2026-01-31T12:00:00Z, "
            "or at a seq per partition.",
        ),
    ] = "now",
    count: Annotated[
        int | None, Option("--count", min=1, help="End after this many events.")
    ] = None,
    tenant: Annotated[
        str, Option("--tenant", metavar="NAME", help="Whose quota this counts for.")
    ] = "",
    url: UrlOption = NO_URL,
    as_json: Annotated[  # noqa: ARG001  # accepted everywhere
        bool, Option("--json", help="Changes nothing: every event is a line of JSON anyway.")
    ] = False,
) -> None:
    """Print the events of a topic as they happen; ends with Ctrl-C.

    One JSON object per line: topic, partition, seq, event_id, key, op, document, subscriptions;
    `left` where a record doesn't match any more, `redelivery` where it comes again. What is said
    about them goes to standard error.
    """
    if where is not None:
        _hint(where)
    ended_by = await_(_subscribe(url, topic, where, start, count, tenant))
    if ended_by is not None and count is not None:
        raise click.exceptions.Exit(128 + ended_by)


def _hint(where: str) -> None:
    from headgate.decide.filter.hints import forgotten_quotes
    from headgate.decide.filter.parser import parse

    with suppress(InvalidFilter):  # The gateway says what is wrong, in the same words.
        if hint := forgotten_quotes(parse(where)):
            say(f"headgate: hint: {hint}")


async def _subscribe(
    url: str, topic: str, where: str | None, start: str, count: int | None, tenant: str
) -> int | None:
    """Print until `count` is reached or a signal comes; returns the signal's number."""
    from headgate.client.subscriber import Subscriber

    signals: list[int] = []
    subscriber = Subscriber(
        url, topic, where=where, start=start, tenant=tenant, token=token_source()
    )
    ended = asyncio.Event()

    def end(number: int) -> None:
        signals.append(number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    await first_of(_print(subscriber, count), ended.wait())
    return signals[0] if signals else None


async def _print(subscriber: Subscriber, count: int | None) -> None:
    from headgate.client.subscriber import Resync

    printed = 0
    async with subscriber:
        say("subscribed")
        async for item in subscriber:
            if isinstance(item, Resync):
                say(f"resync: {item}")
                continue
            write_line(_line(item))
            printed += 1
            if printed == count:
                return


def _line(event: Event | Left) -> bytes:
    import msgspec

    from headgate.client import subscriber

    line = msgspec.json.encode(
        {
            "topic": event.topic,
            "partition": event.partition,
            "seq": event.seq,
            "event_id": event.event_id,
            "key": event.key,
            **({"collection": event.collection} if event.collection else {}),
            "op": event.op,
            **({"headers": event.headers} if event.headers else {}),
            "document": event.raw,
            "subscriptions": event.subscriptions,
            **({"left": True} if isinstance(event, subscriber.Left) else {}),
            **({"redelivery": True} if event.redelivery else {}),
        }
    )
    # Between the parts of a document there may be line breaks; in JSON text any blank will do.
    return line.replace(b"\n", b" ").replace(b"\r", b" ")
