"""Runs one after the other: `python -m tests.sim.child`.

An order is a line, SEED [FAULTS LEFT OUT …], and an `Ended` is the answer. What was killed in a run
must never be collected, so runs are lived in processes that are forked for a few of them and end
behind the last one, or behind one that failed; this one only loads what all of them need, once.
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
from tests.sim.run import Run, lived

RUN_TIMEOUT_S: Final = 300
RUNS: Final = 6
"""Lived in one process: half of what a process costs is what it takes over from its parent."""
NO_MORE: Final = 3
"""What such a process ends with when nothing more is asked for."""
WARMING_UP: Final = (1, 2, 3)
"""Seeds that are lived before any other and judged by nobody: whatever Python does once, when code
runs for the first time, no run has to do. They stay as they ended."""


def main() -> None:
    gc.disable()  # nothing ends at a moment that only the collector chose
    kept = [lived(seed) for seed in WARMING_UP]
    gc.freeze()
    over = False
    while not over:
        child = os.fork()
        if not child:
            _live_some()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        over = code == NO_MORE
        if code not in (0, NO_MORE):
            _answer(Ended(0, [_why(code)]))  # whoever asked knows the seed
    assert kept
    os._exit(0)


def _live_some() -> None:
    kept = []
    for _ in range(RUNS):
        signal.alarm(0)
        if not (order := sys.stdin.readline()):
            os._exit(NO_MORE)
        seed, *without = map(int, order.split())
        signal.alarm(RUN_TIMEOUT_S)
        deaths.forget()
        try:
            run = lived(seed, without)
            ended = _ended(run)
            kept.append(run)  # nothing that was killed in it is collected
        except BaseException:  # noqa: BLE001 - nobody else would hear of it
            ended = Ended(seed, [traceback.format_exc()])
        _answer(ended)
        if ended.violations:
            break
    os._exit(0)


def _ended(run: Run) -> Ended:
    oracle, scheduler = run.world.oracle, run.world.scheduler
    return Ended(
        run.seed,
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
