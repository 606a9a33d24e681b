"""How every embedded store opens SQLite, and what its errors mean to Headgate.

Invariant: a connection from here makes every commit durable (WAL, synchronous=FULL) and waits a
bounded time for a lock. A file that a newer Headgate wrote is refused, never changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import apsw

from headgate.errors import DataFolderError, HeadgateError, OutcomeUnknown, StorageFailed

SCHEMA_VERSION = 2
"""The newest format that any file has; most are of the first."""
BUSY_TIMEOUT_MS = 2_000
"""Below the write timeout of one attempt (3 s), so that a lock is told from a slow disk."""
USE_WAL_AGAIN_S = 0.01

_OF_THE_STORE = (apsw.Error, UnicodeDecodeError)
"""The latter: text that is none, as nobody has stored it."""
_ABOUT_A_VALUE = (apsw.ConstraintError, apsw.TooBigError)
_WRITE_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def connect(
    path: Path,
    schema: str,
    *,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    page_size: int = 4096,
    version: int = 1,
) -> apsw.Connection:
    """Open `path` for writing, making it with `schema`, of the format `version`, when it's new."""
    connection = apsw.Connection(str(path), flags=_WRITE_FLAGS)
    try:
        connection.set_busy_timeout(busy_timeout_ms)
        # Both must come before the first table. Freed pages can then be given back to the disk.
        connection.pragma("page_size", page_size)
        connection.pragma("auto_vacuum", 2)
        _use_wal(connection, busy_timeout_ms)
        connection.pragma("synchronous", "full")
        connection.pragma("temp_store", "memory")
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        if _version(connection, path) == 0:
            _create(connection, path, schema, version)
    except BaseException:
        connection.close(True)
        raise
    return connection


def _use_wal(connection: apsw.Connection, timeout_ms: int) -> None:
    """Of several that open a new file at once, SQLite turns all but one away without waiting."""
    until_s = time.monotonic() + timeout_ms / 1_000
    while True:
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(USE_WAL_AGAIN_S)  # noqa: TID251 - SQLite gives no signal
        else:
            return


def connect_read_only(
    path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> apsw.Connection | None:
    """Open `path` for reading; None while its writer hasn't finished making it.

    Without the right to write beside it, a file that nobody has open is read as one that doesn't
    change. A process that opens it for writing makes a write-ahead log there, by which `OpenFiles`
    tells that it has to be opened anew.
    """
    try:
        return _checked(_open_read_only(path), path, busy_timeout_ms)
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        if os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists():
            raise
    return _checked(_open_unchanging(path), path, busy_timeout_ms)


def _open_read_only(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)


def _open_unchanging(path: Path) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{path.resolve().as_uri()}?immutable=1", flags=flags)


def _checked(
    connection: apsw.Connection, path: Path, busy_timeout_ms: int
) -> apsw.Connection | None:
    try:
        connection.set_busy_timeout(busy_timeout_ms)
        ready = _version(connection, path) > 0
    except BaseException:
        connection.close(True)
        raise
    if ready:
        return connection
    connection.close()
    return None


class transaction:  # noqa: N801 - used like the context managers of contextlib, at a third of the time
    """One immediate transaction: all of the block on disk, or nothing of it. `first` is one more
    statement, which goes with the beginning.

    SQLite's errors leave as StorageFailed, except those about a value, which leave as they are.
    Only where the commit itself broke after its last byte could have reached the disk, nobody
    knows, and OutcomeUnknown says so.
    """

    __slots__ = ("_begin", "_connection", "_values", "_what")

    def __init__(
        self,
        connection: apsw.Connection,
        what: str,
        first: str = "",
        values: tuple[object, ...] = (),
    ) -> None:
        self._connection = connection
        self._what = what
        self._begin = "BEGIN IMMEDIATE;" + first
        self._values = values

    def __enter__(self) -> None:
        try:
            self._connection.execute(self._begin, self._values)
        except apsw.Error as error:
            _roll_back(self._connection)
            raise storage_failed(error, self._what) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection, what = self._connection, self._what
        if error is not None:
            _roll_back(connection)
            if isinstance(error, _OF_THE_STORE) and not isinstance(error, _ABOUT_A_VALUE):
                raise storage_failed(error, what) from error
            return
        try:
            connection.execute("COMMIT")
        except apsw.Error as failure:
            _roll_back(connection)
            definite = _is_definite(failure)
            make = storage_failed if definite else _outcome_unknown
            raise make(failure, what) from failure


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except _OF_THE_STORE as error:
        raise storage_failed(error, what) from error


def storage_failed(error: apsw.Error | UnicodeDecodeError, what: str) -> StorageFailed:
    return StorageFailed(f"{what} failed: {_reason(error)}", reason=str(error))


def detailed_code(error: apsw.Error) -> int:
    """SQLite's extended result code, which says more than the class of the error."""
    return int(getattr(error, "extendedresult", 0))


def _outcome_unknown(error: apsw.Error, what: str) -> HeadgateError:
    return OutcomeUnknown(f"{what} may or may not be on disk: {_reason(error)}", reason=str(error))


def _reason(error: apsw.Error | UnicodeDecodeError) -> str:
    match error:
        case apsw.FullError():
            return "the disk is full; free some space"
        case apsw.BusyError() | apsw.LockedError():
            return "another process has locked the file for too long; find out which and end it"
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return f"the file can't be opened or written ({error}); check its permissions"
        case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():
            return f"the file is damaged ({error}); restore it from a copy"
    return f"the disk reports an error ({error}); check the disk"


def _is_definite(error: apsw.Error) -> bool:
    """A commit that could not be written whole is void; one that could not be synced may not be."""
    if isinstance(error, apsw.IOError):
        return detailed_code(error) == apsw.SQLITE_IOERR_WRITE
    return isinstance(error, apsw.FullError | apsw.BusyError | apsw.ReadOnlyError)


def _roll_back(connection: apsw.Connection) -> None:
    # SQLite has rolled back by itself after some errors.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _version(connection: apsw.Connection, path: Path) -> int:
    version = int(connection.pragma("user_version") or 0)
    if version > SCHEMA_VERSION:
        raise DataFolderError(
            f"{path} was written by a newer Headgate (format {version}; this one reads up to "
            f"{SCHEMA_VERSION}); upgrade Headgate or choose another --data folder",
            path=str(path),
        )
    return version


def upgrade(connection: apsw.Connection, path: Path, script: str, *, to: int) -> None:
    """Bring a file of the format before `to` up to it; nothing happens to one that is there."""
    if _version(connection, path) >= to:
        return
    with transaction(connection, f"bringing {path} to format {to}"):
        if _version(connection, path) < to:
            connection.execute(script)
            connection.pragma("user_version", to)


def _create(connection: apsw.Connection, path: Path, schema: str, version: int) -> None:
    with transaction(connection, f"making {path}"):
        # Somebody else may have been faster between the look and the lock.
        if _version(connection, path) == 0:
            connection.execute(schema)
            connection.pragma("user_version", version)
