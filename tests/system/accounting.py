"""What must hold after every fault: each record is in one place, and who had none kept pace."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.system.cluster import Cluster
from tests.system.harness import Command, until
from tests.system.traffic import Receiver, Traffic

ENDS = ("acknowledged", "parked", "dead", "released", "unmatched", "skipped")
"""What may become of a record."""
BEFORE_S = 1.5
SLACK_S = 0.2
HOPS = 4
"""Processes that an event goes through behind the one that acknowledges it, ours included: on a
machine that others use too each may wait for its turn as long as that one did."""


class Running(Protocol):
    """A Headgate that runs, or a part of it that can be asked."""

    def status(self) -> dict[str, Any]: ...


def wait_s(seconds: float) -> None:
    """Let time pass for other processes: what is tested is what they do meanwhile."""
    threading.Event().wait(seconds)


def totals(running: Running, topic: str) -> dict[str, int]:
    """The sums of `headgate status`."""
    [found] = [one for one in running.status()["topics"] if one["name"] == topic]
    return dict(found["totals"])


def accounted_for(running: Running, topic: str, produced: int) -> dict[str, int]:
    """The sums, once all that was produced is settled: each record has come to one end, once.

    Of one moment: a lane that takes over goes back to the last position that was saved.
    """
    found: dict[str, int] = {}

    def is_settled() -> bool:
        try:
            found.update(totals(running, topic))
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return False  # a coordinator that was killed isn't back yet
        return found["settled"] >= produced

    until(is_settled, "everything is settled")
    assert found["waiting"] == found["repeated"] == found["uncounted"] == 0, found
    assert sum(found[end] for end in ENDS) == found["settled"] == found["appended"], found
    assert found["appended"] == produced, found
    return found


def takes_its_leave(cluster: Cluster, node_id: str) -> None:
    """Wait until `node_id` is gone, because it has said so: one that ends without a word is shown
    as lost until its lease has ended."""

    def is_gone() -> bool:
        node = cluster.nodes().get(node_id)
        assert node is None or node["state"] != "lost", f"{node_id} has kept its lease"
        return node is None

    until(is_gone, f"the lease of {node_id} is given back")


def letters(url: str, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _read_json(f"{url}/v1/dead-letters?state={state}")["letters"]
    return found


def nothing_left_parked(url: str) -> None:
    until(lambda: not letters(url, "parked"), "nothing is left parked")


def health(url: str) -> dict[str, Any]:
    try:
        return _read_json(f"{url}/health")
    except HTTPError as unwell:  # 503 has the same body
        found: dict[str, Any] = json.load(unwell)
        return found


def complains(url: str, *words: str) -> bool:
    """Does /health give a reason that has these words?"""
    reasons: list[str] = health(url)["reasons"]
    return any(all(word in reason for word in words) for reason in reasons)


def bad(doctor: Command) -> dict[str, str]:
    """What a `headgate doctor --json` finds to be bad, by subject."""
    assert doctor.wait() == 1, doctor.out.lines
    findings = json.loads("".join(doctor.out.lines))["findings"]
    return {one["subject"]: one["what"] for one in findings if one["verdict"] == "bad"}


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@contextmanager
def unaffected(traffic: Traffic, *others: Receiver) -> Iterator[None]:
    """What goes wrong in the block is none of their business (by default, of the traffic's own
    subscriber): what is sent meanwhile takes at most twice as long to them as before."""
    begun_s = time.monotonic()
    wait_s(BEFORE_S)
    wrong_s = time.monotonic()
    yield
    over_s = time.monotonic()
    for one in others or (traffic.own,):
        _kept_pace(traffic, one, begun_s, wrong_s, over_s)


def _kept_pace(
    traffic: Traffic, one: Receiver, begun_s: float, wrong_s: float, over_s: float
) -> None:
    sent = sum(begun_s <= at_s < over_s for at_s in traffic.sent_at_s)
    until(lambda: len(traffic.latencies_s(one, begun_s, over_s)) >= sent, "all of that came")
    before_s = _p99(traffic.latencies_s(one, begun_s, wrong_s))
    during_s = _p99(traffic.latencies_s(one, wrong_s, over_s))
    busy_s = HOPS * traffic.longest_answer_s(wrong_s, over_s)
    assert during_s <= 2 * before_s + SLACK_S + busy_s, (
        f"p99 {during_s:.3f} s, {before_s:.3f} s before, {busy_s:.3f} s for a busy machine"
    )


def _p99(latencies_s: list[float]) -> float:
    assert latencies_s, "nothing was sent meanwhile"
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _read_json(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as response:
        found: dict[str, Any] = json.load(response)
        return found
