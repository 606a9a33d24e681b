"""The demo through PostgreSQL, as a process: everything that is written there reaches its
subscribers, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest

from headgate.demo.postgresql import programs
from tests.system.harness import HEADGATE, environment

SETTINGS = {"HEADGATE_DEMO__COUNT": "25"}
ENDS_WITHIN_S = 60


@pytest.mark.skipif(programs() is None, reason="no PostgreSQL here")
def test_what_is_written_arrives_and_an_interrupt_ends_postgresql_too() -> None:
    demo = subprocess.Popen(
        [*HEADGATE, "demo", "--source", "postgresql", "--seconds", "100", "--json"],
        env=environment(SETTINGS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if "delivered" in line and "delivered 0" not in line:
                break
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any(one.name() == "postgres" for one in started)
        demo.send_signal(signal.SIGINT)
        out, said = demo.communicate(timeout=ENDS_WITHIN_S)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 0, said
    summary = json.loads(out)
    assert summary["produced"] > 0
    assert summary["delivered"] == summary["matched"] > 0
    assert (summary["lost"], summary["duplicates"], summary["out_of_order"]) == (0, 0, 0)
    assert [one for one in started if one.is_running()] == []
