"""Processes that append and are killed with -9: whole requests, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter

import pytest

from headgate.model.event import PartitionRef
from tests.contracts.appending_process import REQUEST_EVENTS
from tests.contracts.stores import WRITERS, Opened, durable
from tests.forks import Fork

REF = PartitionRef("killed", 0)
ROUNDS = 20


@pytest.mark.parametrize("logs", durable(WRITERS), indirect=True)
async def test_20_times_kill_9_loses_nothing_acknowledged_and_repeats_nothing(
    logs: Opened,
) -> None:
    acknowledged: dict[str, int] = {}
    for number in range(1, ROUNDS + 1):
        acknowledged |= await asyncio.to_thread(_append_until_killed, logs, number)
    records = await logs.reader().read(REF, after_seq=0, limit=1_000_000)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    found = {record.event_id: record.seq for record in records}
    assert len(found) == len(records)
    assert acknowledged.items() <= found.items()
    requests = Counter(event_id.rpartition("-")[0] for event_id in found)
    assert set(requests.values()) == {REQUEST_EVENTS}, "a request is there whole or not at all"


def _append_until_killed(logs: Opened, number: int) -> dict[str, int]:
    """The ids and seqs that the process had reported when it died, in the middle of its work."""
    command = ["-m", "tests.contracts.appending_process", logs.adapter, logs.location]
    process = Fork([*command, str(number)], stdout=subprocess.PIPE)
    with os.fdopen(process.stdout_fd) as told:
        lines = [told.readline() for _ in range(50 + 37 * number)]
        process.kill()
        lines += told.readlines()
    process.wait(30)
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert whole, "the process never got to append"
    return {event_id: int(seq) for event_id, seq in whole}
