"""Opens the stores that a configuration names: the log's, the letters' and the positions'.

The one place that knows which stores there are. A store's libraries are loaded when it is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.adapters.embedded.folder import DataFolder
from headgate.errors import InvalidConfig
from headgate.model.event import PartitionRef
from headgate.model.lanes import CheckpointPlace, LogStore
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Election, Leadership
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader, LogWriter, Retention

if TYPE_CHECKING:
    # A lane's worker opens stores, and has no use for all that reads a configuration.
    from headgate.config import Config


def log_store(config: Config) -> LogStore:
    return LogStore(backend=config.log.backend, dsn=config.log.dsn)


def retention(config: Config) -> Retention:
    settings = config.log.retention
    return Retention(
        max_age_ms=round(settings.max_age * 1_000),
        max_bytes=settings.max_size,
        past_settled=settings.past_settled,
    )


def open_log_writer(store: LogStore, folder: DataFolder) -> LogWriter:
    if store.backend == "postgresql":
        try:
            from headgate.adapters.postgres.log_writer import PostgresLogWriter
        except ImportError as error:
            raise _not_installed("log.backend", "postgresql", error) from error
        return PostgresLogWriter(store.dsn)
    from headgate.adapters.embedded.log.writer import EmbeddedLogWriter

    return EmbeddedLogWriter(folder)


CONNECTIONS = 4
"""Most that one reader, or one store of letters, holds to a database."""


def open_log_reader(
    store: LogStore, folder: DataFolder, *, connections: int = CONNECTIONS
) -> LogReader:
    if store.backend == "postgresql":
        try:
            from headgate.adapters.postgres.log_reader import PostgresLogReader
        except ImportError as error:
            raise _not_installed("log.backend", "postgresql", error) from error
        return PostgresLogReader(store.dsn, max_connections=connections)
    from headgate.adapters.embedded.log.reader import EmbeddedLogReader

    return EmbeddedLogReader(folder)


def existing_folder(config: Config) -> DataFolder:
    """The data folder, for commands that only look; raises DataFolderError where the log is in one
    and there is none."""
    if config.log.backend != "embedded":
        return DataFolder(Path(config.data))
    return DataFolder.to_read(
        config.data,
        otherwise="name the one that headgate up uses with --data, or the settings with --config",
    )


def stored_topics(store: LogStore, folder: DataFolder) -> dict[str, list[PartitionRef]]:
    """The partitions of every topic that is in the log, also of deleted ones."""
    if store.backend == "postgresql":
        try:
            from headgate.adapters.postgres.log_reader import stored_partitions
        except ImportError as error:
            raise _not_installed("log.backend", "postgresql", error) from error
        found = stored_partitions(store.dsn)
    else:
        found = folder.stored_partitions()
    topics: dict[str, list[PartitionRef]] = {}
    for ref in sorted(found):
        topics.setdefault(ref.topic, []).append(ref)
    return topics


def open_letters(
    store: LogStore, folder: DataFolder, *, connections: int = CONNECTIONS
) -> LetterStore:
    """Letters are kept where the log is."""
    if store.backend == "postgresql":
        try:
            from headgate.adapters.postgres.letters import PostgresLetterStore
        except ImportError as error:
            raise _not_installed("log.backend", "postgresql", error) from error
        return PostgresLetterStore(store.dsn, max_connections=connections)
    from headgate.adapters.embedded.letters.store import EmbeddedLetterStore

    return EmbeddedLetterStore(folder)


def checkpoint_place(config: Config) -> CheckpointPlace:
    return CheckpointPlace(
        backend=config.reliability.checkpoint.backend,
        etcd_endpoints=config.etcd.endpoints,
        etcd_prefix=config.etcd.prefix,
        etcd_user=config.etcd.user,
        etcd_password=config.etcd.password,
        mongo_url=config.mongo.url,
        mongo_database=config.mongo.database,
    )


def open_checkpoints(place: CheckpointPlace, folder: DataFolder) -> CheckpointStore:
    try:
        if place.backend == "etcd":
            from headgate.adapters.etcd.checkpoints import EtcdCheckpointStore
            from headgate.adapters.etcd.connection import EtcdConnection

            return EtcdCheckpointStore(
                EtcdConnection(
                    place.etcd_endpoints,
                    prefix=place.etcd_prefix,
                    user=place.etcd_user,
                    password=place.etcd_password,
                )
            )
        if place.backend == "mongo":
            from headgate.adapters.mongo.checkpoints import MongoCheckpointStore

            return MongoCheckpointStore(place.mongo_url, database=place.mongo_database)
    except ImportError as error:
        raise _not_installed("reliability.checkpoint.backend", place.backend, error) from error
    from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore

    return EmbeddedCheckpointStore(folder)


OpenStore = Callable[[Leadership], CoordinationStore]


def coordination(config: Config, folder: DataFolder) -> tuple[Election, OpenStore]:
    """How a coordinator comes to lead, and the store that a leadership opens."""
    if config.coordinator.store == "etcd":
        try:
            from headgate.adapters.etcd.connection import EtcdConnection
            from headgate.adapters.etcd.coordination import EtcdCoordinationStore
            from headgate.adapters.etcd.election import LEAST_TTL_S, EtcdElection
        except ImportError as error:
            raise _not_installed("coordinator.store", "etcd", error) from error

        def connect() -> EtcdConnection:
            etcd = config.etcd
            return EtcdConnection(
                etcd.endpoints, prefix=etcd.prefix, user=etcd.user, password=etcd.password
            )

        # Nodes that lose the leader find the next one well before their own leases end.
        ttl_s = max(LEAST_TTL_S, math.ceil(config.coordinator.timeout / 3))
        election = EtcdElection(connect(), ttl_s=ttl_s)
        return election, lambda held: EtcdCoordinationStore(connect(), held)
    from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
    from headgate.adapters.embedded.election import SoleElection

    return SoleElection(folder.coordinator_lock), lambda _: EmbeddedCoordinationStore(folder)


_LIBRARIES = {
    "postgresql": ("psycopg", "headgate[postgres]"),
    "etcd": ("aetcd", "headgate[etcd]"),
    "mongo": ("pymongo", "headgate[mongo]"),
}


def _not_installed(key: str, backend: str, error: ImportError) -> InvalidConfig:
    library, extra = _LIBRARIES[backend]
    return InvalidConfig(
        f"{key} {backend} needs {library}, which isn't installed: "
        f"run pip install '{extra}' ({error})",
        key=key,
    )
