"""The adapters that the contract suites run on, by name.

A store is named by its location (a folder, a database's address), so that a test can reach the same
one again after a restart and from another process. A new adapter joins a suite with one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log_reader import EmbeddedLogReader
from headgate.adapters.embedded.log_writer import EmbeddedLogWriter
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.log import LogReader, LogWriter


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

WRITERS: dict[str, Callable[[str], LogWriter]] = {
    "embedded": lambda location: EmbeddedLogWriter(DataFolder.open(location)),
}
READERS: dict[str, Callable[[str], LogReader]] = {
    "embedded": lambda location: EmbeddedLogReader(DataFolder.open(location)),
}
CHECKPOINTS: dict[str, Callable[[str], CheckpointStore]] = {
    "embedded": lambda location: EmbeddedCheckpointStore(DataFolder.open(location)),
}
COORDINATION: dict[str, Callable[[str], CoordinationStore]] = {
    "embedded": lambda location: EmbeddedCoordinationStore(DataFolder.open(location)),
}


class Opened:
    """Opens adapters of one kind at one location and closes what the test left open."""

    def __init__(self, adapter: str, location: str) -> None:
        self.adapter = adapter
        self.location = location
        self._left_open: list[Closable] = []

    def writer(self) -> LogWriter:
        return self._keep(WRITERS[self.adapter](self.location))

    def reader(self) -> LogReader:
        return self._keep(READERS[self.adapter](self.location))

    def checkpoints(self) -> CheckpointStore:
        return self._keep(CHECKPOINTS[self.adapter](self.location))

    def coordination(self) -> CoordinationStore:
        return self._keep(COORDINATION[self.adapter](self.location))

    async def close(self) -> None:
        for one in reversed(self._left_open):
            await one.close()

    def _keep(self, one: T) -> T:
        self._left_open.append(one)
        return one
