"""An hour in the life of a group in which everything goes wrong by chance, and the calm after it.

Some events are bad: handlers fail with them, each time in another way, until an operator has
repaired them. Some consumers have a limit for that, others get through with them after a while.

One seed decides all of it. Nothing here knows what must hold; that is the oracle's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from headgate.decide.lane.checkpoints import Reset
from headgate.errors import HeadgateError
from headgate.model.delivery import Delivery
from headgate.model.groups import Group, group_id
from headgate.model.letters import Letter, NewLetter
from tests.groups.member import Bystander, Doom, Member, Poison, Style
from tests.groups.network import GroupLink
from tests.groups.oracle import Oracle
from tests.groups.system import CONSUMERS, PARTITIONS, System
from tests.lane.faulty_stores import STORE_MOODS

KEYS = 100
GATEWAYS = ("gateway-1", "gateway-2")
HOUR_S = 3_600.0
CALM_S = 400.0
"""After the last fault everything is processed within that."""
STEP_S = 9.0
"""Between two faults, on average."""
MOST, FEWEST = 6, 3
STYLES: tuple[Style, ...] = ("auto", "manual", "pool")
LIMITS = (0, 3, 3, 4)
BAD = 0.01
"""Of all events."""


class Hour:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.oracle = Oracle(CONSUMERS)
        self.system = System(self.chance, self.oracle, self.oracle)
        self.oracle.earliest = self.system.earliest
        self.poison = Poison(self.doomed)
        self.members: dict[str, Member] = {}
        self.path: list[str] = []
        self.produced = 0
        self._names = 0
        self._beside: set[asyncio.Task[None]] = set()

    # --- the whole of it -------------------------------------------------------------------------

    async def run(self, *, for_s: float = HOUR_S) -> None:
        loop = asyncio.get_running_loop()
        await self.system.start(*GATEWAYS)
        for _ in range(4):
            self.somebody_joins()
        bystander = Bystander(self.system.network, self.system.machine)
        producing = asyncio.create_task(self.produce(for_s))
        steps = self.steps()
        while loop.time() < for_s and not self.oracle.violations:
            await asyncio.sleep(self.chance.expovariate(1 / STEP_S))
            [step] = self.chance.choices(list(steps), list(steps.values()))
            said = await step()
            self.path.append(f"{loop.time():9.3f} {step.__name__} {said or ''}")
        await producing
        if not self.oracle.violations:
            await self.calm_down()
            await bystander.leave()
            await self.end()

    def steps(self) -> dict[Callable[[], Awaitable[object]], int]:
        return {
            self.a_consumer_joins: 12,
            self.a_consumer_leaves: 9,
            self.a_consumer_is_killed: 6,
            self.a_consumer_is_slow: 12,
            self.a_consumer_freezes: 8,
            self.a_connection_breaks: 8,
            self.a_gateway_is_cut_off: 4,
            self.a_gateway_stands_still: 3,
            self.a_gateway_is_killed: 3,
            self.a_gateway_stops: 2,
            self.the_coordinator_changes: 2,
            self.a_partition_is_reset: 4,
            self.a_letter_is_retried: 8,
            self.letters_of_the_group_are_retried: 5,
            self.letters_are_away: 4,
            self.retention_removes: 6,
            self.many_events_come: 8,
        }

    async def produce(self, for_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < for_s:
            await asyncio.sleep(self.chance.expovariate(1 / 2.0))
            self.append(self.chance.choice((1, 1, 1, 2, 4)))

    def append(self, count: int) -> None:
        for _ in range(count):
            number = min(self.chance.randrange(KEYS), self.chance.randrange(KEYS))
            self.produced += 1
            is_bad = self.chance.random() < BAD
            document = {"n": self.produced, **({"bad": True} if is_bad else {})}
            record = self.system.log.append(
                document, partition=number % PARTITIONS, key=f"key-{number}"
            )
            if is_bad:
                self.poison.places.add((record.partition, record.seq))
            self.oracle.appended(record.partition, record.seq, f"key-{number}")

    # --- consumers -------------------------------------------------------------------------------

    def somebody_joins(self, id_: str | None = None) -> str:
        self._names += 1
        name = f"c{self._names}"
        style, limit = self.chance.choice(STYLES), self.chance.choice(LIMITS)
        self.members[name] = member = Member(
            name,
            style,
            self.system.network,
            self.oracle,
            self.chance,
            machine=self.system.machine,
            poison=self.poison,
            limit=limit,
            id_=id_,
        )
        member.start()
        return f"{name} {style} {limit}"

    def doomed(self, member: Member, how: Doom) -> None:
        """It can't go on with what it has in hand; somebody is started in its place."""
        self.beside(self._doom(member, how))

    async def _doom(self, member: Member, how: Doom) -> None:
        if how == "hang":
            await asyncio.sleep(self.chance.choice((5.0, 20.0, 60.0, 150.0)))
        if member.is_dead or member.has_left:
            return
        is_awaited = self.members.pop(member.name, None) is not None
        if how == "raise":
            await member.fall()
        else:
            self.oracle.tag_links("crash", member.links())
            await member.die(silently=self.chance.random() < 0.3)
        if is_awaited:
            said = self.somebody_joins(self.chance.choice((member.id, None)))
            now_s = asyncio.get_running_loop().time()
            self.path.append(f"{now_s:9.3f} {member.name} failed ({how}), {said} comes")

    def some(self) -> Member:
        return self.chance.choice(list(self.members.values()))

    def beside(self, work: Awaitable[None]) -> None:
        async def done() -> None:
            await work

        task = asyncio.create_task(done())
        self._beside.add(task)

    async def a_consumer_joins(self) -> str:
        return self.somebody_joins() if len(self.members) < MOST else "nobody"

    async def a_consumer_leaves(self) -> str:
        member = self.some()
        del self.members[member.name]
        gently = self.chance.random() < 0.5
        self.oracle.tag_links("left", member.links())
        within_s = self.chance.choice((0.0, 0.0015, 0.01, 60.0))
        member.thaw()
        self.beside(member.leave(gently=gently, within_s=within_s))
        self.fill_up()
        return f"{member.name} within {within_s} s{' gently' if gently else ''}"

    async def a_consumer_is_killed(self) -> str:
        member = self.some()
        del self.members[member.name]
        self.oracle.tag_links("crash", member.links())
        silently = self.chance.random() < 0.4
        await member.die(silently=silently)
        self.fill_up()
        return f"{member.name}{' silently' if silently else ''}"

    def fill_up(self) -> None:
        while len(self.members) < FEWEST:
            self.somebody_joins()

    async def a_consumer_is_slow(self) -> str:
        member = self.some()
        member.slow_s = self.chance.choice((2.0, 5.0, 15.0, 60.0, 180.0))
        return f"{member.name} {member.slow_s}"

    async def a_consumer_freezes(self) -> str:
        member = self.some()
        if member.is_frozen:
            return "nobody"
        for_s = self.chance.choice((5.0, 9.0, 12.0, 25.0, 60.0))
        self.oracle.tag_links("frozen", member.links())
        member.freeze()
        asyncio.get_running_loop().call_later(for_s, member.thaw)
        return f"{member.name} for {for_s} s"

    async def a_connection_breaks(self) -> str:
        member = self.some()
        for link in member.links():
            if not link.is_frozen:
                self.oracle.tag_links("reconnect", [link])
                link.cut()
        return member.name

    # --- gateways and the coordinator ------------------------------------------------------------

    async def a_gateway_is_cut_off(self) -> str:
        gateway = self.system.gateways[self.chance.choice(GATEWAYS)]
        coordinator = self.system.coordinator
        if gateway.session in coordinator.cut_off:
            return "none"
        self.oracle.tag_links("cut off", self.links_at(gateway.node_id))
        coordinator.cut(gateway.session)
        for_s = self.chance.choice((1.0, 8.0, 20.0, 45.0, 90.0))
        self.gateway_away(gateway.node_id, is_away=True)

        async def back() -> None:
            await asyncio.sleep(for_s)
            if self.system.gateways[gateway.node_id] is gateway:
                coordinator.let_back(gateway.session)
                await asyncio.sleep(1.0)
                if gateway.session not in coordinator.cut_off:
                    self.gateway_away(gateway.node_id, is_away=False)

        self.beside(back())
        return f"{gateway.node_id} for {for_s} s"

    async def a_gateway_stands_still(self) -> str:
        gateway = self.system.gateways[self.chance.choice(GATEWAYS)]
        if gateway.session in self.system.coordinator.cut_off:
            return "none"
        self.oracle.seen["still"] += 1
        self.oracle.tag_links("cut off", self.links_at(gateway.node_id))
        gateway.stand_still()
        for_s = self.chance.choice((3.0, 20.0, 45.0, 90.0))
        self.gateway_away(gateway.node_id, is_away=True)

        async def on() -> None:
            await asyncio.sleep(for_s)
            if self.system.gateways[gateway.node_id] is gateway and gateway.is_still:
                gateway.go_on()
                await asyncio.sleep(1.0)
                if gateway.session not in self.system.coordinator.cut_off:
                    self.gateway_away(gateway.node_id, is_away=False)

        self.beside(on())
        return f"{gateway.node_id} for {for_s} s"

    def links_at(self, node_id: str) -> list[GroupLink]:
        return [link for link in self.system.network.links if link.node_id == node_id]

    def gateway_away(self, node_id: str, *, is_away: bool) -> None:
        members = [link.member for link in self.links_at(node_id)]
        self.oracle.gateway_away(node_id, members, is_away=is_away)

    async def a_gateway_is_killed(self) -> str:
        name = self.chance.choice(GATEWAYS)
        self.gateway_away(name, is_away=True)
        self.oracle.tag_links("crash", self.links_at(name))
        await self.system.gateways[name].kill()
        for_s = self.chance.choice((0.0, 3.0, 40.0))
        await asyncio.sleep(for_s)
        await self.system.start_gateway(name)
        self.gateway_away(name, is_away=False)
        return f"{name} for {for_s} s"

    async def a_gateway_stops(self) -> str:
        name = self.chance.choice(GATEWAYS)
        if self.system.gateways[name].is_still:
            return "none"
        self.system.coordinator.let_back(self.system.gateways[name].session)
        self.oracle.giving_up.stopping.add(name)
        await self.system.gateways[name].stop()
        self.oracle.giving_up.stopping.discard(name)
        await asyncio.sleep(1.0)
        await self.system.start_gateway(name)
        return name

    async def the_coordinator_changes(self) -> str:
        with_nothing = self.chance.random() < 0.4
        self.oracle.tag_links("new term", self.system.network.links)
        if with_nothing:
            self.oracle.forgotten()
        self.system.coordinator.restart(with_nothing=with_nothing)
        return "with nothing" if with_nothing else "with its store"

    # --- operators and time ----------------------------------------------------------------------

    async def a_partition_is_reset(self) -> str:
        partition = self.chance.randrange(PARTITIONS)
        settled = self.system.settled(partition)
        to = max(self.system.earliest(partition) - 1, settled - self.chance.choice((1, 5, 30)))
        coordinator, ref = self.system.coordinator, self.system.ref(partition)
        try:
            coordinator.apply(
                coordinator.cluster.reset(ref, Reset(to), round(coordinator.now_ms()))
            )
        except HeadgateError as error:
            return f"{partition}: {error}"
        self.oracle.reset(partition, to, settled)
        return f"{partition} from {settled} to {to}"

    async def a_letter_is_retried(self) -> str:
        """One that was refused once, and those that lie there."""
        stored = self.system.letters.stored
        partition = self.chance.randrange(PARTITIONS)
        ref = self.system.ref(partition)
        records = self.system.log.stored.partition(ref).records
        settled = [one for one in records if one.seq <= self.system.settled(partition)]
        fence = stored._fences.get(ref)
        if settled and fence is not None:
            record = self.chance.choice(settled[-20:])
            delivery = Delivery(
                record.topic,
                record.partition,
                record.seq,
                record.event_id,
                record.key,
                record.collection,
                record.op,
                msgspec.Raw(record.document),
                ("somebody",),
                fence.epoch,
            )
            new = NewLetter("gateway-1", "dead", "rejected", delivery)
            await self.system.letters.put(
                [new], {ref: fence}, now_ms=self.system.coordinator.now_ms()
            )
        return await self.retry_all()

    async def retry_all(self) -> str:
        """Those of lanes."""
        stored = self.system.letters.stored.letters.values()
        dead = [one for one in stored if one.state == "dead" and one.reason != "failed"]
        for one in dead:
            if not one.delivery.lost_from:
                self.oracle.wished((one.delivery.partition, one.delivery.seq))
        if dead:
            await self.system.retry_letters([one.id for one in dead])
        return str([(one.delivery.partition, one.delivery.seq, one.reason) for one in dead])

    async def letters_of_the_group_are_retried(self) -> str:
        """Some of them, of which half are repaired."""
        dead = [one for one in self.system.letters.of_group("dead") if self.chance.random() < 0.5]
        for one in dead:
            if self.chance.random() < 0.5:
                self.poison.places.discard(_place(one))
        if dead:
            await self.system.retry_letters([one.id for one in dead])
        return str([_place(one) for one in dead])

    async def letters_are_away(self) -> str:
        """For gateways."""
        moody = self.system.moody_letters
        if moody.mood != "well":
            return "already"
        moody.mood = self.chance.choice(STORE_MOODS)
        for_s = self.chance.choice((2.0, 10.0, 60.0))
        self.oracle.tag_links("letters away", self.system.network.links)

        async def back() -> None:
            await asyncio.sleep(for_s)
            moody.mood = "well"

        self.beside(back())
        return f"{moody.mood} for {for_s} s"

    async def retention_removes(self) -> str:
        partition = self.chance.randrange(PARTITIONS)
        keep = self.chance.choice((3, 20, 100))
        seq = min(self.system.head(partition) - keep, self.system.settled(partition))
        if seq <= self.system.earliest(partition):
            return "nothing"
        self.system.log.keep_from(self.system.ref(partition), seq)
        self.oracle.removed(partition, seq)
        return f"{partition} before {seq}"

    async def many_events_come(self) -> None:
        self.append(self.chance.choice((20, 60)))

    # --- the calm after it -----------------------------------------------------------------------

    async def calm_down(self) -> None:
        """Faults are over, though bad events are what they are: everything is processed or a letter
        in a bounded time, and nothing is left."""
        self.poison.dooms, self.poison.delays_s = ("raise",), (0.0, 0.5, 5.0, 40.0)
        await asyncio.gather(*self._beside)
        await self.letters_of_the_group_are_retried()
        for member in self.members.values():
            if member.is_frozen:
                member.thaw()
        for gateway in self.system.gateways.values():
            self.system.coordinator.let_back(gateway.session)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CALM_S
        while (left := self.left()) and loop.time() < until_s:
            await asyncio.sleep(5.0)
            await self.retry_all()
        if left:
            self.oracle.violated(f"still left {CALM_S:g} s after the last fault: {left}")

    async def end(self) -> None:
        await asyncio.gather(*self._beside)
        for member in self.members.values():
            await member.leave(gently=True)
        await self.system.stop()
        await asyncio.sleep(1.0)
        if self.system.network.links:
            self.oracle.violated(f"still open: {self.system.network.links}")

    def left(self) -> str:
        missing, wishes = self.oracle.missing(), self.oracle.unfulfilled()
        stored = self.system.letters.stored.letters.values()
        letters = [one for one in stored if one.state != "dead" or one.reason != "failed"]
        behind, vanished = self.behind(), self.vanished()
        if not (missing or wishes or letters or behind or vanished):
            return ""
        return (
            f"records {missing[:5]}, wishes {wishes[:5]}, letters {letters[:2]}, "
            f"behind {behind[:5]}, vanished {vanished[:5]}"
        )

    def behind(self) -> list[str]:
        """Targets whose position isn't behind the last of their records."""
        group = Group(group_id("flights", "radar"), "flights", "radar", self.oracle.targets)
        found: list[str] = []
        for (partition, key), seqs in self.oracle.of_key.items():
            name = group.target_name(self.oracle.placed(key))
            position = self.system.committed(name, partition)
            if position < seqs[-1]:
                found.append(f"{name} at {position} of {(partition, seqs[-1])} {key}")
        return found

    def vanished(self) -> list[tuple[int, int]]:
        """What was given up, and is neither processed nor a letter, nor passed over since."""
        letters = {_place(one) for one in self.system.letters.stored.letters.values()}
        given_up, oracle = self.oracle.giving_up.letters, self.oracle
        left = [one for one in given_up if one not in letters and one not in oracle.acked]
        return [one for one in left if not oracle.is_told(one)]

    def __str__(self) -> str:
        return "\n  ".join([f"seed {self.seed}:", *self.path])


def _place(letter: Letter) -> tuple[int, int]:
    return letter.delivery.partition, letter.delivery.seq
