"""A file from before there were snapshots: read as it is, and brought up to date by who writes."""

from __future__ import annotations

from pathlib import Path

import apsw

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.model.event import PartitionRef
from headgate.model.intake import IntakeMark, IntakePosition

REF = PartitionRef("orders", 0)


async def taken_in(writer: EmbeddedLogWriter, after: str, upto: str, snapshot: str = "") -> None:
    mark = IntakeMark(
        connector="shop",
        epoch=1,
        beginning=1,
        partitions=1,
        after=after,
        upto=upto,
        snapshot=snapshot,
    )
    await writer.take_in(REF, mark, [], version=1, now_ms=1)


async def test_what_an_older_file_says_of_connectors_stays(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data")
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    await taken_in(writer, "", "a")
    await writer.close()
    older = apsw.Connection(str(folder.log_file(REF)))
    older.execute("ALTER TABLE intakes DROP COLUMN snapshot")
    older.close()
    reader = EmbeddedLogReader(folder)
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 1, 1, "a")]
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=2)
    await taken_in(writer, "a", "b", "far")
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 1, 1, "b", False, "far")]
    await reader.close()
    await writer.close()
