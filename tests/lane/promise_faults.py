"""What happens to a PromiseWorld, step by step, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.errors import StorageFailed
from headgate.model.control import from_coordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter
from headgate.model.topology import Owner
from headgate.tasks import deaths
from tests.lane.faulty_stores import STORE_MOODS, Moody
from tests.lane.modelled_gateways import MOODS
from tests.lane.promise_world import GATEWAYS, QUIET_S, PromiseWorld, Run

STEPS = 30
PAUSES_S = (0.0, 0.01, 0.1, 0.4, 1.5)


class Faults:
    """Draws what happens next; nobody but the world's seed decides."""

    def __init__(self, world: PromiseWorld) -> None:
        self.world = world
        self.random = world.random
        self.actions: list[tuple[int, Callable[[], None]]] = [
            (30, self.append),
            (6, self.come),
            (4, self.go),
            (3, self.move),
            (4, self.come_back),
            (12, self.upset_gateway),
            (2, self.outage),
            (2, self.vanish),
            (3, self.appear),
            (5, self.poison),
            (2, self.mend),
            (5, self.stop_reading),
            (4, self.upset_letters),
            (3, self.upset_checkpoints),
            (5, self.overtake),
            (4, self.kill),
            (6, self.doom),
            (3, self.freeze),
            (12, self.strike),
            (3, self.hand_off),
            (3, self.reset),
            (4, self.lose_records),
            (1, self.retain),
            (5, self.retry),
            (2, self.delete),
        ]

    async def run(self) -> None:
        world = self.world
        deaths.forget()
        for gateway_id in GATEWAYS:
            world.appear(gateway_id)
        world.publish()
        if self.random.random() < 0.5:
            world.start(list(world.refs))
        else:
            for ref in world.refs:
                world.start([ref])
        for _ in range(self.random.randint(2, 5)):
            self.come()
        await asyncio.sleep(1.0)
        weights = [weight for weight, _ in self.actions]
        for _ in range(STEPS):
            [(_, action)] = self.random.choices(self.actions, weights)
            action()
            await asyncio.sleep(self.random.choice(PAUSES_S))
            self.watch()
        await self.calm_down()

    def watch(self) -> None:
        """Where a lane has ended, another one is started, as Spark does; and for what one could not
        claim, as the coordinator sees to."""
        world = self.world
        for ref, run in list(world.owner.items()):
            if ref in run.unclaimed and not run.killed and not run.life.done():
                run.unclaimed.discard(ref)
                world.start([ref], higher="attempt")
        for run in list(dict.fromkeys(world.owner.values())):
            if run.life.done() and not run.killed:
                refs = [ref for ref, owner in world.owner.items() if owner is run]
                world.start(refs, higher="attempt")

    # --- what happens ----------------------------------------------------------------------------

    def ref(self) -> PartitionRef:
        return self.random.choice(self.world.refs)

    def for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        async def pass_over() -> None:
            begin()
            await asyncio.sleep(self.random.choice([0.3, 2.0, 8.0]))
            end()

        self.world.helper(pass_over())

    def later(self, what: Callable[[], None], *, within_s: float = 2.0) -> None:
        async def wait() -> None:
            await asyncio.sleep(self.random.choice([0.0, 0.1, within_s]))
            what()

        self.world.helper(wait())

    def append(self) -> None:
        self.world.append(self.ref(), self.random.randint(1, 6))

    def come(self) -> None:
        if len(self.world.ledger.standing) < 8:
            self.world.subscribe(self.random.choice(sorted(self.world.gateways)))

    def somebody(self) -> str | None:
        names = sorted(self.world.ledger.standing)
        return self.random.choice(names) if names else None

    def go(self) -> None:
        if name := self.somebody():
            self.world.tag_unsettled("left")
            self.world.leave(name)
            self.later(lambda: self.world.forget(name))

    def move(self) -> None:
        if name := self.somebody():
            self.world.tag_unsettled("moved")
            one = self.world.leave(name)
            to = self.random.choice(sorted(self.world.gateways))
            self.world.subscribe(to, name=name, like=one.kind or "")

    def come_back(self) -> None:
        """The same subscriber under another id."""
        if name := self.somebody():
            self.world.tag_unsettled("another id")
            one = self.world.leave(name)
            self.later(lambda: self.world.forget(name))
            self.world.subscribe(
                self.random.choice(sorted(self.world.gateways)), like=one.kind or ""
            )

    def upset_gateway(self) -> None:
        gateway = self.world.gateways[self.random.choice(sorted(self.world.gateways))]
        mood = self.random.choice(MOODS)

        def begin() -> None:
            gateway.mood = mood

        def end() -> None:
            gateway.mood = "well"

        self.for_a_while(begin, end)

    def outage(self) -> None:
        """One gateway is dead for long, while much comes."""
        gateway = self.world.gateways[self.random.choice(sorted(self.world.gateways))]

        async def last() -> None:
            gateway.mood = self.random.choice(["away", "hanging"])
            for _ in range(self.random.randint(10, 40)):
                self.world.append(self.ref(), self.random.randint(1, 3))
                await asyncio.sleep(self.random.choice([0.0, 0.05, 0.5]))
            gateway.mood = "well"

        self.world.helper(last())

    def vanish(self) -> None:
        if len(self.world.gateways) > 1:
            self.world.vanish(self.random.choice(sorted(self.world.gateways)))

    def appear(self) -> None:
        for gateway_id in GATEWAYS:
            if gateway_id not in self.world.gateways:
                self.world.appear(gateway_id)
                self.world.publish()  # before it can register anything
                return

    def poison(self) -> None:
        """A gateway will refuse one of the next records."""
        gateway = self.world.gateways[self.random.choice(sorted(self.world.gateways))]
        ref = self.ref()
        seq = self.world.head(ref) + self.random.randint(1, 3)
        gateway.poison[ref.partition, seq] = self.random.choice(["event", "batch"])

    def mend(self) -> None:
        """Whatever was to blame for what is refused is no longer there."""
        for gateway in self.world.gateways.values():
            gateway.poison.clear()

    def stop_reading(self) -> None:
        if name := self.somebody():
            at = self.world.ledger.standing[name].subscription.gateway_id
            readers = self.world.gateways[at].slow_readers
            self.for_a_while(lambda: readers.add(name), lambda: readers.discard(name))

    def upset_letters(self) -> None:
        self.upset(self.world.letters_moody, "letters fail")

    def upset_checkpoints(self) -> None:
        self.upset(self.world.checkpoints_moody, "checkpoints fail")

    def upset(self, store: Moody, tag: str) -> None:
        self.world.tag_unsettled(tag)
        mood = self.random.choice(STORE_MOODS)

        def begin() -> None:
            store.mood = mood

        def end() -> None:
            store.mood = "well"

        self.for_a_while(begin, end)

    # --- lanes -----------------------------------------------------------------------------------

    def refs_of(self, run: Run) -> list[PartitionRef]:
        return [ref for ref, owner in self.world.owner.items() if owner is run]

    def overtake(self) -> None:
        """A successor starts while the former one goes on."""
        refs = self.refs_of(self.world.owner[self.ref()])
        if self.random.random() < 0.3:
            refs = refs[:1]
        self.world.tag_unsettled("overtaken", *refs)
        self.world.start(refs, higher=self.random.choice(["window", "attempt", "epoch"]))

    def kill(self) -> None:
        self.end(self.world.owner[self.ref()])

    def doom(self) -> None:
        """A lane dies soon, between two of its steps, whatever they are."""
        run = self.world.owner[self.ref()]
        run.link.dies = lambda: self.end(run)
        run.link.steps_left = self.random.randint(1, 60)

    def end(self, run: Run) -> None:
        if run.killed:
            return
        self.world.tag_unsettled("killed", *self.refs_of(run))
        self.world.kill(run)

        def replace() -> None:
            if refs := self.refs_of(run):
                self.world.start(refs, higher=self.random.choice(["attempt", "epoch"]))

        self.later(replace)

    def freeze(self) -> None:
        run = self.world.owner[self.ref()]
        if run.killed or not run.link.thawed.is_set():
            return
        self.world.tag_unsettled("frozen", *self.refs_of(run))
        self.for_a_while(lambda: self.world.freeze(run), lambda: self.world.thaw(run))
        if self.random.random() < 0.7:
            self.later(self.overtake)

    def strike(self) -> None:
        """A lane ends in the middle of a burst, while a gateway is in trouble."""
        ref = self.ref()
        gateway = self.world.gateways[self.random.choice(sorted(self.world.gateways))]
        gateway.mood = self.random.choice(MOODS)
        if self.random.random() < 0.4:
            self.world.letters_moody.mood = self.random.choice(STORE_MOODS)
        if self.random.random() < 0.3:
            self.poison()

        async def burst() -> None:
            for _ in range(self.random.randint(1, 5)):
                self.world.append(ref, self.random.randint(1, 6))
                await asyncio.sleep(self.random.choice([0.0, 0.005, 0.05, 0.3]))
            if self.random.random() < 0.5:
                gateway.mood = "well"
                await asyncio.sleep(self.random.choice([0.0, 0.03, 0.2]))
            self.random.choice([self.kill, self.overtake, self.freeze, self.reset, self.hand_off])()
            await asyncio.sleep(self.random.choice([0.0, 0.5, 3.0]))
            gateway.mood = self.world.letters_moody.mood = "well"

        self.world.helper(burst())

    def hand_off(self) -> None:
        ref = self.ref()
        run = self.world.owner[ref]
        if run.killed or run.session is None:
            return
        self.world.tag_unsettled("handed off", ref)
        epoch = run.fences[ref].epoch
        run.session.push(
            from_coordinator.LetGo((Owner(ref, f"router-{epoch}", epoch),), settle=True)
        )

        async def take_over() -> None:
            for _ in range(100):
                if ref in run.released or run.life.done():
                    break
                await asyncio.sleep(0.1)
            if self.world.owner[ref] is run:
                self.world.start([ref], higher="epoch")

        self.world.helper(take_over())

    def reset(self) -> None:
        """An operator wants a partition read from elsewhere: under a new epoch, by a new lane."""
        world, ref = self.world, self.ref()
        former = world.owner[ref]
        position, head = world.checkpoints.position(ref), world.head(ref)
        top = world.fence[ref]
        world.fence[ref] = Fence(top.epoch + 1, 0, 0)
        if self.random.random() < 0.7:
            settled, resync = self.random.randint(0, position), False
        else:
            settled, resync = self.random.randint(position, head), True
        world.ledger.tag("reset", *((ref.partition, seq) for seq in range(settled + 1, head + 1)))
        world.checkpoints.put(ref, world.fence[ref], settled, resync=resync)
        if former.session is not None and self.random.random() < 0.5:
            owner = Owner(ref, f"router-{top.epoch}", former.fences[ref].epoch)
            former.session.push(from_coordinator.LetGo((owner,), settle=False))
        world.start([ref])

    def lose_records(self) -> None:
        ref = self.ref()
        head = self.world.head(ref)
        last = self.random.randint(max(0, head - 4), head)
        lost = range(max(1, last - 2), last + 1)
        self.world.log.lose(ref, lost)
        self.world.ledger.tag("lost", *((ref.partition, seq) for seq in lost))

    def retain(self) -> None:
        """Retention takes the oldest records, whether they were delivered or not."""
        ref = self.ref()
        first = self.random.randint(1, self.world.head(ref) + 1)
        self.world.log.keep_from(ref, first)
        self.world.ledger.tag("retention", *((ref.partition, seq) for seq in range(1, first)))

    # --- operators -------------------------------------------------------------------------------

    def some_dead(self, limit: int) -> list[Letter]:
        dead = self.world.letters.dead()
        return self.random.sample(dead, min(limit, len(dead)))

    def retry(self) -> None:
        for letter in self.some_dead(3):
            self.world.letters.want_again(letter)
        if self.random.random() < 0.7:
            self.world.push(from_coordinator.LettersRevived())

    def delete(self) -> None:
        for letter in self.some_dead(1):
            self.world.letters.drop(letter)

    # --- the end ---------------------------------------------------------------------------------

    async def calm_down(self) -> None:
        """No more faults: everything must come to rest, within a bounded time."""
        world = self.world
        for run in world.runs:
            run.link.steps_left = -1
        while any(not helper.done() for helper in world.changing):
            await asyncio.sleep(0.5)
            self.watch()
        for gateway_id in GATEWAYS:
            if gateway_id not in world.gateways:
                world.appear(gateway_id)
        world.publish()
        for ref in world.refs:
            world.append(ref, 2)
        await asyncio.sleep(QUIET_S / 2)
        if not world.keeps_dead:
            for gateway in world.gateways.values():
                gateway.poison.clear()
        self.watch()
        await asyncio.sleep(QUIET_S)
        self.judge()

    def judge(self) -> None:
        world = self.world
        found = world.ledger.violations
        letters, dead = world.letters.all(), world.letters.dead()
        for ref in world.refs:
            if missing := world.ledger.unaccounted(dead, ref.partition, world.head(ref)):
                found.append(f"neither delivered, nor dead, nor told: {missing[:5]}")
            if world.checkpoints.position(ref) != world.head(ref):
                found.append(f"{ref} stays at {world.checkpoints.position(ref)}")
            if world.owner[ref].life.done():
                found.append(f"the lane of {ref} has ended")
        if stuck := [one for one in letters if one.state == "parked"]:
            found.append(f"letters stay parked: {stuck[:3]}")
        if held := [name for name, one in world.ledger.standing.items() if one.held]:
            found.append(f"nobody told {held} that they are subscribed")
        if dead and not world.keeps_dead:
            found.append(f"there are dead letters: {dead[:3]}")
        for run in world.runs:
            if run.life.done() and not run.life.cancelled():
                error = run.life.exception()
                if error is not None and not isinstance(error, StorageFailed):
                    found.append(f"a lane died of {error!r}")
        found += deaths.reasons()
