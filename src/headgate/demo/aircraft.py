"""Simulated aircraft that report where they are.

Invariant: a report is a function of the seed, the aircraft and the time alone, so any part of a
flight can be computed at any moment, in any order, and a seed shows the same sky again. Never reads
a clock.

Every aircraft flies back and forth between two places: it climbs, cruises and descends along a
great circle. Now and then one sends an emergency code for the length of a flight.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import msgspec

from headgate.errors import InvalidConfig

MAX_AIRCRAFT = 100_000
EMERGENCY_CODES = ("7500", "7600", "7700")
EMERGENCY_SHARE = 0.02
"""Of all flights, how many are an emergency."""

AIRLINES = ("HG", "NB", "SKL", "ORC")
EARTH_RADIUS_NM = 3_440.065
CLIMB_FT_MIN = 1_800
DESCENT_FT_MIN = 1_500
SLOWEST_KT = 140
"""Speed at take-off and touch-down; it grows to the cruising speed with the altitude."""

TURNAROUND_S = 90.0
SHORTEST_NM = 250.0

PLACES: tuple[tuple[float, float], ...] = (
    (52.36, 13.50),
    (50.03, 8.57),
    (48.35, 11.79),
    (51.47, -0.45),
    (49.01, 2.55),
    (52.31, 4.76),
    (40.47, -3.56),
    (41.80, 12.25),
    (47.46, 8.55),
    (48.11, 16.57),
    (55.62, 12.65),
    (59.65, 17.92),
    (60.19, 11.10),
    (52.17, 20.97),
    (38.77, -9.13),
    (37.94, 23.94),
)
"""Latitude and longitude of some large European airports."""


class Report(msgspec.Struct, frozen=True):
    """What an aircraft sends: the document of an event.

    Altitude in feet, speed in knots over ground, heading in degrees from true north, vertical rate
    in feet per minute, `time_s` since the simulation began.
    """

    icao: str
    callsign: str
    squawk: str
    lat: float
    lon: float
    altitude: int
    speed: int
    heading: int
    vertical_rate: int
    time_s: float


@dataclass(frozen=True, slots=True)
class _Aircraft:
    icao: str
    callsign: str
    places: tuple[int, int]
    cruise_ft: int
    cruise_kt: int
    distance_nm: float
    flight_s: float
    offset_s: float
    salt: int


class Fleet:
    """All aircraft of a simulation; `count` of them, told apart by `seed`."""

    def __init__(self, *, seed: int, count: int) -> None:
        if not 1 <= count <= MAX_AIRCRAFT:
            raise InvalidConfig(
                f"demo.aircraft is {count}, but must be from 1 to {MAX_AIRCRAFT}",
                key="demo.aircraft",
            )
        dice = random.Random(seed)
        addresses = dice.sample(range(1, 1 << 24), count)
        self._aircraft = [_build(dice, address) for address in addresses]

    def __len__(self) -> int:
        return len(self._aircraft)

    def report(self, index: int, time_s: float) -> Report:
        """What aircraft number `index` (any integer; it wraps around) sends at `time_s`."""
        craft = self._aircraft[index % len(self._aircraft)]
        flight, into_s = divmod(time_s + craft.offset_s, craft.flight_s + TURNAROUND_S)
        into_s = min(into_s, craft.flight_s)  # it waits where it landed
        start, end = (PLACES[place] for place in craft.places)
        if int(flight) % 2:
            start, end = end, start
        altitude_ft, vertical_rate = _profile(craft, into_s)
        lat, lon, heading = _along(start, end, craft.distance_nm, into_s / craft.flight_s)
        share = altitude_ft / craft.cruise_ft
        return Report(
            icao=craft.icao,
            callsign=craft.callsign,
            squawk=_squawk(craft, int(flight)),
            lat=round(lat, 5),
            lon=round(lon, 5),
            altitude=round(altitude_ft),
            speed=round(SLOWEST_KT + share * (craft.cruise_kt - SLOWEST_KT)),
            heading=round(heading) % 360,
            vertical_rate=vertical_rate,
            time_s=round(time_s, 3),
        )


def _build(dice: random.Random, address: int) -> _Aircraft:
    places, distance_nm = (0, 0), 0.0
    while distance_nm < SHORTEST_NM:
        first, second = dice.sample(range(len(PLACES)), 2)
        places, distance_nm = (first, second), _distance_nm(PLACES[first], PLACES[second])
    cruise_kt = dice.randrange(380, 481, 5)
    flight_s = distance_nm / cruise_kt * 3_600
    # High enough to be a flight, low enough to come down again before the destination.
    highest_ft = flight_s / 60 / (1 / CLIMB_FT_MIN + 1 / DESCENT_FT_MIN)
    return _Aircraft(
        icao=f"{address:06x}",
        callsign=f"{dice.choice(AIRLINES)}{dice.randrange(1, 2_000)}",
        places=places,
        cruise_ft=min(dice.randrange(24_000, 40_000, 1_000), int(highest_ft)),
        cruise_kt=cruise_kt,
        distance_nm=distance_nm,
        flight_s=flight_s,
        offset_s=dice.uniform(0, 2 * (flight_s + TURNAROUND_S)),
        salt=dice.getrandbits(32),
    )


def _profile(craft: _Aircraft, into_s: float) -> tuple[float, int]:
    """Altitude and vertical rate, `into_s` seconds into a flight."""
    climbed_ft = into_s / 60 * CLIMB_FT_MIN
    to_descend_ft = (craft.flight_s - into_s) / 60 * DESCENT_FT_MIN
    if into_s >= craft.flight_s:
        return 0.0, 0
    if climbed_ft < min(craft.cruise_ft, to_descend_ft):
        return climbed_ft, CLIMB_FT_MIN
    if to_descend_ft < craft.cruise_ft:
        return to_descend_ft, -DESCENT_FT_MIN
    return float(craft.cruise_ft), 0


def _squawk(craft: _Aircraft, flight: int) -> str:
    """The transponder code of one flight: four octal digits."""
    dice = random.Random(craft.salt * 1_000_003 + flight)
    if dice.random() < EMERGENCY_SHARE:
        return dice.choice(EMERGENCY_CODES)
    return f"{dice.randrange(0o1000, 0o7000):04o}"


def _angle(start: tuple[float, float], end: tuple[float, float]) -> float:
    """The angle between two places, seen from the centre of the earth."""
    (lat1, lon1), (lat2, lon2) = (map(math.radians, place) for place in (start, end))
    a = math.sin((lat2 - lat1) / 2) ** 2
    a += math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * math.asin(math.sqrt(min(1.0, a)))


def _distance_nm(start: tuple[float, float], end: tuple[float, float]) -> float:
    return _angle(start, end) * EARTH_RADIUS_NM


def _along(
    start: tuple[float, float], end: tuple[float, float], distance_nm: float, share: float
) -> tuple[float, float, float]:
    """Latitude, longitude and heading after `share` of the great circle from start to end."""
    (lat1, lon1), (lat2, lon2) = (map(math.radians, place) for place in (start, end))
    angle = distance_nm / EARTH_RADIUS_NM
    a, b = math.sin((1 - share) * angle), math.sin(share * angle)
    x = a * math.cos(lat1) * math.cos(lon1) + b * math.cos(lat2) * math.cos(lon2)
    y = a * math.cos(lat1) * math.sin(lon1) + b * math.cos(lat2) * math.sin(lon2)
    z = a * math.sin(lat1) + b * math.sin(lat2)
    lat, lon = math.atan2(z, math.hypot(x, y)), math.atan2(y, x)
    # On arrival there is no way left to point along; the way back turned around is the same.
    other, turn = ((lat2, lon2), 0.0) if share < 1 else ((lat1, lon1), 180.0)
    east = math.sin(other[1] - lon) * math.cos(other[0])
    north = math.cos(lat) * math.sin(other[0])
    north -= math.sin(lat) * math.cos(other[0]) * math.cos(other[1] - lon)
    return math.degrees(lat), math.degrees(lon), (math.degrees(math.atan2(east, north)) + turn)
