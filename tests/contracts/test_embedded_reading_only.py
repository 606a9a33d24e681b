"""A log that somebody may only read, and not write beside: as Spark's users and copies have it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.errors import DataFolderError
from headgate.model.event import Event, PartitionRef

REF = PartitionRef("flights", 0)
NOBODY = 65_534


@pytest.fixture
def root() -> Iterator[Path]:
    """Which everybody may enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    _each(made, 0o755, 0o644)
    shutil.rmtree(made)


def _each(root: Path, folders: int, files: int) -> None:
    for place in (root, *root.rglob("*")):
        place.chmod(folders if place.is_dir() else files)


def allowed_to_read_only(root: Path, look: Callable[[], bool]) -> bool:
    """What `look` says to a process that may not write below `root`."""
    _each(root, 0o555, 0o444)
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os._exit(0 if look() else 1)
        except BaseException:  # noqa: BLE001  # a child of a test must not become a second one
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def _written(folder: DataFolder, *ids: str) -> EmbeddedLogWriter:
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1, version=1)
    await writer.append(REF, [Event(one, b"{}") for one in ids], version=1, now_ms=1)
    return writer


def _reads(root: Path, *ids: str) -> bool:
    async def read() -> list[str]:
        folder = DataFolder.to_read(root, otherwise="-")
        reader = EmbeddedLogReader(folder)
        return [one.event_id for one in await reader.read(REF, after_seq=0, limit=10)]

    return asyncio.run(read()) == list(ids)


def test_a_log_that_nobody_writes_is_read_without_the_right_to_write(root: Path) -> None:
    async def write() -> None:
        await (await _written(DataFolder.open(root), "a", "b")).close()

    asyncio.run(write())
    assert allowed_to_read_only(root, lambda: _reads(root, "a", "b"))


def test_a_log_that_is_being_written_is_read_without_the_right_to_write(root: Path) -> None:
    async def write_and_read() -> bool:
        writer = await _written(DataFolder.open(root), "a", "b")
        try:
            return allowed_to_read_only(root, lambda: _in_a_new_loop(root))
        finally:
            await writer.close()

    assert asyncio.run(write_and_read())


def _in_a_new_loop(root: Path) -> bool:
    asyncio._set_running_loop(None)  # the child is inside the loop of its parent
    return _reads(root, "a", "b")


async def test_whoever_read_it_as_one_that_does_not_change_sees_that_it_does(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder.open(root)
    await (await _written(folder, "a")).close()
    reader = EmbeddedLogReader(folder)
    with monkeypatch.context() as no_rights:
        no_rights.setattr("headgate.adapters.embedded.sqlite._open_read_only", _refused)
        no_rights.setattr("headgate.adapters.embedded.sqlite.os.access", lambda *_: False)
        assert [one.event_id for one in await reader.read(REF, after_seq=0, limit=10)] == ["a"]
    writer = await _written(folder, "b")
    assert [one.event_id for one in await reader.read(REF, after_seq=0, limit=10)] == ["a", "b"]
    await reader.close()
    await writer.close()


def _refused(_path: Path) -> None:
    import apsw

    raise apsw.CantOpenError("unable to open database file")


def test_a_folder_that_is_none_is_not_made_one(root: Path) -> None:
    with pytest.raises(DataFolderError, match="is not a Headgate data folder; name another"):
        DataFolder.to_read(root, otherwise="name another")
    assert list(root.iterdir()) == []
