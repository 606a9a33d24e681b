"""Which gateways get a record: holders first, then what the mode says."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.routing import Addressed, Routes
from headgate.decide.planning.gateway_ring import Places, subscriber_of
from headgate.model.lanes import Mode
from headgate.model.topology import GatewayRing

NAMES = [f"gateway-{n}" for n in range(6)]
some_gateways = st.lists(st.sampled_from(NAMES), unique=True)
matches = st.dictionaries(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([f"who-{n}.1" for n in range(9)]), min_size=1, unique=True).map(tuple),
)


def naive(
    live: list[str],
    mode: Mode,
    max_fanout: int,
    ring: GatewayRing | None,
    matched: dict[str, tuple[str, ...]],
) -> tuple[set[str], int]:
    """Who must be asked to look itself, and how many are in a broadcast (0: there is none)."""
    holders = [name for name in matched if name in live]
    lost = [one for name, some in matched.items() if name not in live for one in some]
    placed = set()
    broadcast = mode == "broadcast" and bool(matched)
    for one in lost:
        there = None
        if ring is not None:
            remaining = GatewayRing(tuple(name for name in ring.gateways if name in live))
            there = Places(remaining).of(subscriber_of(one))
        placed |= {there} if there else set()
        broadcast = broadcast or there is None
    limit = min(max_fanout or len(live), len(live))
    return placed, max(len(holders), limit) if broadcast else 0


@given(some_gateways, st.sampled_from(get_args(Mode)), st.integers(0, 7), matches, st.data())
def test_routes_are_what_a_reader_of_the_rules_would_choose(
    live: list[str],
    mode: Mode,
    fanout: int,
    matched: dict[str, tuple[str, ...]],
    data: st.DataObject,
) -> None:
    placing = mode == "consistent_hash"
    ring = GatewayRing(tuple(sorted(data.draw(some_gateways)))) if placing else None
    turn = data.draw(st.integers(0, 1_000))
    routes = Routes(live, mode, max_fanout=fanout, ring=ring)
    shares = routes.of(matched, turn)
    assert shares == Routes(list(reversed(live)), mode, max_fanout=fanout, ring=ring).of(
        dict(reversed(matched.items())), turn
    )
    if not live:
        assert shares == {name: Addressed(some, False) for name, some in matched.items()}
        return
    assert set(shares) <= set(live)
    for name in live:
        known = shares[name].subscriptions if name in shares else ()
        assert known == matched.get(name, ()), "a holder that is there gets all that is its own"
    asked = {name for name, share in shares.items() if share.broadcast}
    placed, broadcast_to = naive(live, mode, fanout, ring, matched)
    assert placed <= asked
    if broadcast_to:
        assert len(asked - placed) <= broadcast_to <= len(asked)
        assert asked >= {name for name in matched if name in live}
    else:
        assert asked == placed
    assert bool(shares) == bool(matched)
    assert routes.lead_to(matched) == (mode != "broadcast" and set(matched) <= set(live))


def test_a_broadcast_takes_turns_and_never_leaves_out_a_holder() -> None:
    routes = Routes(NAMES, "broadcast", max_fanout=3)
    matched = {"gateway-5": ("s",)}
    recipients = [tuple(sorted(routes.of(matched, turn))) for turn in range(6)]
    assert all(len(some) == 3 and "gateway-5" in some for some in recipients)
    assert {name for some in recipients for name in some} == set(NAMES)
    holders = {name: (f"s-{name}",) for name in NAMES[:5]}
    assert set(routes.of(holders, 0)) == set(NAMES[:5]), "more holders than the limit"


def test_without_a_limit_a_broadcast_goes_to_everybody() -> None:
    assert set(Routes(NAMES, "broadcast", max_fanout=0).of({"gateway-0": ("s",)}, 3)) == set(NAMES)


@pytest.mark.parametrize(
    ("gone", "to"),
    [
        pytest.param([], "gateway-1", id="the placed gateway"),
        pytest.param(["gateway-1"], "gateway-0", id="the next one on the ring"),
        pytest.param(["gateway-1", "gateway-0"], "gateway-2", id="the last one"),
    ],
)
def test_a_lost_holder_of_a_placed_subscriber_is_replaced_along_the_ring(
    gone: list[str], to: str
) -> None:
    ring = GatewayRing(("gateway-0", "gateway-1", "gateway-2"))
    live = [name for name in ring.gateways if name not in gone]
    routes = Routes(live, "consistent_hash", max_fanout=3, ring=ring)
    assert routes.of({"lost": ("subscriber-0.f00",)}, 0) == {to: Addressed((), True)}


def test_known_holders_get_theirs_as_ever_beside_a_copy_for_a_lost_one() -> None:
    routes = Routes(["a", "b"], "direct", max_fanout=1)
    assert routes.of({"a": ("s1",), "lost": ("s2",)}, 1) == {"a": Addressed(("s1",), True)}
    assert Routes(["a", "b"], "direct", max_fanout=2).of({"a": ("s1",), "lost": ("s2",)}, 0) == {
        "a": Addressed(("s1",), True),
        "b": Addressed((), True),
    }
