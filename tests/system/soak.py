"""`make soak`: one repartition after the other under load, with a fault in each.

    --rounds N   how many, 20 by default
    --seed X     the same counts, faults and moments again (what the machine does meanwhile, it
                 doesn't repeat); without it one is made up, and said

About 2,000 events a second over 1,000 keys go through a coordinator, two ingest nodes, a router
with plain lanes and a gateway, each a process. In every round the topic gets another number of
partitions, and at some moment somebody is killed or frozen for a while. Three subscribers are
judged: one that is there all along, one that goes before each second round and comes back with its
positions afterwards, and one that reads everything from the beginning when it is over.

It ends with code 1 at the first event that is lost, out of order, made up, at two positions, or
repeated later than ten seconds after a fault; and when something takes longer than two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from headgate.client import SyncProducer
from headgate.client.pending import ProducerOptions
from tests.system.cluster import PLAIN_ROUTER, Cluster, own_port
from tests.system.harness import Command, repartition_topic, until
from tests.system.traffic import PAUSE_S, Traffic

SETTINGS: Final = {
    "HEADGATE_COORDINATOR__TIMEOUT": "6s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
    "HEADGATE_COORDINATOR__REBALANCE": "2s",
    "HEADGATE_COORDINATOR__ADOPTION_TIMEOUT": "5s",
}
ROUNDS: Final = 20
PARTITIONS_MAX: Final = 12
KEYS: Final = 1_000
PER_S: Final = 2_000
AT_ONCE_MAX: Final = 500
BEHIND_MAX_S: Final = 1.0
"""What a machine can't do at that pace it needn't make up for."""
STRIKES_WITHIN_S: Final = (0.0, 0.3, 3.0)
"""One of these; without faults most are over within one or two seconds."""
FROZEN_S: Final = (0.5, 8.0)
REPEATS_WITHIN_S: Final = 10.0
PATIENCE_S: Final = 120.0
EVIDENCE_LINES: Final = 50_000
NODES: Final = ("coordinator-1", "ingest-1", "ingest-2", "router-1", "gateway-1")

say = print
"""What the command says."""


class Violation(Exception):
    """A promise that wasn't kept."""


class Flood(Traffic):
    """Numbers in turn over all keys, so that each key has every `KEYS`-th one."""

    def _produce(self) -> None:
        begun_s = time.monotonic()
        try:
            with SyncProducer(self._cluster.url, ProducerOptions(deadline_s=90.0)) as producer:
                while not self._stopping.wait(PAUSE_S):
                    late = (time.monotonic() - begun_s) * PER_S - len(self.acknowledged)
                    begun_s += max(0.0, late / PER_S - BEHIND_MAX_S)
                    self.at_once = max(1, min(int(late), AT_ONCE_MAX))
                    self._send(producer)
        except Exception as error:  # noqa: BLE001  # raised again where somebody waits for it
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise Violation(f"a produce call failed: {self._error}") from self._error

    def _check(self) -> None:
        """Who is judged is judged as it comes."""


class Judge:
    """Looks at what one subscriber gets, in the order in which it does.

    `last_fault_s` is when the last one was over, or now while one lasts.
    """

    def __init__(self, name: str, flood: Flood, last_fault_s: Callable[[], float]) -> None:
        self.name = name
        self.count = 0
        self.repeats = 0
        self._flood = flood
        self._last_fault_s = last_fault_s
        self._next: dict[str, int] = {f"k{number}": number for number in range(KEYS)}
        self._positions: dict[int, tuple[int, int]] = {}
        self._reached: dict[int, int] = {}
        self._subscriber: Command | None = None
        self._taken = 0

    def listen(self, subscriber: Command) -> None:
        self._subscriber, self._taken = subscriber, 0

    def leave(self) -> str:
        """Where it would go on, as `--from` has it."""
        assert self._subscriber is not None
        self._subscriber.stop()
        self.look()
        self._subscriber = None
        return ",".join(f"{number}:{seq + 1}" for number, seq in sorted(self._reached.items()))

    def look(self) -> None:
        """At all that came since the last look."""
        if self._subscriber is None:
            return
        lines = self._subscriber.out.timed()
        for line, at_s in lines[self._taken :]:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last thing that somebody wrote who was killed
            self._judge(event, at_s)
        self._taken = len(lines)

    def is_complete(self, count: int) -> bool:
        self.look()
        if self._subscriber is not None and self._subscriber.process.poll() is not None:
            raise Violation(f"{self.name} ended: {self._subscriber.err.finish()[-3:]}")
        return self.count >= count

    def _judge(self, event: dict[str, Any], at_s: float) -> None:
        key, number = event["key"], event["document"]["n"]
        position = (event["partition"], event["seq"])
        is_sent = number < len(self._flood.sent_at_s)
        if key != f"k{number % KEYS}" or not is_sent:
            raise Violation(f"{self.name} got {number} of {key}, which nobody sent: {event}")
        if number < self._next[key]:
            self._judge_repeat(number, position, at_s)
            return
        if number > self._next[key]:
            raise Violation(
                f"{self.name} got {number} of {key} at {position}, {self._next[key]} was next: "
                "lost or out of order"
            )
        self._next[key] = number + KEYS
        self._positions[number] = position
        self._reached[position[0]] = max(position[1], self._reached.get(position[0], 0))
        self.count += 1

    def _judge_repeat(self, number: int, position: tuple[int, int], at_s: float) -> None:
        first = self._positions[number]
        if first != position:
            raise Violation(f"{self.name} got {number} at {first} and at {position}")
        self.repeats += 1
        late_s = at_s - self._last_fault_s()
        if late_s > REPEATS_WITHIN_S:
            raise Violation(f"{self.name} got {number} again, {late_s:.0f} s after the last fault")


class Soak:
    def __init__(self, cluster: Cluster, flood: Flood, chance: random.Random) -> None:
        self._cluster = cluster
        self._flood = flood
        self._chance = chance
        self._fault_over_s = time.monotonic()
        self._is_faulty = False
        self._partitions = 4
        self._there = Judge("who is there all along", flood, self._last_fault_s)
        self._comes_back = Judge("who comes back", flood, self._last_fault_s)
        self._there.listen(flood.subscriber)
        self._comes_back.listen(cluster.subscribe(flood.topic, "--from", "earliest"))

    def _last_fault_s(self) -> float:
        return time.monotonic() if self._is_faulty else self._fault_over_s

    def run(self, rounds: int) -> None:
        left_at = ""
        for number in range(1, rounds + 1):
            if number % 2 == 0:
                left_at = self._comes_back.leave()
            told = self._round()
            if number % 2 == 0:
                self._comes_back.listen(
                    self._cluster.subscribe(self._flood.topic, "--from", left_at)
                )
            self._caught_up(self._there, self._comes_back)
            repeats = self._there.repeats + self._comes_back.repeats
            say(f"round {number}/{rounds}: {told}; {self._there.count:,} events, {repeats} again")
        self._flood.end()
        self._caught_up(self._there, self._comes_back)
        replays = Judge("who reads from the beginning", self._flood, self._last_fault_s)
        replays.listen(self._cluster.subscribe(self._flood.topic, "--from", "earliest"))
        self._caught_up(replays)

    def _caught_up(self, *judges: Judge) -> None:
        """Everybody has what is acknowledged now."""
        count = len(self._flood.acknowledged)
        for judge in judges:

            def is_there(judge: Judge = judge) -> bool:
                self._flood.raise_error()
                return judge.is_complete(count)

            try:
                until(is_there, judge.name, PATIENCE_S)
            except AssertionError:
                raise Violation(f"{judge.name} got {judge.count} of {count} events: lost") from None

    # --- a round -----------------------------------------------------------------------------

    def _round(self) -> str:
        """Returns what happened."""
        before, chance = self._partitions, self._chance
        to = chance.choice([n for n in range(1, PARTITIONS_MAX + 1) if n != before])
        node_id, after_s = (
            chance.choice(NODES),
            chance.uniform(0.0, chance.choice(STRIKES_WITHIN_S)),
        )
        frozen_s = chance.choice([0.0, chance.uniform(*FROZEN_S)])
        begun_s = time.monotonic()
        asked = self._ask(to)
        threading.Event().wait(after_s)
        phase = self._phase()
        self._strike(node_id, frozen_s)
        asked += self._until_final(to)
        took_s = time.monotonic() - begun_s
        self._partitions = to
        fault = f"froze {node_id} for {frozen_s:.1f} s" if frozen_s else f"killed {node_id}"
        again = f", asked {asked} times" if asked > 1 else ""
        return f"{before} -> {to}, {fault} after {after_s:.1f} s ({phase}), {took_s:.1f} s{again}"

    def _strike(self, node_id: str, frozen_s: float) -> None:
        self._is_faulty = True
        if frozen_s:
            with self._cluster.paused(node_id):
                threading.Event().wait(frozen_s)
        else:
            self._cluster.kill(node_id)
            self._cluster.start(node_id.partition("-")[0], node_id)
        self._fault_over_s, self._is_faulty = time.monotonic(), False

    def _ask(self, to: int) -> int:
        with contextlib.suppress(OSError):  # whoever doesn't answer is asked again
            url = self._cluster.coordinator_url("coordinator-1")
            repartition_topic(url, self._flood.topic, to)
            return 1
        return 0

    def _topic(self) -> dict[str, Any] | None:
        """As the coordinator tells it, if it does."""
        with contextlib.suppress(URLError, OSError):
            for one in self._cluster.status_without_gateways()["topics"]:
                if one["name"] == self._flood.topic:
                    found: dict[str, Any] = one
                    return found
        return None

    def _phase(self) -> str:
        topic = self._topic()
        if topic is None:
            return "unknown"
        return str(topic["repartition"]["phase"]) if topic["repartition"] else "over"

    def _until_final(self, to: int) -> int:
        """How often it had to be asked for again: before the fence it may be given up."""
        asked = 0

        def is_final() -> bool:
            nonlocal asked
            self._flood.raise_error()
            self._there.look()
            topic = self._topic()
            if topic is None or topic["repartition"] is not None:
                return False
            if topic["partitions"] != to:
                asked += self._ask(to)
                return False
            return True

        until(is_final, f"it has {to} partitions", PATIENCE_S)
        return asked


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if asked.seed is None else asked.seed
    say(f"seed {seed}: {asked.rounds} repartitions, {PER_S:,} events/s over {KEYS:,} keys")
    with tempfile.TemporaryDirectory(prefix="headgate-soak-", ignore_cleanup_errors=True) as folder:
        return soak(Path(folder), asked.rounds, seed)


def soak(folder: Path, rounds: int, seed: int) -> int:
    begun_s = time.monotonic()
    with Cluster(
        folder / "data",
        ingest_nodes=2,
        routers=1,
        settings={**SETTINGS, **own_port()},
        router_program=PLAIN_ROUTER,
    ) as cluster:
        try:
            with Flood(cluster, partitions=4, keys=KEYS) as flood:
                try:
                    Soak(cluster, flood, random.Random(seed)).run(rounds)
                except (Violation, AssertionError):
                    say(f"what everybody said is in {keep_evidence(cluster, flood)}")
                    raise
                sent = len(flood.acknowledged)
        except (Violation, AssertionError) as error:
            say(f"FAILED with seed {seed}: {error}")
            return 1
    took_s = time.monotonic() - begun_s
    say(f"{rounds} repartitions, {sent:,} events in {took_s:.0f} s: nothing lost, all in order")
    return 0


def keep_evidence(cluster: Cluster, flood: Flood) -> Path:
    """What nodes that run have logged, what the coordinator knows, and what the subscriber that was
    there all along got last."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-soak-failed-"))
    for node_id, lines in cluster.said().items():
        (folder / f"{node_id}.log").write_text("\n".join(lines))
    with contextlib.suppress(OSError):
        (folder / "status.json").write_text(json.dumps(cluster.status_without_gateways()))
    received = flood.subscriber.out.timed()[-EVIDENCE_LINES:]
    (folder / "received.jsonl").write_text(
        "\n".join(f"{at_s:.3f} {line}" for line, at_s in received)
    )
    (folder / "subscriber.log").write_text("\n".join(flood.subscriber.err.lines))
    return folder


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
