"""Runs one after the other: `python -m tests.sim.child`.

An order is a line, SEED [FAULTS LEFT OUT …], and an `Ended` is the answer. Each run has a process
of its own that is forked for it and ends with it, because what was killed in a run must never be
collected; this one only loads what all of them need, once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from typing import Final

import msgspec

from headgate.tasks import deaths
from tests.sim.children import Ended
from tests.sim.run import lived

RUN_TIMEOUT_S: Final = 300
WARMING_UP: Final = (1, 2, 3)
"""Seeds that are lived before any other and judged by nobody: whatever Python does once, when code
runs for the first time, no run has to do. They stay as they ended."""


def main() -> None:
    kept = [lived(seed) for seed in WARMING_UP]
    deaths.forget()
    gc.disable()  # nothing ends at a moment that only the collector chose
    gc.freeze()
    for order in sys.stdin:
        seed, *without = map(int, order.split())
        child = os.fork()
        if not child:
            signal.alarm(RUN_TIMEOUT_S)
            _live(seed, without)
        _, status = os.waitpid(child, 0)
        if status:
            _answer(Ended(seed, [_why(os.waitstatus_to_exitcode(status))]))
    assert kept
    os._exit(0)


def _live(seed: int, without: list[int]) -> None:
    try:
        ended = _ended(seed, without)
    except BaseException:  # noqa: BLE001 - nobody else would hear of it
        ended = Ended(seed, [traceback.format_exc()])
    _answer(ended)
    os._exit(0)  # nothing that was killed in it is collected


def _ended(seed: int, without: list[int]) -> Ended:
    run = lived(seed, without)
    oracle, scheduler = run.world.oracle, run.world.scheduler
    return Ended(
        seed,
        oracle.violations,
        scheduler.digest,
        scheduler.now_s,
        [one.fault for one in run.plan],
        run.world.story,
        dict(oracle.seen),
        dict(run.world.met),
    )


def _why(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"no end within {RUN_TIMEOUT_S} s"
    return f"its process ended with {code}"


def _answer(ended: Ended) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ended) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
