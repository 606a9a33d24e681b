"""Placing subscribers at gateways by the hash of their ids: alike everywhere, bounded, stable."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.planning.gateway_ring import (
    FEW,
    POINTS,
    Places,
    bound,
    ring_of,
    subscriber_of,
    subscription_id,
)
from headgate.decide.planning.hash_ring import place_of, points_of
from headgate.model.topology import GatewayRing

names = st.lists(st.sampled_from([f"gateway-{n}" for n in range(9)]), unique=True, max_size=6)
ids = [f"subscriber-{number}" for number in range(2_000)]


def naive(ring: GatewayRing, subscriber_id: str, avoiding: set[str]) -> str | None:
    """Every point of everybody, by how far it is ahead; those with room come first."""
    at = place_of(subscriber_id)
    ahead = sorted(
        (name in ring.full, (point - at) % 2**64, name)
        for name in ring.gateways
        if name not in avoiding
        for point in points_of(name, POINTS)
    )
    return ahead[0][2] if ahead else None


@given(names, st.data())
def test_a_subscriber_is_placed_at_the_first_gateway_with_room(
    gateways: list[str], data: st.DataObject
) -> None:
    some = st.lists(st.sampled_from(gateways), unique=True) if gateways else st.just([])
    ring = GatewayRing(tuple(gateways), tuple(data.draw(some)))
    avoiding = set(data.draw(some))
    subscriber = data.draw(st.sampled_from(ids))
    assert Places(ring).of(subscriber, avoiding=avoiding) == naive(ring, subscriber, avoiding)


@pytest.mark.parametrize(
    ("subscriber", "gateway"),
    [("subscriber-0", "b"), ("subscriber-1", "a"), ("subscriber-2", "b"), ("subscriber-7", "c")],
)
def test_places_are_the_same_in_every_process_and_version(subscriber: str, gateway: str) -> None:
    assert Places(GatewayRing(("a", "b", "c"))).of(subscriber) == gateway


@pytest.mark.parametrize("gateways", [2, 3, 5, 10], ids="{} gateways".format)
def test_a_gateway_that_goes_moves_only_its_own_subscribers(gateways: int) -> None:
    ring = GatewayRing(tuple(f"gateway-{n}" for n in range(gateways)))
    fewer = GatewayRing(ring.gateways[1:])
    before, after = Places(ring), Places(fewer)
    moved = [one for one in ids if before.of(one) != after.of(one)]
    assert {before.of(one) for one in moved} == {"gateway-0"}
    assert len(moved) / len(ids) < 1.6 / gateways
    avoided = [Places(ring).of(one, avoiding={"gateway-0"}) for one in moved]
    assert avoided == [after.of(one) for one in moved], "failover leads to where they will belong"


@pytest.mark.parametrize("gateways", [1, 2, 3, 7, 20], ids="{} gateways".format)
def test_nobody_gets_more_than_the_bound(gateways: int) -> None:
    counts = dict.fromkeys((f"gateway-{n}" for n in range(gateways)), 0)
    ring: GatewayRing | None = None
    for number, subscriber in enumerate(ids, start=1):
        ring = ring_of(counts, ring)
        placed = Places(ring).of(subscriber)
        assert placed is not None
        counts[placed] += 1
        assert max(counts.values()) <= max(FEW, ceil(1.25 * number / gateways))


def test_who_is_full_does_not_change_with_every_subscriber() -> None:
    assert bound(127 + 75 + 1, 2) == 127
    full = ring_of({"a": 127, "b": 75}, None)
    assert full.full == ("a",)
    assert ring_of({"a": 120, "b": 75}, full).full == ("a",), "it has hardly any room"
    assert ring_of({"a": 120, "b": 75}, None).full == ()
    assert ring_of({"a": 110, "b": 75}, full).full == ()


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 300), min_size=1), st.booleans())
def test_somebody_always_has_room(counts: dict[str, int], all_full_before: bool) -> None:
    before = GatewayRing(tuple(counts), tuple(counts) if all_full_before else ())
    ring = ring_of(counts, before)
    assert ring.gateways == tuple(sorted(counts))
    assert len(ring.full) < len(ring.gateways)


def test_few_subscriptions_fill_nobody() -> None:
    assert ring_of({"a": FEW - 1, "b": 0, "c": 0}, None).full == ()


def test_a_subscription_knows_its_subscriber() -> None:
    assert subscriber_of(subscription_id("me", "77")) == "me"
    assert subscriber_of("0123abcd") == "0123abcd"
    counted = Counter(subscriber_of(subscription_id("me", str(n))) for n in range(3))
    assert counted == {"me": 3}
