"""One run in a process that ends with it: `python -m tests.sim.child SEED [FAULTS LEFT OUT …]`."""

from __future__ import annotations

import os
import sys

import msgspec

from tests.sim.__main__ import Ended
from tests.sim.run import lived


def main() -> None:
    seed, *without = map(int, sys.argv[1:])
    run = lived(seed, without)
    oracle, scheduler = run.world.oracle, run.world.scheduler
    ended = Ended(
        seed,
        oracle.violations,
        scheduler.digest,
        scheduler.now_s,
        [one.fault for one in run.plan],
        run.world.story,
        dict(oracle.seen),
        {f"{one} while {two}": number for (one, two), number in run.faults.met.items()},
    )
    sys.stdout.buffer.write(msgspec.json.encode(ended))
    sys.stdout.flush()
    os._exit(0)  # nothing that was killed in it is collected


if __name__ == "__main__":
    main()
