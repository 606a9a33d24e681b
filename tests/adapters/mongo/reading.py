"""Reading an origin as tests do: until so many events are there, each at a higher position."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from headgate.adapters.mongo.origin import MongoOrigin
from headgate.adapters.mongo.stream import MongoChangeStream
from headgate.model.connector import BEGIN_NOW
from headgate.model.event import Event
from headgate.ports.origin import ChangeStream

NAME = "orders"
QUIET = 25
"""So many empty answers, each a second's wait, and what was to come doesn't: a bound, which only a
test that fails comes to."""


def no_secrets(reference: str) -> str:
    raise AssertionError(f"nothing refers to {reference}")


@contextlib.asynccontextmanager
async def an_origin(uri: str, **settings: str) -> AsyncIterator[MongoOrigin]:
    origin = MongoOrigin({"uri": uri, **settings}, name=NAME, resolve=no_secrets)
    try:
        yield origin
    finally:
        await origin.close()


@contextlib.asynccontextmanager
async def a_stream(
    uri: str, *, after: str = "", begin_at: str = BEGIN_NOW, **settings: str
) -> AsyncIterator[MongoChangeStream]:
    async with an_origin(uri, **settings) as origin, origin.open(after, begin_at=begin_at) as found:
        yield found


async def events(stream: ChangeStream, wanted: int) -> list[Event]:
    """The next ones, at least `wanted` of them."""
    found: list[Event] = []
    quiet = 0
    while len(found) < wanted and quiet < QUIET:
        before = stream.position
        changes = await stream.next()
        quiet = 0 if changes.events else quiet + 1
        positions = [str(event.source) for event in changes.events]
        assert positions == sorted(set(positions)), "positions grow from event to event"
        assert not positions or before < positions[0]
        assert changes.position == stream.position >= max(positions, default=before)
        found += changes.events
    assert len(found) >= wanted, f"{len(found)} of {wanted} have come"
    return found


def documents(found: list[Event]) -> list[Any]:
    return [json.loads(event.document) for event in found]
