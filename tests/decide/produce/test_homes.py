"""Whose turn a request of an opportunistic topic is, and what perhaps went by."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.decide.produce.homes import home, in_order
from headgate.decide.produce.perhaps_written import PerhapsWritten

URLS = [f"http://10.0.0.{n}:9100" for n in range(4)]
IDS = [f"{n:016x}" for n in range(4_000)]
TTL_S = 1_800.0


def test_everybody_who_knows_the_same_nodes_chooses_alike() -> None:
    for one in IDS[:100]:
        assert in_order(URLS, one) == in_order(URLS[::-1], one)
        assert home(URLS, one) == in_order(URLS, one)[0]


def test_a_node_that_goes_changes_nothing_between_the_others() -> None:
    for one in IDS[:100]:
        first, *others = in_order(URLS, one)
        assert in_order(others, one) == others
        assert in_order(URLS[1:], one) == [url for url in (first, *others) if url != URLS[0]]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ids_are_spread(count: int) -> None:
    counts = Counter(home(URLS[:count], one) for one in IDS)
    assert min(counts.values()) > 0.85 * len(IDS) / count, counts


def test_nobody_has_the_turn_where_there_is_nobody() -> None:
    assert (home([], "e"), home(URLS[:1], "e")) == ("", URLS[0])


def test_what_went_by_within_the_time_is_told() -> None:
    perhaps = PerhapsWritten(ttl_s=TTL_S)
    perhaps.add(100, "t", ["early"])
    perhaps.add(100 + TTL_S * 0.99, "t", ["later"])
    perhaps.add(100 + TTL_S, "t", ["last"])
    for now_s in (100, 100 + TTL_S * 0.99):
        assert "early" in perhaps.of(now_s, "t", ["early", "never"])
    assert perhaps.of(100 + TTL_S * 1.9, "t", ["later", "last"]) == ["later", "last"]


@pytest.mark.parametrize("steps", [1, 5], ids=["after a pause", "while others come"])
def test_what_is_long_past_is_forgotten(steps: int) -> None:
    perhaps = PerhapsWritten(ttl_s=TTL_S)
    perhaps.add(0, "t", ["early"])
    for step in range(1, steps):
        perhaps.add(step * 3 * TTL_S / steps, "t", [f"{step}"])
    assert perhaps.of(3 * TTL_S + 1, "t", ["early"]) == []


def test_of_others_few_are_told() -> None:
    perhaps = PerhapsWritten(ttl_s=TTL_S)
    perhaps.add(0, "t", (f"{n}" for n in range(200_000)))
    told = perhaps.of(0, "t", [f"other-{n}" for n in range(10_000)])
    assert len(told) < 50
    assert len(perhaps.of(0, "another", [f"{n}" for n in range(10_000)])) < 50
