"""Looks at the system that many share: what is new since the last one, and when the next is due.

Every look is a JSON object. A reader that saw the last one is told the fields that have changed,
any other reader all of them; either way the fields replace those of the same name.

Invariants: pure but for its own state; a reader that gets all fields once, and every change after
that, has what the last look saw; nothing is kept per reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

AWAY = "away"
"""The field that says why what is shown is old; empty where it isn't."""
SEEN_MS = "seen_ms"
"""The field that says when this was seen, since 1970."""
EVERY_S = 1.0
EVERY_S_MAX = 5.0
PAUSE_PER_LOOK = 20.0
"""Looks that take long are taken less often, so that watchers cost a bounded share of a core."""


@dataclass(slots=True)
class Looks:
    """`number` counts them, from 1. All that is known is in `_fields`, as it is encoded."""

    number: int = 0
    changed: bytes = b""
    """The fields that the last look changed."""
    _fields: dict[str, bytes] = field(default_factory=dict)
    _all: bytes = b""

    def saw(self, fields: Mapping[str, msgspec.Raw], *, now_ms: int) -> None:
        """The system answered."""
        seen = {name: bytes(value) for name, value in fields.items()}
        self._take({**seen, AWAY: b'""', SEEN_MS: str(now_ms).encode()})

    def missed(self, why: str) -> None:
        """Nobody answered: all stays as it was seen last, and is said to be old."""
        self._take({AWAY: msgspec.json.encode(why)})

    def since(self, number: int) -> bytes:
        """What a reader needs who has seen everything up to that look; 0: nothing yet."""
        return self.changed if number and number == self.number - 1 else self.everything()

    def everything(self) -> bytes:
        if not self._all:
            self._all = _object(self._fields)
        return self._all

    def _take(self, fields: dict[str, bytes]) -> None:
        new = {name: value for name, value in fields.items() if self._fields.get(name) != value}
        self._fields.update(new)
        self._all = b""
        self.changed = _object(new)
        self.number += 1


def pause_s(took_s: float) -> float:
    """How long to wait after a look that took so long."""
    return min(EVERY_S_MAX, max(EVERY_S, took_s * PAUSE_PER_LOOK))


def _object(fields: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), v) for name, v in fields.items()) + b"}"
