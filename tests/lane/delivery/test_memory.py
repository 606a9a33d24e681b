"""What a lane holds in memory is bounded in bytes, not only in number."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headgate.decide.delivery.backlog import Backlog
from headgate.decide.delivery.pressure import Pressure, Watermarks
from headgate.decide.delivery.retrying import Backoff
from headgate.model.event import PartitionRef
from tests.decide.delivery.test_outbound import delivery

MOST_MIB = {"slow": 120, "away": 200}
"""Of 400 documents of a mebibyte: what may wait for the gateway (64), what is read meanwhile and,
where the gateway is away, the letters that wait to be written (64)."""


@pytest.mark.parametrize("mode", MOST_MIB)
def test_documents_of_a_mebibyte_wait_in_bounds_and_all_arrive(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lane.large_documents", mode],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["all"]
    assert seen["in_order"] or mode == "away"  # letters have their order in the store
    assert seen["largest_batch"] <= 8
    assert seen["grown_mib"] < MOST_MIB[mode]


def test_large_documents_fill_a_queue_before_it_has_many() -> None:
    pressure = Pressure(Watermarks(queue_size=100, queue_bytes=1_000))
    assert pressure.weigh(1, 699) == "normal"
    assert pressure.weigh(1, 700) == "soft"
    assert pressure.weigh(1, 900) == "hard"
    assert pressure.weigh(89, 0) == "hard"
    assert pressure.weigh(1, 599) == "normal"


def test_a_batch_has_so_many_bytes_and_one_delivery_at_least() -> None:
    backlog = Backlog(Backoff())
    for seq in range(1, 6):
        backlog.add(0.0, delivery(seq % 2, seq))  # documents of two bytes
    assert backlog.size_bytes == 10
    assert [one.seq for one in backlog.upcoming(100, 5)] == [1, 2]
    assert [one.seq for one in backlog.send(100, 5)] == [1, 2]
    assert backlog.size_bytes == 10
    backlog.put_back(backlog.arrived())
    assert [one.seq for one in backlog.send(100, 1)] == [1]
    backlog.arrived()
    assert backlog.size_bytes == 8
    backlog.drop(PartitionRef("flights", 0))
    assert backlog.size_bytes == 4
    assert [one.seq for one in backlog.take({PartitionRef("flights", 1)})] == [3, 5]
    assert backlog.size_bytes == 0
