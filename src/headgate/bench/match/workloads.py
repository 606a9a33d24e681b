"""What `bench match` matches: aircraft reports of about 200 bytes, and subscriptions to them.

Invariant: whatever the number of subscriptions, an event matches about as many of them, because the
values they ask for get rarer as they get more. So the time per event at different numbers can be
compared: the output is the same. Everything comes from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from headgate.model.subscription import Subscription

TOPIC = "flights"
GATEWAYS = tuple(f"gateway-{number}" for number in range(4))
ALTITUDE_MAX = 45_000
SUBSCRIPTIONS_PER_OPERATOR = 100


class Sky:
    """How rare values are among `subscriptions`."""

    def __init__(self, subscriptions: int) -> None:
        self.aircraft = subscriptions
        self.operators = max(subscriptions // SUBSCRIPTIONS_PER_OPERATOR, 10)
        self.tags = subscriptions
        self.callsign_digits = len(str(subscriptions)) - 1
        self.band = 180.0 / subscriptions


Where = Callable[[Sky, random.Random], str]


def _equality(sky: Sky, chance: random.Random) -> str:
    return f'icao == "{chance.randrange(sky.aircraft):06x}"'


def _one_of(sky: Sky, chance: random.Random) -> str:
    three = ", ".join(f'"{chance.randrange(sky.aircraft):06x}"' for _ in range(3))
    return f"icao in [{three}]"


def _band(sky: Sky, chance: random.Random) -> str:
    south = chance.uniform(-90, 90 - sky.band)
    return f"lat >= {south:.6f} && lat < {south + sky.band:.6f}"


def _threshold(sky: Sky, chance: random.Random) -> str:
    operator = chance.randrange(sky.operators)
    return f'operator == "op{operator}" && altitude > {chance.randrange(44_100, ALTITUDE_MAX)}'


def _range(sky: Sky, chance: random.Random) -> str:
    return (_band if chance.random() < 0.5 else _threshold)(sky, chance)


def _prefix(sky: Sky, chance: random.Random) -> str:
    digits = sky.callsign_digits
    return f'callsign.startsWith("C{chance.randrange(10**digits):0{digits}}")'


def _element(sky: Sky, chance: random.Random) -> str:
    return f'tags.contains("t{chance.randrange(sky.tags)}")'


def _either(sky: Sky, chance: random.Random) -> str:
    return f"{_equality(sky, chance)} || {_prefix(sky, chance)} && altitude < 20000"


MIXTURE: tuple[tuple[int, Where], ...] = (
    (40, _equality),
    (10, _one_of),
    (15, _threshold),
    (15, _band),
    (10, _prefix),
    (5, _element),
    (5, _either),
)
"""Percent of the subscriptions of the mixed workload, and their form."""
_MIXED_FORMS = tuple(form for percent, form in MIXTURE for _ in range(percent))


def _mixed(sky: Sky, chance: random.Random) -> str:
    return chance.choice(_MIXED_FORMS)(sky, chance)


WORKLOADS: dict[str, Where] = {
    "equality": _equality,
    "range": _range,
    "prefix": _prefix,
    "mixed": _mixed,
}


def subscriptions(workload: str, count: int, *, of: int, seed: int) -> Iterator[Subscription]:
    """`count` subscriptions as there are among `of`; each seed has ids of its own."""
    sky, chance, where = Sky(of), random.Random(seed), WORKLOADS[workload]
    for number in range(count):
        gateway_id = GATEWAYS[number % len(GATEWAYS)]
        yield Subscription(f"s{seed}-{number}", gateway_id, TOPIC, where(sky, chance))


def events(count: int, *, of: int, seed: int) -> list[bytes]:
    """Documents as JSON, drawn from the same values as the subscriptions."""
    sky, chance = Sky(of), random.Random(seed)
    return [
        msgspec.json.encode(
            {
                "icao": f"{chance.randrange(sky.aircraft):06x}",
                "callsign": f"C{chance.randrange(10**8):08}",
                "operator": f"op{chance.randrange(sky.operators)}",
                "altitude": chance.randrange(ALTITUDE_MAX),
                "speed": round(chance.uniform(100, 600), 1),
                "lat": round(chance.uniform(-90, 90), 6),
                "lon": round(chance.uniform(-180, 180), 6),
                "squawk": f"{chance.randrange(7777):04}",
                "on_ground": False,
                "tags": [f"t{chance.randrange(sky.tags)}", "heavy"],
                "seen": "2025-01-31T12:00:00Z",
            }
        )
        for _ in range(count)
    ]
