"""Which transactions are in what was read: PostgreSQL's snapshots, compared with its stream.

The stream tells a transaction when its commit is on disk, which is a moment before others see it,
and longer where a standby has to have it, too. So rows that are read after a change was told may
still lack it. The reader of rows has to know that they have all that was told before.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_ROUND = 2**32
"""The stream counts transactions modulo this, snapshots don't."""


class Visible(msgspec.Struct, frozen=True):
    """A snapshot: transactions from `end` on had yet to begin, and those in `open` to end."""

    end: int
    open: frozenset[int]

    def has(self, xid: int) -> bool:
        """Of a transaction that the stream has told, by its number there."""
        whole = self.end // _ROUND * _ROUND + xid
        if whole > self.end + _ROUND // 2:
            whole -= _ROUND
        elif whole < self.end - _ROUND // 2:
            whole += _ROUND
        return whole < self.end and whole not in self.open

    def lacking(self, told: Iterable[int]) -> set[int]:
        """The transactions of `told` that the snapshot doesn't have."""
        return {xid for xid in told if not self.has(xid)}


def visible_from(text: str) -> Visible:
    """Of what pg_current_snapshot() says, as `10:20:10,14`."""
    _, end, still_open = text.split(":")
    return Visible(int(end), frozenset(int(one) for one in still_open.split(",") if one))
