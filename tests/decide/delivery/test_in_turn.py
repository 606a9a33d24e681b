"""Letters that wait to be written, of every gateway by themselves."""

from __future__ import annotations

from itertools import islice

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.letters.write_order import InTurn
from headgate.model.delivery import Delivery
from headgate.model.letters import NewLetter


def letter(gateway_id: str, seq: int) -> NewLetter:
    raw = msgspec.Raw(b"{}")
    delivery = Delivery("t", 0, seq, "id", None, "", "insert", raw, ("s",), 1)
    return NewLetter(gateway_id, "parked", "unreachable", delivery)


def waiting(**counts: int) -> InTurn:
    queues = InTurn()
    for gateway_id, count in counts.items():
        for seq in range(1, count + 1):
            queues.add(letter(gateway_id, seq))
    return queues


def tried(queues: InTurn, count: int, *, works: bool = True) -> list[tuple[str, int]]:
    letters = list(islice(queues.upcoming(), count))
    queues.tried(letters)
    if works:
        queues.remove(letters)
    return [(one.gateway_id, one.delivery.seq) for one in letters]


def test_each_gateway_has_its_share_of_what_is_written() -> None:
    queues = waiting(a=1_000, b=2, c=1)
    assert tried(queues, 6) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]
    assert tried(queues, 2) == [("a", 4), ("a", 5)]
    assert len(queues) == 1_003 - 8


def test_the_turn_passes_where_one_goes_at_a_time() -> None:
    queues = waiting(a=1_000, b=2, c=1)
    written = [tried(queues, 1) for _ in range(5)]
    assert written == [[("a", 1)], [("b", 1)], [("c", 1)], [("a", 2)], [("b", 2)]]


def test_the_turn_passes_also_where_nothing_is_written() -> None:
    """A letter that the store won't take is no concern of the other gateways."""
    queues = waiting(a=2, b=2)
    assert tried(queues, 1, works=False) == [("a", 1)]
    assert tried(queues, 1) == [("b", 1)]
    assert tried(queues, 1) == [("a", 1)]


@given(st.data())
def test_every_letter_is_written_once_and_those_of_a_gateway_in_order(data: st.DataObject) -> None:
    queues, added, written = InTurn(), dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for _ in range(data.draw(st.integers(1, 30))):
        for gateway_id in data.draw(st.lists(st.sampled_from("abc"), max_size=5)):
            added[gateway_id] += 1
            queues.add(letter(gateway_id, added[gateway_id]))
        if len(queues):
            works = data.draw(st.booleans())
            for gateway_id, seq in tried(queues, data.draw(st.integers(1, 4)), works=works):
                if works:
                    assert seq == written[gateway_id] + 1
                    written[gateway_id] = seq
        assert len(queues) == sum(added.values()) - sum(written.values())
    if len(queues):
        tried(queues, len(queues))
    assert not list(queues.upcoming())
