"""Portions: bounded, smaller after a failure, and nothing too large for all of them."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.portions import LETTER_BYTES, Portion, letter_bytes
from headgate.errors import Fenced, StorageFailed
from headgate.model.delivery import Delivery

MIB = 1024 * 1024


def fail(portion: Portion) -> None:
    with pytest.raises(StorageFailed), portion.tried():
        raise StorageFailed("too slow")


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0),
        ([MIB] * 3, 3),
        ([MIB] * 9, 4),
        ([9 * MIB, 1], 1),
        ([1, 9 * MIB], 1),
        ([2 * MIB, 2 * MIB, 1], 2),
    ],
    ids=["none", "all", "some", "a large one first", "a large one next", "exactly"],
)
def test_what_fits(sizes: list[int], count: int) -> None:
    assert Portion(4 * MIB).fits(sizes) == count


def test_what_failed_is_tried_by_halves_down_to_one() -> None:
    portion = Portion(64 * MIB)
    tried = []
    for _ in range(6):
        tried.append(portion.fits([MIB] * 12))
        fail(portion)
    assert tried == [12, 6, 3, 1, 1, 1]


def test_things_that_count_one_each() -> None:
    portion = Portion(500)
    assert portion.up_to(500) == 500
    assert portion.up_to(40) == 40
    fail(portion)
    assert portion.up_to(500) == 20
    for _ in range(100):
        with portion.tried():
            pass
    assert portion.up_to(500) == 500


def test_a_store_that_takes_less_than_a_portion_takes_mostly_what_it_can() -> None:
    """It grows again slowly: most of the tries do something."""
    portion, done, failures = Portion(4 * MIB), 0, 0
    while done < 2_000:
        count = portion.fits([8 * 1024] * 512)
        if count > 100:
            fail(portion)
            failures += 1
        else:
            with portion.tried():
                done += count
    assert failures <= 5


def test_a_portion_is_whole_again_a_while_after_an_outage() -> None:
    portion = Portion(4 * MIB)
    for _ in range(1_000):
        portion.fits([100])
        fail(portion)
    for _ in range(120):
        portion.fits([100])
        with portion.tried():
            pass
    assert portion.fits([MIB] * 9) == 4


def test_being_fenced_off_is_no_matter_of_size() -> None:
    portion = Portion(4 * MIB)
    portion.fits([MIB] * 4)
    with pytest.raises(Fenced), portion.tried():
        raise Fenced("somebody newer has it")
    assert portion.fits([MIB] * 4) == 4


def test_a_letter_counts_its_document_and_whom_it_is_for() -> None:
    def one(document: bytes, *names: str) -> int:
        raw = msgspec.Raw(document)
        return letter_bytes(Delivery("t", 0, 1, "e", "k", "c", "insert", raw, names, 1))

    assert one(b"{}", "s") < 2 * LETTER_BYTES
    assert one(b'"' + b"x" * MIB + b'"', "s") > MIB
    assert one(b"{}", *map(str, range(10_000))) > 100_000
