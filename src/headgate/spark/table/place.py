"""Where the log lies that a topic's DataFrame reads: in a data folder, or in PostgreSQL.

Spark's driver, its source runner and its tasks each open it for themselves, so a place is a value
that travels. Never says its `dsn`, which may hold a password. psycopg is loaded when it's needed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headgate.adapters.embedded.folder import DataFolder
from headgate.errors import InvalidConfig, InvalidRequest
from headgate.model.event import PartitionRef
from headgate.ports.log import LogReader


class LogPlace(msgspec.Struct, frozen=True):
    """A data folder by its absolute path, unless `dsn` is the address of a database."""

    root: str = ""
    dsn: str = ""

    def __str__(self) -> str:
        return "the log in PostgreSQL" if self.dsn else self.root

    @property
    def option(self) -> tuple[str, str]:
        """The option that names this place from anywhere."""
        return ("dsn", self.dsn) if self.dsn else ("data", self.root)

    def open_reader(self) -> LogReader:
        if self.dsn:
            from headgate.adapters.postgres.log_reader import PostgresLogReader

            return PostgresLogReader(self.dsn)
        from headgate.adapters.embedded.log.reader import EmbeddedLogReader

        return EmbeddedLogReader(DataFolder(Path(self.root)))

    def stored_partitions(self) -> list[PartitionRef]:
        """Every partition that is there by now, also those of deleted topics."""
        if self.dsn:
            from headgate.adapters.postgres.log_reader import stored_partitions

            return stored_partitions(self.dsn)
        return DataFolder(Path(self.root)).stored_partitions()


def in_folder(path: str) -> LogPlace:
    folder = DataFolder.to_read(
        path,
        otherwise="name the one that headgate up --data uses with the option data, or a log in "
        "PostgreSQL with the option dsn",
    )
    return LogPlace(root=str(folder.root))


def in_postgres(dsn: str) -> LogPlace:
    try:
        from headgate.adapters.postgres.connections import check_dsn
    except ImportError as error:
        raise InvalidRequest(
            "the option dsn needs psycopg, which isn't installed: "
            f"run pip install 'headgate[postgres]' ({error})"
        ) from error
    try:
        check_dsn(dsn)
    except InvalidConfig:
        # Without its cause, which is about the setting of the same name.
        raise InvalidRequest(
            "the option dsn must be the address of a PostgreSQL database, such as "
            "postgresql://user@host:5432/database"
        ) from None
    return LogPlace(dsn=dsn)
