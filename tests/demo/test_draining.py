"""How long the demo waits for what is missing, and what it calls it then."""

from __future__ import annotations

import pytest

from headgate.demo.draining import PATIENCE_S, QUIET_S, ROLES, Drain, Verdict, busy_with
from headgate.model.api import GroupStatus, NodeStatus, Status, TopicInfo, TopicPartition
from headgate.model.letters import GatewayLetters


def judged(*steps: tuple[float, int, str]) -> Verdict:
    """Of the last of (time, missing, busy)."""
    drain = Drain(now_s=0.0)
    verdicts = [drain.judge(missing, busy, now_s=at_s) for at_s, missing, busy in steps]
    assert set(verdicts[:-1]) <= {"wait"}
    return verdicts[-1]


def test_what_doesnt_come_although_nothing_is_left_to_do_is_lost() -> None:
    assert judged((0.0, 3, ""), (QUIET_S - 0.1, 3, "")) == "wait"
    assert judged((0.0, 3, ""), (QUIET_S, 3, "")) == "lost"


def test_who_is_being_started_is_waited_for_longer_than_that_may_take() -> None:
    starting = [(float(second), 3, "router starting") for second in range(0, 200, 5)]
    assert judged(*starting) == "wait"
    assert judged(*starting, (PATIENCE_S, 3, "router starting")) == "on its way"


def test_the_time_begins_again_with_every_arrival_and_with_the_end_of_the_work() -> None:
    before = (100.0, 3, "7 records aren't settled")
    assert judged((0.0, 3, ""), (10.0, 2, ""), (24.0, 2, "")) == "wait"
    assert judged(before, (100.0 + QUIET_S - 1, 3, "")) == "wait"
    assert judged(before, (100.0 + QUIET_S, 3, "")) == "lost"


def partition(lag: int = 0) -> TopicPartition:
    return TopicPartition(0, 10, 10 - lag, lag, 0, "ingest-1", "router-1", 1)


def status(
    *,
    lag: int = 0,
    absent: str = "",
    starting: str = "",
    parked: int = 0,
    unowned: int = 0,
    learning: bool = False,
) -> Status:
    nodes = [
        NodeStatus(f"{role}-1", role, "starting" if role == starting else "ready")
        for role in ROLES
        if role != absent
    ]
    details = [] if learning else [partition(), partition(lag)]
    return Status(
        "1",
        1,
        1,
        nodes,
        [TopicInfo("flights", 2, "keyed", 1, details)],
        lanes=[],
        gateways=[],
        windows=[],
        subscriptions=4,
        letters=[GatewayLetters("gateway-1", parked=parked)],
        groups=[GroupStatus("flights", "radar", 4, None, 0, unowned, [])],
    )


@pytest.mark.parametrize(
    ("seen", "busy"),
    [
        (None, "nobody answers"),
        (status(), ""),
        (status(lag=1_204), "1,204 records aren't settled"),
        (status(absent="router"), "router starting"),
        (status(starting="gateway"), "gateway starting"),
        (status(parked=2), "2 letters are parked"),
        (status(unowned=3), "3 targets change hands"),
        (status(learning=True), "nobody answers"),
    ],
)
def test_what_is_left_to_do(seen: Status | None, busy: str) -> None:
    assert busy_with(seen, "flights") == busy
