"""The file of one partition as something that is opened, let go of and opened again.

Invariant: what is open is what was at the path then; `connect_again` is the only way to another
file, and callers that remember its content forget it there.
"""

from __future__ import annotations

import contextlib

import apsw

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.open_files import OpenFiles, let_go
from headgate.adapters.embedded.log.schema import (
    ADD_SNAPSHOTS,
    HAS_SNAPSHOTS,
    INTAKES_SCHEMA,
    LOG_FORMAT,
    LOG_SCHEMA,
    TIMES_SCHEMA,
    TO_FORMAT_2,
)
from headgate.adapters.embedded.log.wal_upkeep import Upkeep
from headgate.adapters.embedded.sqlite import connect, storage_errors, upgrade
from headgate.adapters.embedded.transactions import Transactions
from headgate.errors import StorageFailed
from headgate.model.event import PartitionRef


class LogFile:
    def __init__(self, folder: DataFolder, ref: PartitionRef) -> None:
        self._folder = folder
        self._ref = ref
        self._path = folder.log_file(ref)
        self._what = f"the write to partition {ref.partition} of {ref.topic}"
        self._files: OpenFiles | None = None
        folder.make_log_directory(ref)
        self._connect()

    def _connect(self) -> None:
        with storage_errors(f"opening partition {self._ref.partition} of {self._ref.topic}"):
            schema = LOG_SCHEMA + INTAKES_SCHEMA + TIMES_SCHEMA
            self._connection = connect(self._path, schema, version=LOG_FORMAT)
            self._connection.execute(INTAKES_SCHEMA)
            if not self._connection.execute(HAS_SNAPSHOTS).fetchall()[0][0]:
                self._connection.execute(ADD_SNAPSHOTS)
            upgrade(self._connection, self._path, TO_FORMAT_2, to=LOG_FORMAT)
            self._connection.wal_autocheckpoint(0)
            self._files = OpenFiles(self._connection, self._path)
        self._transactions = Transactions(self._connection, self._files, self._ref)
        self.upkeep = Upkeep(self._connection, self._what)

    def _connect_again(self) -> bool:
        """Use the files that are at their paths; True if others were open here until now."""
        if self._files is not None and not self._transactions.look_again():
            return False
        self._folder.make_log_directory(self._ref)
        if self._files is not None:
            with storage_errors(self._what):
                let_go(self._connection, self._files)
            self._files = None
        self._connect()
        return True

    def close(self) -> None:
        with contextlib.suppress(apsw.Error, StorageFailed):
            if self._files is not None and self._transactions.look_again():
                let_go(self._connection, self._files)
        with contextlib.suppress(apsw.Error):
            self._connection.close(True)
