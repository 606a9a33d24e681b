"""Several queues, one connection: what stands at the same place goes out together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.feed.fair_order import Place, Turns

Queues = dict[str, list[Place]]


def drain(queues: Queues, *, quota: int = 64, most: int = 10_000) -> list[tuple[Place, str]]:
    turns: Turns[str] = Turns(lambda name: queues[name][0] if queues[name] else None, quota=quota)
    for name in queues:
        turns.add(name)
        turns.add(name)
    out: list[tuple[Place, str]] = []
    while len(out) < most and (group := turns.next()):
        places = {queues[name].pop(0) for name in group}
        assert len(places) == 1
        out.append((places.pop(), "".join(sorted(group))))
        for name in group:
            turns.taken(name)
    return out


def seqs(*numbers: int) -> list[Place]:
    return [("t", 0, seq) for seq in numbers]


def test_same_places_go_out_together_whoever_was_first() -> None:
    out = drain({"b": seqs(2, 3, 5), "a": seqs(1, 2, 3), "c": seqs(3)})
    assert [(place[2], names) for place, names in out] == [
        (1, "a"),
        (2, "ab"),
        (3, "abc"),
        (5, "b"),
    ]


def test_one_with_much_to_say_lets_the_others_speak() -> None:
    out = drain({"a": seqs(*range(1, 1_000)), "b": [("u", 7, 1), ("u", 7, 2)]}, quota=10)
    assert [names for _, names in out[:12]] == ["a"] * 10 + ["b"] * 2


def test_first_item_that_changed_meanwhile_is_looked_at_anew() -> None:
    queues = {"a": seqs(1, 2), "b": seqs(2)}
    turns: Turns[str] = Turns(lambda name: queues[name][0] if queues[name] else None)
    turns.add("a")
    turns.add("b")
    queues["a"].pop(0)
    assert sorted(turns.next()) == ["a", "b"]


def test_source_that_ran_dry_can_come_back() -> None:
    queues = {"a": seqs(1)}
    turns: Turns[str] = Turns(lambda name: queues[name][0] if queues[name] else None)
    turns.add("a")
    assert turns.next() == ["a"]
    queues["a"].clear()
    turns.taken("a")
    assert turns.next() == []
    queues["a"].extend(seqs(2))
    turns.add("a")
    assert turns.next() == ["a"]


places = st.tuples(st.sampled_from("tu"), st.integers(0, 1), st.integers(1, 6))


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(places, max_size=12)), st.integers(1, 5))
def test_everything_goes_out_once_and_in_its_own_order(queues: Queues, quota: int) -> None:
    expected = {name: list(queue) for name, queue in queues.items()}
    out = drain(queues, quota=quota)
    for name, queue in expected.items():
        assert [place for place, names in out if name in names] == queue
