"""How a connector's changes are cut: nothing is left out, and every portion fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.connectors.intake_portions import portions, up_to_oversized
from headgate.model.event import Event

sizes = st.lists(st.integers(0, 12), max_size=30)


def changes(sizes: list[int]) -> list[Event]:
    return [Event(f"e{at}", b"x" * size, "k", source=f"{at:03d}") for at, size in enumerate(sizes)]


@given(sizes, st.integers(1, 5), st.integers(1, 20))
def test_portions_are_all_of_it_in_order_and_each_fits(
    sizes: list[int], most_events: int, most_bytes: int
) -> None:
    events = changes(sizes)
    cut = list(portions(events, "end", most_events=most_events, most_bytes=most_bytes))
    assert [one for some, _ in cut for one in some] == events
    for some, _ in cut:
        assert len(some) <= most_events
        assert len(some) <= 1 or sum(len(one.document) for one in some) <= most_bytes
    *before, (_, end) = cut
    assert end == "end"
    assert [end for _, end in before] == [some[-1].source for some, _ in before]


@given(sizes, st.integers(0, 12), st.integers(1, 4))
def test_what_is_before_the_first_that_is_too_large_fits(
    sizes: list[int], most_bytes: int, every: int
) -> None:
    events = changes(sizes)
    wanted = set(events[::every])
    fitting, oversized = up_to_oversized(
        events, most_bytes=most_bytes, is_wanted=wanted.__contains__
    )
    assert not any(one in wanted and len(one.document) > most_bytes for one in fitting)
    if oversized is None:
        assert fitting == events
    else:
        assert oversized in wanted
        assert len(oversized.document) > most_bytes
        assert [*fitting, oversized] == events[: len(fitting) + 1]
