"""A subscriber's conversation with its gateways: several subscriptions over one connection.

Invariants: per subscription and partition, items are handed out in order, none twice, and none left
out without a Resync in its place. A new connection is asked for what comes after all that has
arrived, so what waits here is neither lost nor repeated; with manual acknowledgements, for what
comes after the last acknowledged one, and what waited is dropped. A redelivery is no position:
nobody sends it twice, so it waits here through everything.

An error about one of several subscriptions is raised once: the others go on, and that one is asked
for again with every new connection.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate import errors
from headgate.decide.conversation.common import MAY_PASS, Acks, Conversation, Phase
from headgate.decide.conversation.effects import Effects, Redirected, Send
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.subscription import Subscription
from headgate.decide.following.arrived import Arrived
from headgate.model.client_messages import (
    Event,
    Failure,
    Item,
    Left,
    Redirect,
    Resync,
    Subscribed,
    ToSubscriber,
    is_redelivery,
    names_of,
    seq_of,
)
from headgate.model.refusals import rebuild

ACK_EVERY = 256
"""Items after which the gateway is told how far we are, even if more wait."""
MOST_EARLY = 10_000
"""Messages that may come while one subscription of a connection hasn't begun: until then the socket
has to be read, however many wait for the user."""
MOST_EARLY_BYTES = 256 * 1024 * 1024
"""Of their documents, but for a single one."""


Waiting = tuple[Item, int, list[Subscription]]
"""An item, where it stands, and the subscriptions that it stands there for: none, where it is a
redelivery. A tuple, because there is one for each item that comes."""


class Following(Conversation[ToSubscriber, Waiting]):
    """`beyond_end_s` is how long a log that has lost what came from it may take to be moved on."""

    def __init__(self, acks: Acks, patience: Patience, *, beyond_end_s: float) -> None:
        super().__init__(acks, patience)
        self.subscriptions: dict[str, Subscription] = {}
        self.beyond_since_s: float | None = None
        self._beyond_end_s = beyond_end_s
        self._awaited: set[str] = set()
        self._waited = 0
        """How many waited for the user when it was last live."""
        self._waited_bytes = 0
        self._unsaid = 0

    def add(self, subscription: Subscription) -> None:
        if self.phase is not Phase.NEW:
            raise errors.InvalidRequest("add subscriptions before entering the subscriber")
        if subscription.id in self.subscriptions:
            raise errors.InvalidRequest(f"there is a subscription {subscription.id} already")
        self.subscriptions[subscription.id] = subscription

    def check(self) -> None:
        if not self.subscriptions:
            raise errors.InvalidRequest("name a topic to follow: Subscriber(url, topic)")

    # --- what comes ------------------------------------------------------------------------------

    def arrived(self, item: Item) -> bool:
        """Take the item for those subscriptions that don't have it yet."""
        if self.phase is not Phase.LIVE and self.phase is not Phase.OPENING:
            return True
        names: tuple[str, ...]
        if isinstance(item, Resync):
            names, seq = (item.subscription,), item.from_seq - 1
        elif item.redelivery:
            return self._arrived_again(item)
        else:
            names, seq = item.subscriptions, item.seq
        wanted_by = []
        for name in names:
            subscription = self.subscriptions.get(name)
            if subscription is not None and subscription.arrive(item.partition, seq):
                wanted_by.append(subscription)
        if wanted_by:
            self.waiting.append((_for(item, wanted_by), seq, wanted_by))
        return self._has_room

    def _arrived_again(self, item: Event | Left) -> bool:
        wanted_by = [
            self.subscriptions[name] for name in item.subscriptions if name in self.subscriptions
        ]
        if wanted_by:
            self.waiting.append((_for(item, wanted_by), item.seq, []))
        return self._has_room

    @property
    def _early(self) -> int:
        """How many wait that came before all subscriptions had begun, over however many
        connections."""
        return len(self.waiting) - self._waited

    @property
    def _has_room(self) -> bool:
        """For what comes next."""
        if self.phase is Phase.LIVE or self._early <= 1:
            return True
        early_bytes = self.waiting.size_bytes - self._waited_bytes
        return self._early <= MOST_EARLY and early_bytes <= MOST_EARLY_BYTES

    def unexpected(self, now_s: float) -> Effects:
        return self._try_again(
            errors.Overloaded(
                f"{self._early} events came before all subscriptions had begun; give them "
                "connections of their own"
            ),
            now_s,
        )

    def heard(self, message: ToSubscriber, now_s: float) -> Effects:
        if self.phase is Phase.OPENING:
            match message:
                case Subscribed():
                    self._subscribed(message)
                case Redirect():
                    self.phase = Phase.CONNECTING
                    return (Redirected(message.url, message.gateway),)
                case Failure():
                    return self._refused(message, now_s)
        elif self.phase is Phase.LIVE and isinstance(message, Failure):
            return self._failed(message, now_s)
        return ()

    def _subscribed(self, answer: Subscribed) -> None:
        if answer.subscription in self._awaited:
            self.subscriptions[answer.subscription].begin(answer)
            self._answered(answer.subscription)

    def _answered(self, name: str) -> None:
        self._awaited.discard(name)
        if not self._awaited:
            self.beyond_since_s = None
            self._begun()

    def _refused(self, answer: Failure, now_s: float) -> Effects:
        """A subscription wasn't begun. A log that ends before what came from it has lost its
        history: its owner moves it on behind that, which is worth waiting for."""
        error = rebuild(answer.error)
        asked = self.subscriptions.get(answer.subscription or "")
        if asked is None or isinstance(error, MAY_PASS):
            return self._try_again(error, now_s)
        if asked.subscribed is not None and "head" in error.details:
            since_s = now_s if self.beyond_since_s is None else self.beyond_since_s
            self.beyond_since_s = since_s
            if now_s - since_s <= self._beyond_end_s:
                return self._try_again(errors.NotNow(error.message, **error.details), now_s)
        if asked.is_refused and self._others_live(asked):
            self._answered(asked.id)
            return ()
        asked.is_refused = True
        return self._fail(error)

    def _failed(self, message: Failure, now_s: float) -> Effects:
        error = rebuild(message.error)
        about = self.subscriptions.get(message.subscription or "")
        if isinstance(error, MAY_PASS):
            return self._try_again(error, now_s)
        if about is None:
            return self._fail(error)
        about.is_refused = True
        if not self._others_live(about):
            return self._fail(error)
        self.waiting.append(error)
        return ()

    def _others_live(self, one: Subscription) -> bool:
        return any(
            not other.is_refused for other in self.subscriptions.values() if other is not one
        )

    # --- acknowledging ---------------------------------------------------------------------------

    def ack(self, item: Item) -> Effects:
        """`item` and everything before it, of its partition and subscriptions, is processed.

        Raises InvalidRequest, and takes none of it, for what was never handed out.
        """
        if is_redelivery(item):
            return ()
        seq = seq_of(item)
        found = [self.subscriptions.get(name) for name in names_of(item)]
        concerned = [one for one in found if one is not None]
        for subscription in concerned:
            subscription.check_handed_out(item.partition, seq)
        return self._done_with((item, seq, concerned))

    def _done_with(self, entry: Waiting, now_s: float = 0.0) -> Effects:
        item, seq, subscriptions = entry
        for subscription in subscriptions:
            subscription.acknowledge(item.partition, seq)
        self._unsaid += 1
        if self._unsaid >= ACK_EVERY or not self.waiting:
            return self._say_acks()
        return ()

    def _say_acks(self, now_s: float = 0.0) -> Effects:
        if self.phase is not Phase.LIVE:
            return ()
        self._unsaid = 0
        said = (one.acknowledgement() for one in self.subscriptions.values())
        return tuple(Send(message) for message in said if message is not None)

    # --- for every conversation ------------------------------------------------------------------

    def goes_on(self) -> str:
        return "; ".join(one.goes_on() for one in self.subscriptions.values())

    def _requests(self) -> Iterable[bytes]:
        self._awaited = set(self.subscriptions)
        self._unsaid = 0
        return [one.request() for one in self.subscriptions.values()]

    def _farewell(self) -> Effects:
        return self._say_acks()

    def _disconnected(self) -> None:
        if self._acks == "manual":
            self.waiting = Arrived(one for one in self.waiting if not _comes_again(one))
            self._in_hand.clear()
            for subscription in self.subscriptions.values():
                subscription.disconnected()
        if self.phase is Phase.LIVE:
            self._waited, self._waited_bytes = len(self.waiting), self.waiting.size_bytes

    def _unseen(self, entry: Waiting) -> None:
        item, seq, subscriptions = entry
        after_seq = item.after_seq if isinstance(item, Resync) else seq - 1
        for subscription in subscriptions:
            subscription.take_back(item.partition, after_seq)

    def _hand_out(self, entry: Waiting) -> Item | None:
        item, seq, subscriptions = entry
        if not subscriptions:
            return item
        partition = item.partition
        if self._acks == "manual":
            # What came again may have been acknowledged since.
            subscriptions = [one for one in subscriptions if one.wants(partition, seq)]
            if not subscriptions:
                return None
            item = _for(item, subscriptions)
        for subscription in subscriptions:
            subscription.hand_out(partition, seq)
        return item


def _for(item: Item, wanted_by: list[Subscription]) -> Item:
    """`item` for those alone."""
    if isinstance(item, Resync) or len(wanted_by) == len(item.subscriptions):
        return item
    return msgspec.structs.replace(item, subscriptions=tuple(one.id for one in wanted_by))


def _comes_again(waiting: Waiting | errors.HeadgateError) -> bool:
    return isinstance(waiting, tuple) and bool(waiting[2])
