"""What a bit that flips on the disk does to the letter file, and how its indexes are mended.

An index repeats what the rows say, and letters are found by it. Where the two differ, a letter is
overlooked and what is newer goes out before it, or is found for somebody else, and SQLite refuses
to change the row, and all that shares its transaction. So a lane that begins has the indexes
compared with the rows. Which of the two is right the letter's own checksum says: the row is put
right by it, and the indexes are made anew. Where that can't be, because the file is damaged in its
structure, what is parked is looked for in both, until the file is brought back from a copy.

Invariant: a letter that was for one gateway is never sent to another, nor taken for nobody's: where
nothing says which of the two is right, it is damaged from then on, and shown as such.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import apsw
import structlog

from headgate.adapters.embedded.letters.tables import GATEWAYS_BEHIND, PLACES, THE_ROW
from headgate.adapters.embedded.sqlite import detailed_code
from headgate.adapters.letters import as_text, is_sound, of_any_place
from headgate.errors import StorageFailed
from headgate.model.event import PartitionRef
from headgate.telemetry import LogLine

log = structlog.get_logger()

COMPARED_IN_S = 2.0
"""Enough for half a million letters; where there are more than can be compared in this time, the
indexes are believed, because no lane may wait for long."""
STEPS = 10_000
"""Of SQLite's between two looks at the clock."""

COMPARED_EVERY_S = 60.0
"""A lane that claims again and again needn't have the file compared each time."""
_OF_A_ROW = " value in letters."
"""What a row has of another kind than its table says is nothing that new indexes would mend."""

BY_INDEX = ("INDEXED BY parked_once",)
ANYHOW = (*BY_INDEX, "NOT INDEXED")
"""Where the index can't be mended, what is parked is also looked for among all letters."""

Row = tuple[Any, ...]

# Through the index as it stands, in which nothing can be looked for as long as nobody knows it.
_DIFFERENT = """
FROM letters AS found INDEXED BY parked_once LEFT JOIN letters AS one ON one.id = found.id
WHERE found.state = 'parked' AND found.redelivery = 0
    AND (one.state IS NOT 'parked' OR one.redelivery IS NOT 0 OR one.seq IS NOT found.seq
        OR one.topic IS NOT found.topic OR one.partition IS NOT found.partition
        OR one.gateway_id IS NOT found.gateway_id)
"""
_CONTRADICTIONS = f"""
SELECT found.id, CAST(found.gateway_id AS BLOB), CAST(found.topic AS BLOB), found.partition,
    found.seq, CAST(one.gateway_id AS BLOB), one.delivery {_DIFFERENT} AND one.id IS NOT NULL
"""
_KNOWN = (
    "SELECT id FROM letters INDEXED BY parked_once WHERE state = 'parked' AND redelivery = 0",
    "SELECT id FROM letters INDEXED BY by_kind WHERE state = 'parked'",
)
_LETTERS = "SELECT id FROM letters NOT INDEXED"
_INDEXES = """
SELECT name, sql FROM sqlite_master
WHERE type = 'index' AND tbl_name = 'letters' AND sql IS NOT NULL
"""
_PARKED_FOR = """
UPDATE letters SET state = 'parked', redelivery = 0, gateway_id = ?, topic = ?, partition = ?,
    seq = ?, delivery = coalesce(delivery, x'') WHERE id = ?
"""
_PLACED = "UPDATE letters SET topic = ?, partition = ?, seq = ? WHERE id = ?"
_SPOILT = "UPDATE letters SET delivery = x'00' || delivery WHERE id = ?"


def parked_rows(
    connection: apsw.Connection,
    topic: str,
    partition: int,
    gateway_id: str,
    after_seq: int,
    each: int,
    *,
    ways: Sequence[str],
) -> list[Row]:
    """The rows of what is parked there in the order, each in the place in which it was found."""
    values = (topic, partition, gateway_id, after_seq, each)
    places: dict[int, int] = {}
    for seq, id_ in _read_along(connection, PLACES, ways, values):
        if isinstance(seq, int):
            places.setdefault(id_, seq)
    found: list[Row] = []
    for seq, id_ in sorted((seq, id_) for id_, seq in places.items())[:each]:
        row = _row(connection, id_) or (id_, None, "parked", "unreachable", 0, "", 0, 0, None)
        found.append((*row[:9], topic, partition, seq))
    return found


def gateways_behind(
    connection: apsw.Connection, ref: PartitionRef, *, ways: Sequence[str]
) -> Iterator[str]:
    """For whom something of it is parked; nobody where that is no text."""
    for (name,) in _read_along(connection, GATEWAYS_BEHIND, ways, (ref.topic, ref.partition)):
        with contextlib.suppress(UnicodeDecodeError):
            yield name.decode()


def _read_along(
    connection: apsw.Connection, statement: str, ways: Sequence[str], values: Row
) -> list[Row]:
    """What is found in these ways, one after the other; where there are several, one may be so
    damaged that it can't be gone."""
    found: list[Row] = []
    failed: list[apsw.CorruptError] = []
    for way in ways:
        try:
            found += connection.execute(statement.format(way=way), values)
        except apsw.CorruptError as error:
            failed.append(error)
    if len(failed) == len(ways):
        raise failed[0]
    return found


def _row(connection: apsw.Connection, id_: int) -> Row | None:
    """None where it is gone, or can't be read: it may have pages of its own."""
    try:
        return connection.execute(THE_ROW, (id_,)).fetchone()
    except apsw.CorruptError:
        return None


def contradicts_itself(connection: apsw.Connection) -> bool | None:
    """Do the indexes say something else than the rows, or can't be walked along? None where there
    are more letters than can be compared in this time."""
    until_s = time.monotonic() + COMPARED_IN_S
    connection.set_progress_handler(lambda: time.monotonic() > until_s, STEPS)
    try:
        found = connection.execute("PRAGMA integrity_check(letters)")
        return any(said != "ok" and _OF_A_ROW not in said for (said,) in found)
    except apsw.InterruptError:
        return None
    except apsw.CorruptError:
        return True
    finally:
        connection.set_progress_handler(None)


def is_about_an_index(error: BaseException | None) -> bool:
    return isinstance(error, apsw.Error) and detailed_code(error) == apsw.SQLITE_CORRUPT_INDEX


def mend(connection: apsw.Connection) -> None:
    """Within a transaction, unless somebody else just did: put the rows right as far as it can be
    told what is, and make all indexes anew. Raises StorageFailed where letters would be overlooked
    by that."""
    if contradicts_itself(connection) is False:
        return
    before = _readable(connection, _CONTRADICTIONS)
    known = _known(connection)
    indexes: list[Row] = connection.execute(_INDEXES).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    for id_, *said in before:
        _put_right(connection, id_, said)
    for _, made_by in indexes:
        connection.execute(made_by)
    _check_reach(connection, known)
    log.error(LogLine.LETTERS_MENDED, letters=[id_ for id_, *_ in before])


def _known(connection: apsw.Connection) -> set[int]:
    """The parked letters of which all indexes know that can be read: one alone may be damaged."""
    found = [{id_ for (id_,) in _readable(connection, one)} for one in _KNOWN]
    return set.intersection(*([ids for ids in found if ids] or [set()]))


def _check_reach(connection: apsw.Connection, known: AbstractSet[int]) -> None:
    if not known <= {id_ for (id_,) in connection.execute(_LETTERS)}:
        raise StorageFailed("the letters can't be mended: some of them are out of reach")


def _readable(connection: apsw.Connection, statement: str) -> list[Row]:
    """Nothing where the index is so damaged that it can't be."""
    try:
        return connection.execute(statement).fetchall()
    except apsw.CorruptError:
        return []


def _put_right(connection: apsw.Connection, id_: int, said: Sequence[Any]) -> None:
    gateway, topic, partition, seq, told, content = said
    delivery = of_any_place(content)
    if delivery is None:  # it is damaged, and keeps its place, so that this is seen
        connection.execute(_PARKED_FOR, (as_text(gateway), as_text(topic), partition, seq, id_))
        return
    place = (delivery.topic, delivery.partition, delivery.seq)
    by_index, by_row = _is_for(content, gateway), _is_for(content, told)
    is_its_own = place == (as_text(topic), partition, seq)
    if is_its_own and (by_index or (by_index is None and gateway == told)):
        connection.execute(_PARKED_FOR, (as_text(gateway), *place, id_))
    elif by_row or (by_row is None and not is_its_own):
        connection.execute(_PLACED, (*place, id_))
    else:
        connection.execute(_SPOILT, (id_,))


def _is_for(content: bytes, gateway: bytes) -> bool | None:
    return is_sound(content, as_text(gateway))
