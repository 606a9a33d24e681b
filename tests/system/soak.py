"""`make soak`: one repartition after the other under load, with a fault in each.

    --rounds N   how many, 20 by default
    --seed X     the same counts, faults and moments again (what the machine does meanwhile, it
                 doesn't repeat); without it one is made up, and said
    --spark      a Spark streaming query reads along, and is compared with a batch read at the end

About 2,000 events a second over 1,000 keys go through a coordinator, two ingest nodes, a router
with plain lanes and a gateway, each a process. In every round the topic gets another number of
partitions. In each second one the coordinator is killed in a phase that was met least so far; in
the others a node or a consumer is killed, or frozen for a while, at some moment. Judged are three
subscribers (one that is there all along, one that goes before each second round and comes back with
its positions afterwards, and one that reads everything from the beginning when it is over) and a
group of three consumers.

It ends with code 1 at the first event that is lost, out of order, made up, at two positions, with
two consumers at once, or repeated later than ten seconds after a fault; and when something takes
longer than two minutes. After each fourth round it waits for longer than those ten seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError

from tests.system.cluster import PLAIN_ROUTER, Cluster, own_port
from tests.system.harness import repartition_topic, until
from tests.system.soaking.evidence import keep_evidence
from tests.system.soaking.flood import KEYS, PARTITIONS, PER_S, Flood, Violation
from tests.system.soaking.group import CONSUMERS, Group
from tests.system.soaking.judge import REPEATS_WITHIN_S, Account, Judge, Judged
from tests.system.soaking.phases import PHASES, Turns, await_phase

if TYPE_CHECKING:
    from tests.system.soaking.spark_query import SparkQuery

SETTINGS: Final = {
    "HEADGATE_COORDINATOR__TIMEOUT": "6s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
    "HEADGATE_COORDINATOR__REBALANCE": "2s",
    "HEADGATE_COORDINATOR__ADOPTION_TIMEOUT": "5s",
}
ROUNDS: Final = 20
QUIET_EACH: Final = 4
QUIET_S: Final = REPEATS_WITHIN_S + 2.0
PARTITIONS_MAX: Final = 12
STRIKES_WITHIN_S: Final = (0.0, 0.3, 3.0)
"""One of these; without faults most are over within one or two seconds."""
FROZEN_S: Final = (0.5, 8.0)
PATIENCE_S: Final = 120.0
COORDINATOR: Final = "coordinator-1"
ONE_CONSUMER: Final = "a consumer"
VICTIMS: Final = (COORDINATOR, "ingest-1", "ingest-2", "router-1", "gateway-1", ONE_CONSUMER)

say = print
"""What the command says."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Somebody is killed, or frozen if that has a time: in a phase, or after a while."""

    victim: str
    after_s: float = 0.0
    frozen_s: float = 0.0
    aimed: str = ""

    def __str__(self) -> str:
        if self.frozen_s:
            return f"froze {self.victim} for {self.frozen_s:.1f} s after {self.after_s:.1f} s"
        if self.aimed:
            return f"killed {self.victim} aiming at {self.aimed}"
        return f"killed {self.victim} after {self.after_s:.1f} s"


class Soak:
    def __init__(self, cluster: Cluster, flood: Flood, chance: random.Random) -> None:
        self._cluster = cluster
        self._flood = flood
        self._chance = chance
        self._phases = Turns(PHASES, chance)
        self._victims = Turns(VICTIMS, chance)
        self._fault_over_s = time.monotonic()
        self._is_faulty = False
        self._partitions = PARTITIONS
        self._there = Judge(self.account("who is there all along"))
        self._comes_back = Judge(self.account("who comes back"))
        self._replays = Judge(self.account("who reads from the beginning"))
        self.group = Group(cluster, flood.topic, self.account("the group"))
        self._query: SparkQuery | None = None
        self._there.listen(flood.subscriber)

    def account(self, name: str) -> Account:
        return Account(name, self._flood, self._last_fault_s)

    def _last_fault_s(self) -> float:
        return time.monotonic() if self._is_faulty else self._fault_over_s

    @property
    def _all_along(self) -> list[Judged]:
        """Who is judged while it goes on."""
        judged: list[Judged] = [self._there, self._comes_back, self.group]
        return judged if self._query is None else [*judged, self._query]

    def run(self, rounds: int, query: SparkQuery | None = None) -> None:
        self._query = query
        subscribe, topic, left_at = self._cluster.subscribe, self._flood.topic, ""
        self._comes_back.listen(subscribe(topic, "--from", "earliest"))
        with self.group:
            for number in range(1, rounds + 1):
                if number % 2 == 0:
                    left_at = self._comes_back.leave()
                told = self._round(self._fault(number))
                if number % 2 == 0:
                    self._comes_back.listen(subscribe(topic, "--from", left_at))
                self._caught_up(*self._all_along)
                say(f"round {number}/{rounds}: {told}; {self._figures()}")
                if number % QUIET_EACH == 0:
                    self._stays_quiet()
            self._flood.end()
            self._caught_up(*self._all_along)
            self.group.finish()
        self._replays.listen(subscribe(topic, "--from", "earliest"))
        self._caught_up(self._replays)
        if query is not None:
            query.compare(self.account("a batch read"))
        self._sum_up()

    def _figures(self) -> str:
        repeats = self._there.account.repeats + self._comes_back.account.repeats
        group = self.group.account
        return f"{self._there.count:,} events, {repeats} again; group {group.repeats} again"

    def _sum_up(self) -> None:
        sent = len(self._flood.acknowledged)
        everybody = [*self._all_along, self._replays]
        for judged in everybody:
            account = judged.account
            pause = f"longest pause {account.longest_pause_s:.1f} s"
            say(f"{judged.name}: {judged.count:,} of {sent:,}, {account.repeats} again, {pause}")
        late = self.group.judge.overlaps
        say(f"two consumers of one target, within what was in hand: {late} events")
        say(f"coordinator killed in: {self._phases}")
        if self._query is not None:
            say(f"{self._query.name}: {self._query.batches} batches, the same as a batch read")

    def _caught_up(self, *judges: Judged) -> None:
        """Everybody has what is acknowledged now."""
        count = len(self._flood.acknowledged)
        for judge in judges:

            def is_there(judge: Judged = judge) -> bool:
                self._flood.raise_error()
                return judge.is_complete(count)

            try:
                until(is_there, judge.name, PATIENCE_S)
            except AssertionError:
                raise Violation(f"{judge.name} got {judge.count} of {count} events: lost") from None

    def _stays_quiet(self) -> None:
        """Long enough for what comes again by itself to be noticed."""
        quiet_until_s = time.monotonic() + QUIET_S

        def is_over() -> bool:
            self._look()
            return time.monotonic() >= quiet_until_s

        until(is_over, "it stays quiet", PATIENCE_S)
        self._caught_up(*self._all_along)

    def _look(self) -> None:
        self._flood.raise_error()
        for judged in self._all_along:
            judged.look()

    # --- a round -----------------------------------------------------------------------------

    def _fault(self, number: int) -> Fault:
        """Each second round, whether somebody is away then or not, aims at a phase."""
        chance = self._chance
        if number % 4 in (1, 2):
            return Fault(COORDINATOR, aimed=self._phases.next())
        victim = self._victims.next()
        self._victims.has_met(victim)
        victim = chance.choice(CONSUMERS) if victim == ONE_CONSUMER else victim
        after_s = chance.uniform(0.0, chance.choice(STRIKES_WITHIN_S))
        frozen_s = chance.choice([0.0, chance.uniform(*FROZEN_S)])
        return Fault(victim, after_s, frozen_s)

    def _round(self, fault: Fault) -> str:
        """Returns what happened."""
        before = self._partitions
        to = self._chance.choice([n for n in range(1, PARTITIONS_MAX + 1) if n != before])
        begun_s = time.monotonic()
        with contextlib.ExitStack() as held:
            if fault.aimed == "drained":  # it would be over at once
                held.enter_context(self._flood.idle_frozen())
            asked = self._ask(to)
            phase = self._await(fault)
            self._strike(fault.victim, fault.frozen_s)
        if fault.victim == COORDINATOR and not fault.frozen_s:
            self._phases.has_met(phase)
        asked += self._until_final(to)
        took_s = time.monotonic() - begun_s
        self._partitions = to
        again = f", asked {asked} times" if asked > 1 else ""
        return f"{before} -> {to}, {fault} ({phase}), {took_s:.1f} s{again}"

    def _await(self, fault: Fault) -> str:
        """The moment of a fault, and in which phase that is."""
        if fault.aimed:
            url = self._cluster.coordinator_url(COORDINATOR)
            return await_phase(url, self._flood.topic, fault.aimed)
        threading.Event().wait(fault.after_s)
        return self._phase()

    def _strike(self, victim: str, frozen_s: float) -> None:
        self._is_faulty = True
        struck = self.group if victim in CONSUMERS else self._cluster
        if frozen_s:
            with struck.paused(victim):
                threading.Event().wait(frozen_s)
        else:
            struck.kill(victim)
            self._start(victim)
        self._fault_over_s, self._is_faulty = time.monotonic(), False

    def _start(self, victim: str) -> None:
        if victim in CONSUMERS:
            self.group.start(victim)
        else:
            self._cluster.start(victim.partition("-")[0], victim)

    def _ask(self, to: int) -> int:
        with contextlib.suppress(OSError):  # whoever doesn't answer is asked again
            url = self._cluster.coordinator_url(COORDINATOR)
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
            self._look()
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
    parser.add_argument("--spark", action="store_true")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if asked.seed is None else asked.seed
    say(f"seed {seed}: {asked.rounds} repartitions, {PER_S:,} events/s over {KEYS:,} keys")
    with tempfile.TemporaryDirectory(prefix="headgate-soak-", ignore_cleanup_errors=True) as folder:
        return soak(Path(folder), asked.rounds, seed, with_spark=asked.spark)


def soak(folder: Path, rounds: int, seed: int, *, with_spark: bool = False) -> int:
    begun_s = time.monotonic()
    with Cluster(
        folder / "data",
        ingest_nodes=2,
        routers=1,
        settings={**SETTINGS, **own_port()},
        router_program=PLAIN_ROUTER,
    ) as cluster:
        try:
            with Flood(cluster) as flood:
                run = Soak(cluster, flood, random.Random(seed))
                try:
                    with contextlib.ExitStack() as ends:
                        query = (
                            ends.enter_context(open_query(folder, cluster, flood, run))
                            if with_spark
                            else None
                        )
                        run.run(rounds, query)
                except (Violation, AssertionError):
                    say(f"what everybody said is in {keep_evidence(cluster, flood, run.group)}")
                    raise
                sent = len(flood.acknowledged)
        except (Violation, AssertionError) as error:
            say(f"FAILED with seed {seed}: {error}")
            return 1
    took_s = time.monotonic() - begun_s
    say(f"{rounds} repartitions, {sent:,} events in {took_s:.0f} s: nothing lost, all in order")
    return 0


def open_query(folder: Path, cluster: Cluster, flood: Flood, run: Soak) -> SparkQuery:
    """Only who wants it needs Spark."""
    from tests.system.soaking.spark_query import SparkQuery

    return SparkQuery(cluster.data, flood.topic, run.account("the query"), folder)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
