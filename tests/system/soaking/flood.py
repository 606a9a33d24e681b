"""The load of `make soak`: one producer whose numbers say what each key's next event is."""

from __future__ import annotations

import time
from typing import Final

from headgate.client import SyncProducer
from headgate.client.pending import ProducerOptions
from tests.system.traffic import PAUSE_S, Traffic

KEYS: Final = 1_000
PER_S: Final = 2_000
AT_ONCE_MAX: Final = 500
BEHIND_MAX_S: Final = 1.0
"""What a machine can't do at that pace it needn't make up for."""


class Violation(Exception):
    """A promise that wasn't kept."""


class Flood(Traffic):
    """Numbers in turn over all keys, so that each key has every `KEYS`-th one."""

    def _produce(self) -> None:
        begun_s = time.monotonic()
        try:
            with SyncProducer(self._cluster.url, ProducerOptions(deadline_s=90.0)) as producer:
                while not self._stopping.wait(PAUSE_S):
                    late = (time.monotonic() - begun_s) * PER_S - len(self.acknowledged)
                    begun_s += max(0.0, late / PER_S - BEHIND_MAX_S)
                    self.at_once = max(1, min(int(late), AT_ONCE_MAX))
                    self._send(producer)
        except Exception as error:  # noqa: BLE001  # raised again where somebody waits for it
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise Violation(f"a produce call failed: {self._error}") from self._error

    def _check(self) -> None:
        """Who is judged is judged as it comes."""
