"""The adapters that the contract suites run on, by name.

A store is named by its location (a folder, a database's address), so that a test can reach the same
one again after a restart and from another process (`durable`). A new adapter joins a suite with one
entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.etcd.checkpoints import EtcdCheckpointStore
from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.coordination import EtcdCoordinationStore
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.coordination import MemoryCoordination, MemoryCoordinationStore
from headgate.adapters.memory.letters import MemoryLetters, MemoryLetterStore
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.mongo.checkpoints import MongoCheckpointStore
from headgate.adapters.postgres.letters import PostgresLetterStore
from headgate.adapters.postgres.log_reader import PostgresLogReader
from headgate.adapters.postgres.log_writer import PostgresLogWriter
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.model.event import PartitionRef
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader, LogWriter


class Closable(Protocol):
    async def close(self) -> None: ...


S = TypeVar("S")
T = TypeVar("T", bound=Closable)

SAFETY_S = 60.0
"""Followers' own look, far beyond the patience of tests that wait for a signal."""


def on_postgres(schema: str, dsn: str) -> str:
    """The location of a store in PostgreSQL."""
    return f"{schema} {dsn}"


def on_etcd(prefix: str, endpoints: str) -> str:
    """The location of a store in etcd."""
    return f"{prefix} {endpoints}"


def on_mongodb(database: str, url: str) -> str:
    """The location of a store in MongoDB."""
    return f"{database} {url}"


def etcd_connection(location: str) -> EtcdConnection:
    prefix, _, endpoints = location.partition(" ")
    return EtcdConnection(endpoints, prefix=prefix)


def _mongo_checkpoints(location: str) -> CheckpointStore:
    database, _, url = location.partition(" ")
    return MongoCheckpointStore(url, database=database)


def _postgres_writer(location: str) -> LogWriter:
    schema, _, dsn = location.partition(" ")
    return PostgresLogWriter(dsn, schema=schema)


def _postgres_reader(location: str, safety_s: float) -> LogReader:
    schema, _, dsn = location.partition(" ")
    return PostgresLogReader(dsn, schema=schema, safety_s=safety_s)


def _postgres_letters(location: str) -> LetterStore:
    schema, _, dsn = location.partition(" ")
    return PostgresLetterStore(dsn, schema=schema)


class InMemory(Generic[S]):
    """What is stored in this process at the location that was asked for last."""

    def __init__(self, new: Callable[[], S]) -> None:
        self._new = new
        self._stored: dict[str, S] = {}

    def at(self, location: str) -> S:
        if location not in self._stored:
            self._stored = {location: self._new()}
        return self._stored[location]


_logs = InMemory(MemoryLog)
memory_log = _logs.at
_letters = InMemory(MemoryLetters)
_coordination = InMemory(MemoryCoordination)
_positions = InMemory(dict[PartitionRef, Checkpoint])

WRITERS: dict[str, Callable[[str], LogWriter]] = {
    "embedded": lambda location: EmbeddedLogWriter(DataFolder.open(location)),
    "memory": lambda location: MemoryLogWriter(_logs.at(location)),
    "postgres": _postgres_writer,
}
READERS: dict[str, Callable[[str, float], LogReader]] = {
    "embedded": lambda location, safety_s: EmbeddedLogReader(
        DataFolder.open(location), safety_s=safety_s
    ),
    "memory": lambda location, safety_s: MemoryLogReader(_logs.at(location), safety_s=safety_s),
    "postgres": _postgres_reader,
}
CHECKPOINTS: dict[str, Callable[[str], CheckpointStore]] = {
    "embedded": lambda location: EmbeddedCheckpointStore(DataFolder.open(location)),
    "etcd": lambda location: EtcdCheckpointStore(etcd_connection(location)),
    "memory": lambda location: MemoryCheckpointStore(_positions.at(location)),
    "mongodb": _mongo_checkpoints,
}
COORDINATION: dict[str, Callable[[str], CoordinationStore]] = {
    "embedded": lambda location: EmbeddedCoordinationStore(DataFolder.open(location)),
    "etcd": lambda location: EtcdCoordinationStore(etcd_connection(location)),
    "memory": lambda location: MemoryCoordinationStore(_coordination.at(location)),
}
LETTERS: dict[str, Callable[[str], LetterStore]] = {
    "embedded": lambda location: EmbeddedLetterStore(DataFolder.open(location)),
    "memory": lambda location: MemoryLetterStore(_letters.at(location)),
    "postgres": _postgres_letters,
}


def durable(adapters: Mapping[str, object]) -> list[str]:
    """Those that outlive their process, and that several processes share."""
    return [name for name in sorted(adapters) if name != "memory"]


class Opened:
    """Opens adapters of one kind at one location and closes what the test left open."""

    def __init__(self, adapter: str, location: str) -> None:
        self.adapter = adapter
        self.location = location
        self._left_open: list[Closable] = []

    def writer(self) -> LogWriter:
        return self._keep(WRITERS[self.adapter](self.location))

    def reader(self, *, safety_s: float = 1.0) -> LogReader:
        return self._keep(READERS[self.adapter](self.location, safety_s))

    def checkpoints(self) -> CheckpointStore:
        return self._keep(CHECKPOINTS[self.adapter](self.location))

    def coordination(self) -> CoordinationStore:
        return self._keep(COORDINATION[self.adapter](self.location))

    def letters(self) -> LetterStore:
        return self._keep(LETTERS[self.adapter](self.location))

    async def close(self) -> None:
        for one in reversed(self._left_open):
            await one.close()

    def _keep(self, one: T) -> T:
        self._left_open.append(one)
        return one
