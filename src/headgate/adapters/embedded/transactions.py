"""The transactions of one file, which remember whether an earlier one is in doubt.

A commit may fail so late that its pages are in the write-ahead log. This connection doesn't see
them, but a recovery after a crash would, until the next commit that succeeds has overwritten them.
Invariant: while there is such a doubt, no failure is told as one that left nothing for sure: it may
be the second try of the same.
"""

from __future__ import annotations

from types import TracebackType

import apsw

from headgate.adapters.embedded.sqlite import transaction
from headgate.errors import OutcomeUnknown, StorageFailed


class Transactions:
    def __init__(self, connection: apsw.Connection, what: str) -> None:
        self.connection = connection
        self.what = what
        self.in_doubt = False

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
            self._all.in_doubt = False
