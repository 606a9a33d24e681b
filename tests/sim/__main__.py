"""`make sim`: many seeds, or one.

    --seeds N [--base B]    N runs, side by side; the first failing seed is in the last line
    --minutes M [--base B]  as many as that allows
    --seed X [--trace]      one run, and with --trace its story
    --shrink X              the fewest faults with which the run of that seed still fails
    --plants NAME …         how many seeds it takes until each of these mistakes is found

Every run has a process of its own (children.py): what happens in it depends on its seed alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, islice
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.sim.children import Ended, ran
from tests.sim.plants import MOST, chosen, seeds_until_found
from tests.sim.situations import coverage

SHOWN: Final = 5


say = print
"""What the command says."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--base", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", type=int)
    parser.add_argument("--plants", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if asked.seed is not None:
        return show(ran(asked.seed), trace=asked.trace)
    if asked.shrink is not None:
        return shrink(asked.shrink)
    if asked.plants is not None:
        return plants(asked.plants, asked.base, asked.seeds or MOST)
    return many(
        asked.base,
        asked.seeds or (100 if asked.minutes is None else None),
        asked.minutes,
        asked.workers,
    )


# --- one run -------------------------------------------------------------------------------------


def show(ended: Ended, *, trace: bool) -> int:
    if trace:
        say("\n".join(ended.story))
    for violation in ended.violations[:SHOWN]:
        say(f"violated: {violation}")
    verdict = "failed" if ended.violations else "held"
    say(f"seed {ended.seed} {verdict} after {ended.virtual_s:.0f} virtual s, {ended.digest}")
    return 1 if ended.violations else 0


def shrink(seed: int) -> int:
    """Leave out faults, half of them at first and one at the end, as long as it still fails."""
    whole = ran(seed)
    if not whole.violations:
        say(f"seed {seed} doesn't fail")
        return 0
    kept, size = list(range(len(whole.faults))), max(len(whole.faults) // 2, 1)
    smallest = whole
    while size:
        for begin in range(0, len(kept), size):
            fewer = kept[:begin] + kept[begin + size :]
            tried = ran(seed, set(range(len(whole.faults))) - set(fewer))
            if tried.violations:
                kept, smallest = fewer, tried
                say(f"{len(kept)} faults: {tried.violations[0][:100]}")
                break
        else:
            size //= 2
    return show(smallest, trace=True)


def plants(names: Sequence[str], base: int, most: int) -> int:
    """A row of a table for each."""
    missed = 0
    for plant in chosen(names):
        found = seeds_until_found(plant, base, most)
        missed += not found.seeds
        how = found.by.strip().splitlines()[-1][:150] if found.seeds else f"not within {most}"
        say(f"| `{plant.name}` | {found.seeds or '—'} | {found.seed or ''} | {how} |", flush=True)
    return 1 if missed else 0


# --- many ----------------------------------------------------------------------------------------


def many(base: int, seeds: int | None, minutes: float | None, workers: int) -> int:
    began_s = time.monotonic()
    until_s = began_s + (minutes * 60 if minutes else 1e9)
    left: Iterator[int] = count(base) if seeds is None else islice(count(base), seeds)
    met: Counter[str] = Counter()
    failed: list[Ended] = []
    virtual_s, done = 0.0, 0
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ThreadPoolExecutor(workers) as pool,
        Progress(*columns, console=Console(stderr=True)) as bar,
    ):
        task = bar.add_task("", total=seeds)
        running: set[Future[Ended]] = {pool.submit(ran, seed) for seed in islice(left, workers)}
        while running:
            over, running = wait(running, return_when=FIRST_COMPLETED)
            for one in over:
                ended = one.result()
                done, virtual_s = done + 1, virtual_s + ended.virtual_s
                met.update(ended.met)
                bar.update(task, completed=done)
                if ended.violations:
                    failed.append(ended)
                    bar.console.print(f"seed {ended.seed}: {ended.violations[0][:300]}")
            if time.monotonic() < until_s and not failed:
                running |= {pool.submit(ran, seed) for seed in islice(left, len(over))}
    took_s = time.monotonic() - began_s
    say(coverage(met))
    say(
        f"{done} seeds in {took_s:.0f} s, {60 * done / took_s:.0f} a minute; "
        f"{virtual_s / took_s:.0f} times faster than real time"
    )
    if failed:
        say(f"seed {min(one.seed for one in failed)} failed")
        return 1
    say("no seed failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
