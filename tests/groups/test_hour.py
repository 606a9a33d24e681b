"""An hour of a consumer group in which everything goes wrong: nothing is lost, passed or doubled.

A simulation on virtual time. Real are the client (`Consumer`, its conversation and line), two
gateways but for their sockets, the lanes and the coordinator's decisions (system.py); consumers are
cancelled in every call, closed, killed, slowed and frozen, connections break, gateways are killed,
stopped and cut off, coordinators change, operators reset partitions and retry dead letters,
retention removes what somebody is behind at (hour.py). Some events are bad: handlers ask for them
again, raise, die and hang, consumers with `max_deliveries` give them up, operators repair and retry
half of these, and the letters are away for a while. The judge knows the log, the wires and what
handlers saw (oracle.py, giving_up.py). All comes from a seed; `--hypothesis-profile explore` draws
others.

Which features meet at a target, and what tests the pair. P: here, asserted below to have met within
half a minute of each other; C: tests/services/gateway/groups/test_consumers.py; G:
test_giving_up_targets.py there; M: tests/decide/conversation/test_consumer.py; D:
tests/decide/coordination/groups/test_groups.py; S: tests/client/test_consumer_client.py; W:
tests/client/test_wanted_later.py; N: for subscribers, in tests/lane/test_promise.py.

                redelivery  handover  crash    slow     reset    retention
    redelivery  P C M       P C M     P C S    P C      P N      P
    handover    P C M       P C D S   P D      P G M D  P        P
    crash       P C S       P D       P S      P        P N      P
    slow        P C         P G M D   P        P G S    P        P
    reset       P N         P         P N      P        P N      P
    retention   P           P         P        P        P        P C
    nack        p           M         p        p        p        p
    frozen      P           p C G     P        P        P        p
    reconnect   P           p M D     P        P        P        p
    cut off     P           p D       P        P C      P        p
    new term    P           p D       P        P S      P        p
    left        P           p D       P        P S      P        p
    failure     p           P         P        P        p        p
    given up    p           P L       P L      P        p        p L
    sent again  p           P L       P L      P        p        p

`failure`: with a bad event; `given up`: it is a letter; `sent again`: the letter is. L:
test_giving_up.py beside C, which has letters that are away, too; so do these hours, and each of the
three with a failure (P).
A nack alone is in M and W. p: here, but too rarely to assert it, or not counted. Left out: a socket
that takes no more, which the bounds of a group never fill; a reset of the group, back or ahead
(test_reset_hours.py); a store of positions that is away (C has it alone).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from headgate.tasks import deaths
from tests.groups.hour import Hour
from tests.virtual_time import run_virtual

ROOT = Path(__file__).parents[2]
SEEDS = (16, 15, 11, 2)
LONGEST = 4
"""Hours: more than the first one only until everything has met, since other code lives others."""
FEATURES = ("redelivery", "handover", "crash", "slow", "reset", "retention")
TROUBLES = ("frozen", "reconnect", "cut off", "new term", "left")
OFTEN = ("redelivery", "crash", "slow", "reset")
BAD = ("failure", "given up", "sent again")
MUST_MEET = {
    (min(pair), max(pair))
    for pair in (
        *combinations_with_replacement(FEATURES, 2),
        *product(TROUBLES, OFTEN),
        *product(BAD, ("failure", "handover", "crash", "slow")),
    )
}
MUST_BE_SEEN = (
    "resync",
    "reset",
    "nack",
    "held",
    "still",
    "overlap",
    "repeat",
    "wish fulfilled",
    "raise",
    "die",
    "hang",
    "given up",
    "letter processed",
    "bystander",
)


@pytest.mark.timeout(400)
def test_an_hour_of_faults_loses_passes_and_doubles_nothing() -> None:
    """In a process of its own, in which sets of names are gone through in the same order always."""
    is_repeatable = settings.default is not None and settings.default.derandomize
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONHASHSEED"] = "0" if is_repeatable else "random"
    command = [sys.executable, "-m", "tests.groups.test_hour", *(["repeat"] * is_repeatable)]
    ended = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3_000:]


def live(*, is_repeatable: bool) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    met: Counter[tuple[str, str]] = Counter()
    seen: Counter[str] = Counter()
    for number in range(LONGEST):
        seed = SEEDS[number] if is_repeatable else random.SystemRandom().randrange(2**32)
        hour = run_virtual(lived(seed))
        assert not hour.oracle.violations, f"{hour.oracle.violations[0]}\n{hour}"
        met += hour.oracle.met()
        seen += hour.oracle.seen
        missing = [pair for pair in sorted(MUST_MEET) if not met[pair]]
        unseen = [what for what in MUST_BE_SEEN if not seen[what]]
        if not (missing or unseen):
            break
    else:
        raise AssertionError(f"never met: {missing}; never seen: {unseen}")
    assert deaths.counts() == {}


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are gone through in an order that is the same in every run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


async def lived(seed: int) -> Hour:
    NumberedTask._numbers = itertools.count()
    asyncio.get_running_loop().set_task_factory(
        lambda loop, work, **options: NumberedTask(work, loop=loop, **options)
    )
    hour = Hour(seed)
    await hour.run()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left and not hour.oracle.violations:
        hour.oracle.violated(f"still running: {left}")
    return hour


if __name__ == "__main__":
    live(is_repeatable="repeat" in sys.argv)
