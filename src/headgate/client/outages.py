"""One line when a client has lost its server, one when it has found it again.

They are warnings of the logger `headgate.client`: a program that has set up no logging reads them
on standard error, any other decides itself. Invariant: an outage is told once, however many
attempts it takes, and its end only where its beginning was.
"""

from __future__ import annotations

import logging

NAME = "headgate.client"

log = logging.getLogger(NAME)


class Outages:
    """Of one client; those that are over within `after_s` aren't worth a word."""

    def __init__(self, name: str, *, after_s: float = 0.0) -> None:
        self._name = name
        self._after_s = after_s
        self._since_s: float | None = None
        self._is_told = False

    @property
    def is_out(self) -> bool:
        return self._since_s is not None

    def lost(self, what: str, error: str, then: str, now_s: float) -> None:
        """An attempt has failed, and another one follows; `error` may go on with advice."""
        if self._since_s is None:
            self._since_s = now_s
        if not self._is_told and now_s - self._since_s >= self._after_s:
            self._is_told = True
            log.warning("%s: %s%s; %s", self._name, what, error.partition(";")[0], then)

    def back(self, what: str, now_s: float) -> None:
        if self._is_told and self._since_s is not None:
            log.warning("%s: %s (after %.1f s)", self._name, what, now_s - self._since_s)
        self._since_s, self._is_told = None, False
