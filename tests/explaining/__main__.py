"""Lives lives of a cluster and asks after every record: `python -m tests.explaining SEED [SEED …]`.

A line of JSON for each: what is wrong, and how often which status was said. What was killed in a
life must never be collected, so this process ends without tidying up.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback

import msgspec
import structlog

from tests.explaining.judging import judged


def main(seeds: list[int]) -> None:
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kept = []
    for seed in seeds:
        try:
            life = judged(seed, trace=len(seeds) == 1)
            failures, answers = life.failures, dict(life.answers)
            kept.append(life)
        except Exception:  # noqa: BLE001 - whoever asked reads it
            failures, answers = [traceback.format_exc()], {}
        told = {"seed": seed, "failures": failures, "answers": answers}
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
