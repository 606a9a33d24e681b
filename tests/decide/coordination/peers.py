"""Everybody the coordinator talks to, as plain values that do what the real ones do.

A peer hears one message at a time and answers at once, unless it was made `late` (it applies what
it hears when told to) or `frozen` (it holds its stream and says nothing). Naive on purpose: what a
peer believes is kept here and nowhere else, so that it can be compared with what the coordinator
believes about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headgate.model.connector import Connector, ConnectorReport
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayReport,
    LaneReport,
    PartitionReport,
    RouterReport,
)
from headgate.model.control.to_coordinator import Hello, SessionRole, ToCoordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner, Topology


@dataclass(kw_only=True)
class Peer:
    """`session` is None while there is no stream; `alive` ends with the process."""

    node_id: str
    incarnation: str = "1"
    session: int | None = None
    alive: bool = True
    late: bool = False
    frozen: bool = False
    refused: str = ""
    resumed: bool = False
    """What the last welcome said."""
    topology: Topology = field(default_factory=lambda: Topology(0))
    pushes: int = 0
    waiting: list[FromCoordinator] = field(default_factory=list)
    say: Callable[[ToCoordinator], None] = field(default=lambda _: None, repr=False)

    role: SessionRole = field(init=False)

    def hello(self) -> Hello:
        return Hello(
            role=self.role,
            node_id=self.node_id,
            incarnation=self.incarnation,
            generation=self.topology.generation,
            owns=self.owned(),
            url=f"http://{self.node_id}",
        )

    def owned(self) -> tuple[Owner, ...]:
        return ()

    def hear(self, message: FromCoordinator) -> None:
        if self.frozen or self.waiting or (self.late and self.puts_off(message)):
            self.waiting.append(message)
        else:
            self.act(message)

    def puts_off(self, message: FromCoordinator) -> bool:
        """What it is late with; whatever comes after that waits behind it."""
        return isinstance(message, from_coordinator.PushTopology)

    def check_in(self) -> None:
        if not self.frozen:
            self.say(to_coordinator.CheckIn())

    def catch_up(self) -> None:
        """Act on everything that was put off, in its order."""
        while self.waiting:
            self.act(self.waiting[0])
            del self.waiting[:1]

    def act(self, message: FromCoordinator) -> None:
        match message:
            case from_coordinator.Welcome(resumed=resumed, learning=learning):
                self.resumed = resumed
                if learning and self.role not in ("client", "lane"):
                    self.say(to_coordinator.Recall(self.topology))
            case from_coordinator.PushTopology(topology):
                self.pushes += 1
                if topology.generation >= self.topology.generation:
                    self.topology = topology
                    self.apply(topology)
                    self.say(self.acknowledgement())
            case from_coordinator.Refused(reason):
                self.refused, self.session = reason, None
            case _:
                pass

    def apply(self, topology: Topology) -> None: ...

    def acknowledgement(self) -> to_coordinator.AckTopology:
        return to_coordinator.AckTopology(self.topology.generation)


@dataclass
class Taken:
    """What the stores of the log know of a connector: the highest epoch they have met, of which
    process, and of which beginning something is stored. `told` are all processes that were ever
    told to read it, with the epochs."""

    epoch: int = 0
    process: str = ""
    beginning: int = 0
    told: set[tuple[int, str]] = field(default_factory=set)


@dataclass(kw_only=True)
class Ingest(Peer):
    """Opens what it is given in `store`, which remembers the highest epoch of every partition, and
    drops its `records` under that of a deletion. Reads the connectors that it is given, and fences
    whoever read them before in `taken`."""

    store: dict[PartitionRef, int]
    taken: dict[str, Taken] = field(default_factory=dict)
    reads: dict[str, Owner] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    """The change that it has stopped at, by connector."""
    records: Counter[PartitionRef] = field(default_factory=Counter)
    opened: dict[PartitionRef, Owner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.role = "ingest"

    def owned(self) -> tuple[Owner, ...]:
        return tuple(self.opened[ref] for ref in sorted(self.opened))

    def apply(self, topology: Topology) -> None:
        mine = {owner.ref: owner for owner in topology.logs if owner.node_id == self.node_id}
        self.opened = {ref: owner for ref, owner in self.opened.items() if ref in mine}
        for ref, owner in mine.items():
            if self.may_have(owner):
                self.opened[ref] = owner
            else:
                self.opened.pop(ref, None)
        for nobodys in topology.emptied:
            if self.may_have(nobodys):
                self.records.pop(nobodys.ref, None)
        intakes = [owner for owner in topology.intakes if owner.node_id == self.node_id]
        self.reads = {owner.ref.topic: owner for owner in intakes if self.may_read(owner)}

    def hello(self) -> Hello:
        read = tuple(self.reads[name] for name in sorted(self.reads))
        return msgspec.structs.replace(super().hello(), intakes=read)

    def may_read(self, owner: Owner) -> bool:
        taken = self.taken.setdefault(owner.ref.topic, Taken())
        process = f"{self.node_id} {self.incarnation}"
        taken.told.add((owner.epoch, process))
        if (taken.epoch, taken.process) == (owner.epoch, process):
            return True
        if taken.epoch >= owner.epoch:
            self.say(to_coordinator.ConnectorTooLow(owner.ref.topic, taken.epoch, owner.epoch))
            return False
        taken.epoch, taken.process = owner.epoch, process
        return True

    def connector(self, name: str) -> Connector | None:
        return next((one for one in self.topology.connectors if one.name == name), None)

    def store_changes(self) -> None:
        """Some of everything that it reads, also while it is frozen or cut off; where it is fenced
        that does nothing."""
        for name, owner in self.reads.items():
            connector, taken = self.connector(name), self.taken[name]
            if connector is not None and owner.epoch == taken.epoch and not connector.paused:
                taken.beginning = connector.beginning

    def check_in(self) -> None:
        super().check_in()
        reports = tuple(self.report(name) for name in sorted(self.reads))
        if reports and not self.frozen:
            self.say(ConnectorReports(reports))

    def report(self, name: str) -> ConnectorReport:
        connector, taken, owner = self.connector(name), self.taken[name], self.reads[name]
        at = self.stopped.get(name, "")
        assert connector is not None, f"{name} is read, and isn't there"
        return ConnectorReport(
            name=name,
            epoch=owner.epoch,
            state="stopped" if at and at != connector.skip else "running",
            begun=taken.beginning == connector.beginning,
            stopped_at=at,
            stopped_what=f"change {at}" if at else "",
        )

    def may_have(self, owner: Owner) -> bool:
        if owner.epoch < self.store.get(owner.ref, 0):
            self.say(to_coordinator.EpochTooLow(owner.ref, self.store[owner.ref]))
            return False
        self.store[owner.ref] = owner.epoch
        return True

    def append(self) -> None:
        """A record to all that it has open, also while it is frozen or cut off."""
        self.records.update(r for r, owner in self.opened.items() if self.store[r] == owner.epoch)


@dataclass(kw_only=True)
class Gateway(Peer):
    fences: dict[PartitionRef, int] = field(default_factory=dict)
    subscriptions: dict[str, int] = field(default_factory=dict)
    """The revision at which each is registered; 0 while that isn't known."""
    ttl_ms: dict[str, int] = field(default_factory=dict)
    """Of those that have a time-to-live."""
    renews: bool = True
    floor: int = 0

    def __post_init__(self) -> None:
        self.role = "gateway"

    def act(self, message: FromCoordinator) -> None:
        super().act(message)
        match message:
            case from_coordinator.Welcome():
                self.floor = 0
                for name in self.subscriptions:
                    self.subscribe(name)
                self.say(to_coordinator.RegistrationComplete())
            case from_coordinator.AdoptionFloor(revision):
                self.floor = revision
            case from_coordinator.Registered(_, revision):
                self.subscriptions.update(
                    {n: revision for n, r in self.subscriptions.items() if not r}
                )
            case _:
                pass

    def check_in(self) -> None:
        if self.renews and not self.frozen:
            self.say(GatewayReport(len(self.subscriptions), 0, 0))
        else:
            super().check_in()

    def subscribe(self, name: str) -> None:
        self.subscriptions[name] = 0
        ttl_ms = self.ttl_ms.get(name, 0)
        subscription = Subscription(name, self.node_id, "flights", ttl_ms=ttl_ms)
        self.say(to_coordinator.Register(1, (subscription,)))

    def has_subscribed(self, name: str) -> bool:
        return 0 < self.subscriptions[name] <= self.floor

    def apply(self, topology: Topology) -> None:
        if "flights" in topology.deleted:
            self.subscriptions.clear()
        for owner in topology.sources:
            self.fences[owner.ref] = max(owner.epoch, self.fences.get(owner.ref, 0))


@dataclass(kw_only=True)
class Router(Peer):
    assignment: from_coordinator.Assign = field(
        default_factory=lambda: from_coordinator.Assign(0, ())
    )
    window: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        self.role = "router"

    def hello(self) -> Hello:
        hello = super().hello()
        return msgspec.structs.replace(hello, assignment=self.assignment.number, weight=self.weight)

    def owned(self) -> tuple[Owner, ...]:
        return self.assignment.sources

    def act(self, message: FromCoordinator) -> None:
        super().act(message)
        match message:
            case from_coordinator.Welcome():
                self.say(RouterReport("ready", self.window, 0.0))
            case from_coordinator.Assign():
                self.assignment = message
            case _:
                pass


@dataclass(kw_only=True)
class Client(Peer):
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.role = "client"

    def acknowledgement(self) -> to_coordinator.AckTopology:
        return to_coordinator.AckTopology(self.topology.generation, self.topics)


@dataclass(kw_only=True)
class Lane(Peer):
    """Once it has the subscriptions it claims what is `planned`, unless it `hesitates`, and reads
    what it `holds` since; `asked` is what it shall hand over."""

    window: int
    attempt: int
    assignment: int
    planned: tuple[Owner, ...]
    claims: Callable[[Fence, Owner], bool | None]
    """Whether the store of positions lets it have one; None while that is away."""
    hesitates: bool = False
    claimed: bool = False
    said_goodbye: bool = False
    unproved: bool = False
    """It has yet to ask the store of positions again."""
    holds: dict[PartitionRef, Owner] = field(default_factory=dict)
    asked: dict[PartitionRef, Owner] = field(default_factory=dict)
    dropped: set[PartitionRef] = field(default_factory=set)
    handed_off: list[Owner] = field(default_factory=list)
    revision: int = 0
    subscriptions: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    """What came of a snapshot so far."""
    told_to_end: bool = False

    def __post_init__(self) -> None:
        self.role = "lane"

    def fence(self, owner: Owner) -> Fence:
        return Fence(owner.epoch, self.window, self.attempt)

    @property
    def reads(self) -> bool:
        return self.alive and self.claimed

    def hello(self) -> Hello:
        return Hello(
            role="lane",
            node_id=self.node_id,
            incarnation=self.incarnation,
            window=self.window,
            attempt=self.attempt,
            assignment=self.assignment,
            owns=self.owned(),
            wants=() if self.claimed else self.planned,
            generation=self.topology.generation,
            revision=self.revision,
        )

    def owned(self) -> tuple[Owner, ...]:
        return tuple(self.holds[ref] for ref in sorted(self.holds))

    def puts_off(self, message: FromCoordinator) -> bool:
        is_news = isinstance(
            message, from_coordinator.SubscriptionSnapshot | from_coordinator.SubscriptionChanges
        )
        return is_news and self.reads and not self.parts

    def act(self, message: FromCoordinator) -> None:
        match message:
            case from_coordinator.Welcome():
                self.parts = set()
                self.prove()
                if self.handed_off:
                    self.say(to_coordinator.Released(tuple(self.handed_off)))
            case from_coordinator.PushTopology(topology):
                self.pushes += 1
                if topology.generation > self.topology.generation:
                    self.topology = topology
            case from_coordinator.SubscriptionSnapshot(revision, subscriptions, more):
                self.parts |= {subscription.id for subscription in subscriptions}
                if not more:
                    if revision > self.revision:
                        self._adopt(revision, self.parts)
                    self.parts = set()
                    self.say(to_coordinator.AckSubscriptions(self.revision))
                    self.claim()
            case from_coordinator.Prove(asked_ms):
                self.prove(asked_ms)
            case from_coordinator.SubscriptionChanges(revision, upserts, removals):
                if revision > self.revision:
                    kept = self.subscriptions - set(removals)
                    self._adopt(revision, kept | {subscription.id for subscription in upserts})
                self.say(to_coordinator.AckSubscriptions(self.revision))
            case from_coordinator.EndWindow():
                self.told_to_end = True
            case from_coordinator.LetGo(owners, settle):
                self._asked([o for o in owners if self.holds.get(o.ref) == o], settle=settle)
            case from_coordinator.Refused(reason):
                self.refused = reason
                self.holds.clear()
                self.end()
            case _:
                pass

    def _adopt(self, revision: int, subscriptions: set[str]) -> None:
        self.revision, self.subscriptions = revision, subscriptions

    def claim(self, *, unheard: bool = False) -> None:
        """Take what is left of the plan, if it is time; a lane that gets nothing ends."""
        if self.claimed or self.hesitates or not self.revision or not self.alive:
            return
        if self.session is None and not unheard:
            return  # others may have subscribed since
        self.claimed = True
        self.holds = {o.ref: o for o in self.planned if self.claims(self.fence(o), o)}
        self.say(to_coordinator.Claimed(self.owned()))
        if not self.holds:
            self.end()

    def prove(self, asked_ms: int = 0) -> None:
        """Claim what it reads once more, and say what of it is still its own."""
        if not self.claimed or not self.alive:
            return
        answers = {ref: self.claims(self.fence(o), o) for ref, o in self.holds.items()}
        self.unproved = None in answers.values()
        if self.unproved:
            return
        for ref, is_ours in answers.items():
            if not is_ours:
                self.drop(ref)
        if self.alive:
            self.say(to_coordinator.Claimed(self.owned(), asked_ms))

    def check_in(self) -> None:
        if not self.frozen:
            reports = tuple(PartitionReport(ref, 0, 0, 0) for ref in sorted(self.holds))
            self.say(
                LaneReport(partitions=reports, read=0, matched=0, delivered=0, filter_errors=0)
            )

    def _asked(self, owners: list[Owner], *, settle: bool) -> None:
        for owner in owners:
            if settle:
                self.asked[owner.ref] = owner
            else:
                self.drop(owner.ref)
                self.dropped.add(owner.ref)

    def drop(self, ref: PartitionRef) -> None:
        self.holds.pop(ref, None)
        self.asked.pop(ref, None)
        if not self.holds:
            self.end()

    def let_go(self) -> None:
        """Hand over what it was asked for, and end when nothing is left."""
        gone = [self.asked[ref] for ref in sorted(self.asked)]
        if not gone or not self.alive:
            return
        self.handed_off += gone
        for owner in gone:
            del self.holds[owner.ref]
        self.asked.clear()
        self.say(to_coordinator.Released(tuple(gone)))
        if not self.holds:
            self.end()

    def end(self) -> None:
        if self.alive:
            self.alive = False
            self.said_goodbye = self.session is not None
            self.say(to_coordinator.Goodbye())
