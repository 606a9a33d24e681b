"""Which keys the origin lacks where collections have been emptied, and what finding that takes."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType

from headgate.decide.connectors.snapshots.missing_keys import MissingKeys
from headgate.model.event import Op, Record


def record(partition: int, seq: int, key: str | None, *, version: int = 1) -> Record:
    what: Op = "insert" if key is not None else "truncate"
    source = f"{seq:06d}"
    return Record("t", partition, seq, version, source, key, "c", what, b"{}", None, source, 0)


def missing_keys() -> MissingKeys:
    return MissingKeys(0, 1, is_own=lambda _: True, is_asked=lambda _: True)


def _empties(whole: Record, last: Record) -> bool:
    if whole.version != last.version:
        return whole.version > last.version
    return whole.partition == last.partition and whole.seq > last.seq


def test_what_an_emptied_collection_had_before_is_not_missing() -> None:
    """In its own partition behind the record, and in all of a former version."""
    chance = Random(1)
    for _ in range(300):
        records = [
            record(chance.randrange(2), seq, chance.choice("abc"), version=1 + (seq > 6))
            if chance.random() < 0.8
            else record(chance.randrange(2), seq, None, version=1 + (seq > 6))
            for seq in range(1, 13)
        ]
        keys = missing_keys()
        keys.before(records)
        lasts = {one.key: one for one in records if one.key is not None}
        emptied = [one for one in records if one.key is None]
        expected = {
            key for key, last in lasts.items() if not any(_empties(one, last) for one in emptied)
        }
        assert {key for (_, key), _ in keys.found()} == expected


def test_it_takes_no_longer_however_often_collections_were_emptied() -> None:
    """It is one go of the event loop: a product of both would stop that for minutes."""
    keys = missing_keys()
    keys.before(record(seq % 4, seq, None) for seq in range(1, 201))
    keys.before(record(seq % 4, seq, f"k{seq}") for seq in range(201, 401))
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = list(keys.found())
    finally:
        sys.setprofile(before)
    assert len(found) == 200
    assert calls < 20 * len(found)
