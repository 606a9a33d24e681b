"""The transactions of one partition's file, and what makes their outcome doubtful.

A commit may fail so late that its pages are in the write-ahead log. This connection doesn't see
them, but a recovery after a crash would, until the next commit that succeeds has overwritten them.
Or the file isn't at its path any more once it is committed: readers that look there find nothing.
Invariants: while there is such a doubt, no failure is told as one that left nothing for sure: it
may be the second try of the same. No transaction succeeds unless its files are where they were
opened, after its commit. Once they weren't, all fail.
"""

from __future__ import annotations

import time
from types import TracebackType

import apsw

from headgate.adapters.embedded.log.open_files import OpenFiles
from headgate.adapters.embedded.sqlite import transaction
from headgate.adapters.log.appending import store_changed
from headgate.errors import OutcomeUnknown, StorageFailed
from headgate.model.event import PartitionRef

RECENT_S = 0.05
"""A look at the files that is no older suffices to begin: the one after the commit is what counts.
One that comes after a pause is refused for sure then, and one of many costs a single look."""


class Transactions:
    def __init__(self, connection: apsw.Connection, files: OpenFiles, ref: PartitionRef) -> None:
        self.connection = connection
        self.what = f"the write to partition {ref.partition} of {ref.topic}"
        self.in_doubt = False
        self._files = files
        self._ref = ref
        self._changed = ""
        self._looked_s = float("-inf")

    @property
    def changed(self) -> str:
        """The path of a file that isn't the one that was opened, or wasn't once; else empty."""
        if not self._changed:
            self._changed = self._files.changed()
            self._looked_s = time.monotonic()
        return self._changed

    def look_again(self) -> str:
        """Like `changed`, but what was moved away may have come back."""
        self._changed = ""
        return self.changed

    def check(self) -> None:
        """Raises StoreChanged, in which case nothing is to be read or written here."""
        if path := self.changed:
            raise store_changed(self._ref, f"{path} was deleted, moved or replaced")

    def begins(self) -> None:
        if self._changed or time.monotonic() - self._looked_s > RECENT_S:
            self.check()

    def committed(self) -> None:
        """One has just been, for good if its files are where they were opened."""
        self.in_doubt = bool(self.changed)
        if self.in_doubt:
            raise OutcomeUnknown(
                f"{self.what} may or may not be on disk: {self.changed} was deleted, moved or "
                "replaced",
                path=self.changed,
            )

    def begin(self, first: str = "", values: tuple[object, ...] = ()) -> transaction:
        """The next one, to be entered; `first` is a statement that goes with its beginning."""
        return _Transaction(self, first, values)

    def failed(self, error: StorageFailed | OutcomeUnknown) -> Exception:
        """What a transaction that failed is to say."""
        if isinstance(error, OutcomeUnknown):
            self.in_doubt = True
            return error
        if not self.in_doubt:
            return error
        return OutcomeUnknown(
            f"{error}; whether an earlier write is on disk isn't known either", **error.details
        )


class _Transaction(transaction):
    __slots__ = ("_all",)

    def __init__(self, transactions: Transactions, first: str, values: tuple[object, ...]) -> None:
        super().__init__(transactions.connection, transactions.what, first, values)
        self._all = transactions

    def __enter__(self) -> None:
        try:
            self._all.begins()
            super().__enter__()
        except StorageFailed as error:
            raise self._all.failed(error) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        except (StorageFailed, OutcomeUnknown) as failure:
            raise self._all.failed(failure) from failure
        if error is None:
            self._all.committed()
