"""What happens to a log store behind its writer's back: it fails over, is restored or is lost.

By adapter, because each is changed with its own tools. A store that can't lose anything has none.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
from msgspec.structs import replace

from headgate.adapters.embedded.folder import DataFolder
from headgate.model.event import PartitionRef
from tests.contracts.stores import Opened, memory_log


def set_back(logs: Opened, ref: PartitionRef, *, head: int, epoch: int = 1) -> None:
    """The state that the store had when `head` was the last record and `epoch` its owner's."""
    forget = ["DELETE FROM {records} WHERE seq > {head}", "DELETE FROM {ids} WHERE seq > {head}"]
    restore = "UPDATE {partitions} SET head = {head}, epoch = {epoch} WHERE {mine}"
    _run(logs, ref, *forget, restore, head=head, epoch=epoch)


def lose(logs: Opened, ref: PartitionRef) -> None:
    """All that was ever stored of `ref`."""
    if logs.adapter == "embedded":
        path = log_file(logs, ref)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
    else:
        _run(logs, ref, "DELETE FROM {partitions} WHERE {mine}", "DROP TABLE {records}, {ids}")


def damage(logs: Opened, ref: PartitionRef, seq: int, field: str, value: object) -> None:
    """Something else is stored as that field of record `seq`, or as its checksum."""
    if logs.adapter == "memory":
        stored = memory_log(logs.location).partition(ref)
        if field == "checksum":
            assert value is None or isinstance(value, bytes)
            stored.checksums[seq] = value
            return
        at = next(at for at, one in enumerate(stored.records) if one.seq == seq)
        stored.records[at] = replace(stored.records[at], **{field: value})
        return
    mark = "?" if logs.adapter == "embedded" else "%s"
    if logs.adapter == "postgres" and isinstance(value, str) and field != "op":
        value = value.encode()
    _run(
        logs,
        ref,
        f"UPDATE {{records}} SET {field} = {mark} WHERE seq = {seq}",
        values=(value,),
    )


def put_back_format(logs: Opened, ref: PartitionRef) -> None:
    """The store as a Headgate from before there were checksums left it."""
    before = [
        "ALTER TABLE {records} DROP COLUMN headers",
        "ALTER TABLE {records} DROP COLUMN checksum",
        "DROP TABLE {times}",
    ]
    if logs.adapter == "embedded":
        _run(logs, ref, *before, "PRAGMA user_version = 1")
    else:
        _run(logs, ref, *before, "UPDATE {format} SET version = 1")


def log_file(logs: Opened, ref: PartitionRef) -> Path:
    return DataFolder(Path(logs.location)).log_file(ref)


def _run(
    logs: Opened,
    ref: PartitionRef,
    *statements: str,
    values: tuple[object, ...] = (),
    **numbers: int,
) -> None:
    if logs.adapter == "embedded":
        names = {
            "records": "records",
            "ids": "ids",
            "partitions": "partition",
            "mine": "id = 1",
            "times": "times",
        }
        connection = apsw.Connection(str(log_file(logs, ref)))
        with connection:
            for statement in statements:
                connection.execute(statement.format(**names, **numbers), values or None)
        connection.close()
        return
    schema, _, dsn = logs.location.partition(" ")
    with psycopg.connect(dsn) as session:
        number = number_of(session, schema, ref)
        names = {
            "records": f'"{schema}".records_{number}',
            "ids": f'"{schema}".ids_{number}',
            "partitions": f'"{schema}".partitions',
            "mine": f"number = {number}",
            "times": f'"{schema}".times',
            "format": f'"{schema}".format',
        }
        for statement in statements:
            session.execute(statement.format(**names, **numbers), values or None)


def number_of(session: psycopg.Connection, schema: str, ref: PartitionRef) -> int:
    """By which the tables of `ref` in PostgreSQL are named."""
    found = session.execute(
        f'SELECT number FROM "{schema}".partitions WHERE topic = %s AND partition = %s',
        (ref.topic, ref.partition),
    ).fetchone()
    assert found is not None
    return int(found[0])
