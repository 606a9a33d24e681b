"""What may be held of requests at a time, whole ones and those that still arrive."""

from __future__ import annotations

import random

import pytest

from headgate.decide.produce.room import Arriving, Room
from headgate.errors import Overloaded


def room(limit_bytes: int = 100) -> Room:
    return Room(limit_bytes, setting="ingest.waiting_memory")


def test_what_is_too_much_is_refused_with_the_setting_and_takes_nothing() -> None:
    one = room()
    one.take(60)
    with pytest.raises(Overloaded, match=r"ingest\.waiting_memory is 100; nothing was done"):
        one.take(41)
    assert one.taken_bytes == 60
    one.take(40)
    one.give_back(60)
    one.take(60)


def test_one_alone_fits_whatever_its_size() -> None:
    one = room()
    one.take(1_000)
    with pytest.raises(Overloaded):
        one.take(1)
    one.give_back(1_000)
    with one.arriving() as body:
        body.arrived(500, False)
        body.arrived(1_000, True)
        assert one.taken_bytes == 1_000
    assert one.taken_bytes == 0


def test_a_body_grows_and_leaves_with_its_block() -> None:
    one = room()
    with one.arriving() as body:
        for size in (10, 20, 30):
            body.arrived(size, False)
            assert one.taken_bytes == size
        body.arrived(31, True)
    assert one.taken_bytes == 0


def test_those_that_send_slowly_leave_half_to_those_whose_requests_come_whole() -> None:
    one = room()
    with one.arriving() as slow, one.arriving() as slower, one.arriving() as whole:
        slow.arrived(30, False)
        slower.arrived(20, False)
        with pytest.raises(Overloaded):
            slower.arrived(21, False)
        whole.arrived(50, True)
        assert one.taken_bytes == 100
    assert one.taken_bytes == 0


def test_a_body_that_is_whole_counts_as_slow_no_more() -> None:
    one = room()
    with one.arriving() as first, one.arriving() as second:
        first.arrived(40, False)
        first.arrived(45, True)
        second.arrived(50, False)
        assert one.taken_bytes == 95


def test_whatever_comes_and_goes_the_bounds_hold_and_nothing_is_left() -> None:
    chance = random.Random(7)
    one = room(1_000)
    bodies: list[Arriving] = []
    sizes: dict[Arriving, tuple[int, bool]] = {}
    for _ in range(20_000):
        if bodies and chance.random() < 0.3:
            body = bodies.pop(chance.randrange(len(bodies)))
            body.__exit__(None, None, None)
            sizes.pop(body, None)
        else:
            growing = [one for one in bodies if not sizes.get(one, (0, False))[1]]
            body = chance.choice(growing) if growing and chance.random() < 0.5 else one.arriving()
            if body not in bodies:
                bodies.append(body)
            size, whole = body.size_bytes + chance.randrange(400), chance.random() < 0.5
            try:
                body.arrived(size, whole)
            except Overloaded:
                assert one.taken_bytes + size - body.size_bytes > 500
            else:
                sizes[body] = size, whole
        assert one.taken_bytes == sum(size for size, _ in sizes.values())
        slow = [size for size, whole in sizes.values() if not whole and size]
        assert one.taken_bytes <= 1_000 or len([1 for size, _ in sizes.values() if size]) == 1
        assert sum(slow) <= 500 or len(slow) == 1
    for body in bodies:
        body.__exit__(None, None, None)
    assert one.taken_bytes == 0
