"""What flows through `bench pipeline`: aircraft reports of about 250 bytes, and who wants them.

Event after event is numbered; every tenth is of an aircraft that a subscription follows, and
exactly one subscription wants it, so it is known beforehand how many deliveries there must be.
"""

from __future__ import annotations

import random
from functools import cache

import msgspec

TOPIC = "flights"
SUBSCRIPTIONS = 10_000
EVERY = 10
"""One event out of so many matches."""
DOCUMENTS = SUBSCRIPTIONS * EVERY
"""After so many events the documents repeat; by then every subscription had one."""
SEED = 7


def where(subscription: int) -> str:
    return f'icao == "{_icao(subscription)}"'


def matching(first: int, count: int) -> int:
    """How many of the events from `first` on match."""
    return (first + count + EVERY - 1) // EVERY - (first + EVERY - 1) // EVERY


class Report(msgspec.Struct):
    icao: str
    callsign: str
    operator: str
    altitude: int
    speed: float
    lat: float
    lon: float
    squawk: str
    on_ground: bool
    tags: list[str]
    seen: str


@cache
def reports() -> list[Report]:
    chance = random.Random(SEED)
    return [
        Report(
            icao=_icao(number // EVERY if number % EVERY == 0 else SUBSCRIPTIONS + number),
            callsign=f"C{chance.randrange(10**6):06}",
            operator=f"op{chance.randrange(100)}",
            altitude=chance.randrange(45_000),
            speed=round(chance.uniform(100, 600), 1),
            lat=round(chance.uniform(-90, 90), 6),
            lon=round(chance.uniform(-180, 180), 6),
            squawk=f"{chance.randrange(7777):04}",
            on_ground=False,
            tags=[f"t{chance.randrange(1_000)}", "heavy"],
            seen="2025-01-31T12:00:00Z",
        )
        for number in range(DOCUMENTS)
    ]


@cache
def _parts() -> list[bytes]:
    """Each report as an event of a produce request, up to its id."""
    encode = msgspec.json.encode
    return [
        b'{"key":%b,"document":%b,"event_id":"' % (encode(one.icao), encode(one))
        for one in reports()
    ]


def produce_body(first: int, count: int) -> bytes:
    """A produce request with the events from `first` on."""
    parts = _parts()
    events = b'"},'.join(
        [parts[number % DOCUMENTS] + b"%012d" % number for number in range(first, first + count)]
    )
    return b'{"request_timeout":"30s","events":[' + events + b'"}]}'


def _icao(number: int) -> str:
    return f"{number:06x}"
