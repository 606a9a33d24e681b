"""The load of `make soak`: one producer whose numbers say what each key's next event is, and one
that has sent the first of them, is still there, and can be frozen.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Final, Self

import psutil

from headgate.client import SyncProducer
from headgate.client.producing.pending import ProducerOptions
from tests.system.cluster import Cluster
from tests.system.harness import Command, until
from tests.system.traffic import PAUSE_S, Traffic

PARTITIONS: Final = 4
"""To begin with."""
KEYS: Final = 1_000
PER_S: Final = 2_000
AT_ONCE_MAX: Final = 500
BEHIND_MAX_S: Final = 1.0
"""What a machine can't do at that pace it needn't make up for."""


class Violation(Exception):
    """A promise that wasn't kept."""


class Flood(Traffic):
    """Numbers in turn over all keys, so that each key has every `KEYS`-th one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, partitions=PARTITIONS, keys=KEYS)
        self._idle: Command | None = None

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._stop_idle()
            raise

    def __exit__(self, kind: object, *rest: object) -> None:
        self._stop_idle()
        super().__exit__(kind, *rest)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.stop()

    @contextlib.contextmanager
    def idle_frozen(self) -> Iterator[None]:
        """Somebody who routes by the topology doesn't hear of a new one."""
        assert self._idle is not None
        frozen = psutil.Process(self._idle.process.pid)
        frozen.suspend()
        try:
            yield
        finally:
            frozen.resume()

    def _send_first(self) -> None:
        self._idle = self._cluster.command("produce", self.topic, "--key", "of")
        stdin = self._idle.process.stdin
        assert stdin is not None
        self.sent_at_s.append(time.monotonic())
        stdin.write(json.dumps({"n": 0, "of": "k0"}) + "\n")
        stdin.flush()
        until(lambda: bool(self.delivered), "the first event is delivered")
        self.acknowledged.append(0)

    def _produce(self) -> None:
        begun_s = time.monotonic()
        try:
            self._send_first()
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
