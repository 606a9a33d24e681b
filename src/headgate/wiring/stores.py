"""Opens the log that a configuration names: files of the data folder, or PostgreSQL.

The one place that knows which stores there are. A store's libraries are loaded when it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import Config
from headgate.errors import InvalidConfig
from headgate.lane.spec import LogStore
from headgate.model.event import PartitionRef
from headgate.ports.log import LogReader, LogWriter, Retention


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
            raise _not_installed(error) from error
        return PostgresLogWriter(store.dsn)
    from headgate.adapters.embedded.log_writer import EmbeddedLogWriter

    return EmbeddedLogWriter(folder)


def open_log_reader(store: LogStore, folder: DataFolder) -> LogReader:
    if store.backend == "postgresql":
        try:
            from headgate.adapters.postgres.log_reader import PostgresLogReader
        except ImportError as error:
            raise _not_installed(error) from error
        return PostgresLogReader(store.dsn)
    from headgate.adapters.embedded.log_reader import EmbeddedLogReader

    return EmbeddedLogReader(folder)


def stored_partitions(store: LogStore, folder: DataFolder) -> Callable[[], Sequence[PartitionRef]]:
    """What lists every partition that the log holds, also those of deleted topics."""
    if store.backend == "postgresql":
        return lambda: _stored_in_postgres(store.dsn)
    return folder.stored_partitions


def _stored_in_postgres(dsn: str) -> Sequence[PartitionRef]:
    from headgate.adapters.postgres.log_reader import stored_partitions as in_postgres

    return in_postgres(dsn)


def _not_installed(error: ImportError) -> InvalidConfig:
    return InvalidConfig(
        "log.backend postgresql needs psycopg, which isn't installed: "
        f"run pip install 'headgate[postgres]' ({error})",
        key="log.backend",
    )
