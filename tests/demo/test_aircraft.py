"""The simulated sky: the same for the same seed, and one that could be."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.matching.index import MatchIndex
from headgate.demo.aircraft import (
    CLIMB_FT_MIN,
    DESCENT_FT_MIN,
    EARTH_RADIUS_NM,
    EMERGENCY_CODES,
    MAX_AIRCRAFT,
    Fleet,
    Report,
)
from headgate.demo.watches import WATCHES, expected_by
from headgate.errors import InvalidConfig
from headgate.model.event import Record
from headgate.model.subscription import Subscription

FLEET = Fleet(seed=7, count=200)
DAY_S = 86_400.0

times_s = st.floats(0, DAY_S)
indexes = st.integers(0, 199)


def test_the_same_seed_shows_the_same_sky() -> None:
    again = Fleet(seed=7, count=200)
    moments = [(index, index * 13.7) for index in range(400)]
    assert [again.report(*m) for m in moments] == [FLEET.report(*m) for m in moments]


def test_another_seed_shows_another_sky() -> None:
    other = Fleet(seed=8, count=200)
    assert {other.report(i, 0).icao for i in range(200)} != {
        FLEET.report(i, 0).icao for i in range(200)
    }


def test_a_report_depends_on_nothing_that_was_asked_before() -> None:
    late_first = Fleet(seed=3, count=5)
    late = late_first.report(2, 5_000)
    early_first = Fleet(seed=3, count=5)
    early_first.report(2, 1)
    assert early_first.report(2, 5_000) == late


def test_every_aircraft_has_an_address_of_its_own() -> None:
    addresses = {FLEET.report(index, 0).icao for index in range(200)}
    assert len(addresses) == 200
    assert all(len(address) == 6 and int(address, 16) > 0 for address in addresses)


@given(index=indexes, time_s=times_s)
def test_a_report_is_plausible(index: int, time_s: float) -> None:
    report = FLEET.report(index, time_s)
    assert 0 <= report.altitude <= 40_000
    assert 140 <= report.speed <= 480
    assert 0 <= report.heading < 360
    assert report.vertical_rate in (CLIMB_FT_MIN, 0, -DESCENT_FT_MIN)
    assert 35 <= report.lat <= 66
    assert -12 <= report.lon <= 26
    assert len(report.squawk) == 4
    assert set(report.squawk) <= set("01234567")


@given(index=indexes, time_s=times_s)
def test_nobody_moves_faster_than_they_could(index: int, time_s: float) -> None:
    before, after = FLEET.report(index, time_s), FLEET.report(index, time_s + 10)
    moved_nm = _distance_nm(before, after)
    assert moved_nm <= 481 * 10 / 3_600 + 0.01
    climbed_ft = abs(after.altitude - before.altitude)
    assert climbed_ft <= CLIMB_FT_MIN * 10 / 60 + 1


@given(index=indexes, time_s=times_s)
def test_an_aircraft_flies_where_it_points(index: int, time_s: float) -> None:
    before, after = FLEET.report(index, time_s), FLEET.report(index, time_s + 30)
    if before.altitude < 1_500 or after.altitude < 1_500:
        return  # it may be turning around on the ground
    east = (after.lon - before.lon) * math.cos(math.radians(before.lat))
    flown = math.degrees(math.atan2(east, after.lat - before.lat)) % 360
    turn = abs((flown - before.heading + 180) % 360 - 180)
    assert turn < 3


def test_aircraft_take_off_land_and_declare_emergencies() -> None:
    reports = [FLEET.report(index, time_s) for index in range(200) for time_s in (0, 900, 1_800)]
    assert any(report.vertical_rate > 0 for report in reports)
    assert any(report.vertical_rate < 0 for report in reports)
    assert any(report.altitude < 3_000 for report in reports)
    assert any(report.squawk in EMERGENCY_CODES for report in reports)


@pytest.mark.parametrize("count", [0, -1, MAX_AIRCRAFT + 1])
def test_an_impossible_fleet_is_refused_by_the_name_of_its_setting(count: int) -> None:
    with pytest.raises(InvalidConfig, match=r"demo\.aircraft"):
        Fleet(seed=1, count=count)


# --- what the subscribers ask for ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_filter_matches_some_reports_and_only_one_matches_all(seed: int) -> None:
    fleet = Fleet(seed=seed, count=400)
    hits = [0] * len(WATCHES)
    for number in range(6_000):
        for index in expected_by(fleet.report(number, number / 200 * 20)):
            hits[index] += 1
    assert hits[0] == 6_000
    assert all(0 < count < 3_000 for count in hits[1:])


def test_the_plain_predicates_say_what_the_filters_say() -> None:
    index = MatchIndex.of(
        Subscription(str(number), "gateway", "flights", watch.where)
        for number, watch in enumerate(WATCHES)
    )
    for number in range(3_000):
        report = FLEET.report(number, number * 7.0)
        document = msgspec.json.encode(report)
        record = Record(
            "flights", 0, number + 1, 1, "id", report.icao, "", "insert", document, None, None, 0
        )
        matched = index.match(record, msgspec.json.decode(document))
        found = sorted(int(name) for ids in matched.by_gateway.values() for name in ids)
        assert found == expected_by(report)


def _distance_nm(a: Report, b: Report) -> float:
    north = math.radians(b.lat - a.lat)
    east = math.radians(b.lon - a.lon) * math.cos(math.radians((a.lat + b.lat) / 2))
    return math.hypot(north, east) * EARTH_RADIUS_NM
