"""A consumer's conversation with its gateways: joining its group, its targets, leaving.

Invariants: only what belongs to a target that is owned, under its epoch, is handed out; a target
that is asked for back is released once nothing of it is in the user's hands, under whatever epoch
it came, and nothing of it is handed out meanwhile. Nothing is said to a gateway before it has
answered the join, but that it isn't wanted any more. What a lost connection brought and the user
hasn't taken is forgotten: the consumer that owns its target by then gets it again.

While a target is asked for back and something of it is in the user's hands, the gateway hears again
and again that more time is needed. An item that isn't in the user's hands, because it is wanted
later or stands behind such a one, doesn't keep a target; but it isn't processed, and no position
passes it.

With `max_deliveries` the gateway hears of every failure. What failed so often waits here, and holds
its key, until the gateway says that it is a dead letter; then it counts as processed. It hears,
too, which of the items that it counts as in hand the user doesn't have: so it knows when another
item can be alone in the user's hands.

An acknowledgement of what is owned no more is no mistake and says nothing. One that comes after its
connection was lost is remembered: when the same item comes again, it counts as processed, unless
another consumer may have had its target meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headgate import errors
from headgate.decide.conversation.common import Acks, Conversation, Phase
from headgate.decide.conversation.effects import Effect, Effects, Remind, Send
from headgate.decide.conversation.handed_out import Copy, Hands, Place
from headgate.decide.conversation.owned_target import Held, OwnedTarget
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.wanted_later import Again, Later, log_order, place_of
from headgate.model.client_messages import (
    Assigned,
    Ended,
    Failure,
    GivenUp,
    Item,
    Joined,
    Resync,
    Revoke,
    Revoked,
    ToConsumer,
    is_redelivery,
    seq_of,
)
from headgate.model.refusals import rebuild

ACK_EVERY = 32
ACK_EVERY_S = 0.05
"""Acknowledgements are said together: after so many, so long, or when nothing waits."""
LOST_HISTORY = "lost_history"
RESET = "reset"
MOST_DELIVERIES = 10_000
MOST_AT_WORK = 1_000
"""Items that a gateway is told of, as far as they fit into a message."""
MOST_HELD = 1_000
MOST_BYTES = 64 * 1024
"""Of a message to a gateway."""
RENEW_EVERY_S = 3.0
"""A gateway waits three times as long to hear that a consumer needs more time."""
AtWork = tuple[int, int, int, int]
"""Target, partition, seq and delivery."""
SOONEST_S = 0.001
"""A timer may fire a moment early; what it was for isn't due then, and is looked for again."""


class Membership(Conversation[ToConsumer, Item | Again]):
    """`request` is the join message."""

    _has_to_wait = True

    def __init__(
        self,
        acks: Acks,
        patience: Patience,
        request: Mapping[str, Any],
        *,
        max_deliveries: int = 0,
    ) -> None:
        super().__init__(acks, patience)
        self._max_deliveries = max_deliveries
        self.joined: Joined | None = None
        self._request = request
        self._shares: dict[int, OwnedTarget] = {}
        self._hands = Hands()
        self._later = Later()
        self._is_failing = False
        self._unsaid = 0
        self._said_s = 0.0
        self._is_said_soon = False
        """Whether a reminder says what is unsaid, at the latest."""

    @property
    def targets(self) -> frozenset[int]:
        return frozenset(self._shares)

    def check(self) -> None:
        if not self._request["topic"] or not self._request["group"]:
            raise errors.InvalidRequest("name a topic and a group: Consumer(topic=…, group=…)")
        if not 0 <= self._max_deliveries <= MOST_DELIVERIES:
            raise errors.InvalidRequest(
                f"max_deliveries is 1 to {MOST_DELIVERIES}, or 0 for any number"
            )

    # --- what comes ------------------------------------------------------------------------------

    def arrived(self, item: Item) -> bool:
        if self.phase is Phase.LIVE:
            self.waiting.append(item)
        return self.phase is not Phase.OPENING

    def unexpected(self, now_s: float) -> Effects:
        return self._fail(errors.InvalidRequest("the gateway doesn't speak to consumers"))

    def heard(self, message: ToConsumer, now_s: float) -> Effects:
        if self.phase is Phase.OPENING:
            match message:
                case Joined():
                    if self.joined is not None and self.joined.targets != message.targets:
                        self._hands = Hands()  # the group was made anew, and cuts the topic so
                    self.joined = message
                    self._begun()
                case Failure():
                    return self._try_again(rebuild(message.error), now_s)
                case _:
                    return self.unexpected(now_s)
        elif self.phase is Phase.CLOSING:
            if isinstance(message, Ended):
                self.phase = Phase.CLOSED
        elif self.phase is Phase.LIVE:
            return self._heard_live(message, now_s)
        return ()

    def _heard_live(self, message: ToConsumer, now_s: float) -> Effects:
        match message:
            case Assigned(target, epoch, positions):
                if (former := self._shares.get(target)) is not None:
                    self._gone(former)
                self._shares[target] = OwnedTarget(target, epoch, positions)
                self._hands.assigned(target, positions, epoch=epoch)
            case Revoke(target, epoch):
                # Asked for before it was ours: the user may work on what it had of it before.
                asked_for = self._shares.setdefault(target, OwnedTarget(target, epoch))
                if asked_for.epoch == epoch:
                    asked_for.leaving = True
                    return self._released_if_done(asked_for, now_s) or self.reminded(now_s)
            case Revoked(target, epoch):
                share = self._shares.get(target)
                if share is not None and share.epoch == epoch:
                    self._gone(self._shares.pop(target))
            case GivenUp():
                return self._given_up(message, now_s)
            case Failure():
                return self._failed(message, now_s)
            case Joined() | Ended():
                pass
        return ()

    def _given_up(self, message: GivenUp, now_s: float) -> Effects:
        share = self._shares.get(message.target)
        if share is None or share.epoch != message.epoch:
            return ()
        place = message.target, message.partition, message.seq, message.redelivery
        item = self._later.find(place)
        if item is None:
            return ()
        return self._acknowledge(item, now_s) + self._say_acks(now_s)

    def reminded(self, now_s: float) -> Effects:
        """Tells the gateway about each target that is asked for while the user works on something
        of it; says what is processed, though the next item takes long; and puts first what is
        wanted again by now."""
        if self.phase is not Phase.LIVE:
            return ()
        self._take_due(now_s)
        leaving = self._leaving()
        busy = [self._shares[target] for target in leaving if self._is_busy(self._shares[target])]
        said: list[Effect] = [_said(share, "renew") for share in busy]
        if self._unsaid and now_s - self._said_s >= ACK_EVERY_S:
            said += self._say_acks(now_s)
        self._is_said_soon = bool(self._unsaid)
        said += self._say_held()
        next_s = min(
            RENEW_EVERY_S if busy else math.inf,
            ACK_EVERY_S if self._unsaid else math.inf,
            self._later.next_s(but_of=leaving) - now_s,
        )
        return (*said, Remind(max(SOONEST_S, next_s))) if next_s < math.inf else tuple(said)

    def _take_due(self, now_s: float) -> None:
        """What is wanted again by now stands first, but of targets that are asked for."""
        if due := self._later.take_due(now_s, but_of=self._leaving()):
            self._stand_first(due)

    def _stand_first(self, again: list[Again]) -> None:
        """In the order of the log, also among those that stand there and nobody has taken yet."""
        waiting = self.waiting
        while waiting and isinstance(first := waiting[0], Again):
            again.append(first)
            waiting.popleft()
        again.sort(key=lambda one: log_order(one.item), reverse=True)
        waiting.extendleft(again)

    def _leaving(self) -> list[int]:
        return [share.target for share in self._shares.values() if share.leaving]

    def _is_busy(self, share: OwnedTarget) -> bool:
        """Whether the user works on something of it, though it may have come on a connection that
        was lost since; what is wanted later needs nobody here."""
        return self._hands.works_on(share.target)

    def _failed(self, failure: Failure, now_s: float) -> Effects:
        error = rebuild(failure.error)
        if failure.target is not None and isinstance(error, errors.Fenced):
            return ()  # it was ours when we spoke of it
        return self._try_again(error, now_s)

    # --- acknowledging ---------------------------------------------------------------------------

    def ack(self, item: Item, now_s: float) -> Effects:
        """`item` is processed; said at once. Raises InvalidRequest for what never was handed out
        under an epoch that is ours."""
        released = self._acknowledge(item, now_s)
        return released + self._say_acks(now_s)

    def nack(self, item: Item, delay_s: float, now_s: float) -> Effects:
        """The item comes again here after a while, before later ones of its key; to the next owner
        where its target goes before that. Nothing happens for an item that isn't in hand."""
        copy = _copy(item)
        self._forget_in_hand(copy)
        is_with_user = self._hands.give_back(copy)
        share = self._shares.get(item.target)
        if share is None:
            return ()
        if not is_with_user or share.epoch != item.epoch or not share.has_in_hand(item):
            return self._released_if_done(share, now_s)
        said = self._count_failure(copy, _deliveries(item))
        if isinstance(item, Resync):
            self._later.put(item, now_s + delay_s)
        elif said and item.deliveries >= self._max_deliveries:
            self._later.put(item, math.inf)
        else:
            again = msgspec.structs.replace(item, deliveries=item.deliveries + 1)
            self._later.put(again, now_s + delay_s)
        return said + (self._released_if_done(share, now_s) or self.reminded(now_s))

    def _put_back(self, entry: Item | Again, now_s: float) -> Effects:
        item = _item(entry)
        self._give_back(item)
        self._stand_first([Again(item)])
        share = self._shares.get(item.target)
        return () if share is None else self._released_if_done(share, now_s)

    def failing(self) -> Effects:
        """The user's program fails, and the conversation is about to be closed. If it works on one
        thing alone, that failed; of several, any may be the reason."""
        at_work = dict(self._hands.at_work)
        self._is_failing = len(at_work) > 1
        if len(at_work) != 1 or self.phase is not Phase.LIVE:
            return ()
        [(copy, deliveries)] = at_work.items()
        self._forget_in_hand(copy)
        self._hands.give_back(copy)
        target, *_, epoch = copy
        share = self._shares.get(target)
        if share is None or share.epoch != epoch:
            return ()
        return self._count_failure(copy, deliveries)

    def _forget_in_hand(self, copy: Copy) -> None:
        """A caller that took the item isn't done with it when it asks for the next one."""
        for entries in self._in_hand.values():
            entries[:] = [one for one in entries if _copy(_item(one)) != copy]

    def _give_back(self, item: Item) -> bool:
        """The user doesn't have it any more; whether they had."""
        return self._hands.give_back(_copy(item))

    def _count_failure(self, copy: Copy, deliveries: int) -> Effects:
        if not self._max_deliveries or not deliveries:
            return ()
        target, partition, seq, again, epoch = copy
        said = {
            "type": "nack",
            "target": target,
            "epoch": epoch,
            "partition": partition,
            "seq": seq,
            "deliveries": deliveries,
            **({"redelivery": True} if again else {}),
        }
        return (Send(msgspec.json.encode(said)),)

    def _done_with(self, entry: Item | Again, now_s: float) -> Effects:
        released = self._acknowledge(_item(entry), now_s)
        if self._unsaid >= ACK_EVERY or now_s - self._said_s >= ACK_EVERY_S:
            return released + self._say_acks(now_s)
        if self._is_said_soon or not self._unsaid:
            return released
        return released + self.reminded(now_s)

    def _acknowledge(self, item: Item, now_s: float) -> Effects:
        self._give_back(item)
        if self._later:
            self._later.drop(lambda one: place_of(one) == place_of(item))
            self._take_due(now_s)
        share = self._shares.get(item.target)
        if is_redelivery(item):
            self._acknowledge_again(item, share)
        else:
            self._acknowledge_place(item, share)
        return () if share is None else self._released_if_done(share, now_s)

    def _acknowledge_place(self, item: Item, share: OwnedTarget | None) -> None:
        partition, seq = item.partition, seq_of(item)
        if self._hands.is_lost(item.target, partition, epoch=item.epoch):
            return
        is_earlier = self._hands.acknowledge(_place(item))
        if share is None or (share.epoch != item.epoch and not share.holds(partition, seq)):
            return
        if share.was_handed_out(partition, seq) or not is_earlier:
            is_reached = self._process(share, partition, seq)
            if not is_reached and self._is_last_time(item):
                share.say_processed(partition, seq)

    def _is_last_time(self, item: Item) -> bool:
        """Whether its gateway hands out nothing else before it is processed."""
        if isinstance(item, Resync) or not self._max_deliveries:
            return False
        return item.deliveries >= self._max_deliveries

    def _acknowledge_again(self, item: Item, share: OwnedTarget | None) -> None:
        """What comes again is no position: of a target that was lost it goes to the next owner."""
        if share is not None and share.epoch == item.epoch:
            share.acknowledge_again(item.partition, seq_of(item))
            self._unsaid += 1

    def _process(self, share: OwnedTarget, partition: int, seq: int) -> bool:
        """Whether a position has reached it."""
        position = share.acknowledge(partition, seq)
        if position:
            self._hands.reached(share.target, partition, position)
        self._unsaid += 1
        return position >= seq

    def _say_acks(self, now_s: float) -> Effects:
        self._unsaid = 0
        self._is_said_soon = False
        self._said_s = now_s
        acks = [
            _said(share, "ack", **unsaid)
            for share in self._shares.values()
            if (unsaid := share.unsaid())
        ]
        return (*acks, *self._say_held())

    def _say_held(self) -> Effects:
        """Tell the gateway, where it doesn't know yet, which items are wanted later, which stand
        behind them, and which are processed though no position reaches them because of those."""
        if not self._max_deliveries or self.joined is None or not self.joined.hears_held:
            return ()
        held: dict[int, set[Held]] = {}
        for item in self._later.items():
            if _copy(item) not in self._hands.at_work:
                held.setdefault(item.target, set()).add(place_of(item)[1:])
        said: list[Effect] = []
        for share in self._shares.values():
            items = held.get(share.target, set())
            if items:
                items.update(
                    (p, seq, False) for p, seq, in_hand in share.unsettled() if not in_hand
                )
            if items != share.held:
                share.held = items
                said.append(_said(share, "held", items=sorted(items)[:MOST_HELD]))
        return tuple(said)

    def _released_if_done(self, share: OwnedTarget, now_s: float) -> Effects:
        if not share.leaving or self._is_busy(share):
            return ()
        acks = self._say_acks(now_s)
        self._gone(self._shares.pop(share.target))
        return (*acks, _said(share, "released"))

    # --- for every conversation ------------------------------------------------------------------

    def goes_on(self) -> str:
        return f"group {self._request['group']} is joined again"

    def _requests(self) -> Iterable[bytes]:
        """A redelivery that the user works on says nothing of how often its record failed: it is
        named as one that no count reaches."""
        request = msgspec.json.encode(self._request)
        if not self._max_deliveries or not self._hands.at_work:
            return [request]
        at_work = sorted(
            (target, partition, seq, MOST_DELIVERIES if again else max(1, deliveries))
            for (target, partition, seq, again, _), deliveries in self._hands.at_work.items()
        )
        room_bytes = MOST_BYTES - len(request) - len(',"at_work":[]')
        said = fitting(at_work[:MOST_AT_WORK], room_bytes)
        return [msgspec.json.encode({**self._request, "at_work": said})]

    def _farewell(self) -> Effects:
        acks = self._say_acks(self._said_s)
        self._shares.clear()
        failed = {"failed": True} if self._is_failing and self._max_deliveries else {}
        return (*acks, Send(msgspec.json.encode({"type": "leave", **failed})))

    def _withdrawal(self) -> Effects:
        """A join may take effect though nobody waits for its answer."""
        return (Send(msgspec.json.encode({"type": "leave"})),)

    def _disconnected(self) -> None:
        for share in self._shares.values():
            self._gone(share)
        self._shares.clear()
        self.waiting.clear()
        self._unsaid = 0
        self._is_said_soon = False
        self._later = Later()

    def _gone(self, share: OwnedTarget) -> None:
        """Unsettled items of the target come again, to the consumer that owns it then."""
        self._later.drop(lambda item: item.target == share.target)
        self._hands.let_go(
            ((share.target, partition, seq), in_hand)
            for partition, seq, in_hand in share.unsettled()
        )

    def _hand_out(self, entry: Item | Again) -> Item | None:
        """None for what isn't ours any more, was processed here before, or has to wait."""
        item = self._to_hand_out(entry)
        if item is not None:
            self._hands.take(_copy(item), _deliveries(item))
        return item

    def _to_hand_out(self, entry: Item | Again) -> Item | None:
        item = _item(entry)
        share = self._shares.get(item.target)
        if share is None or share.epoch != item.epoch or share.leaving:
            return None
        if isinstance(entry, Again):
            if not share.has_in_hand(item):
                return None
        elif not self._begin(share, item):
            return None
        return None if self._later.holds(item) else item

    def _goes_back(self, resync: Resync) -> bool:
        """Whether the log has lost its history, and its seqs are given out again; or an operator
        wants records again."""
        if self.joined is not None and self.joined.tells_lost_history:
            return resync.reason in {LOST_HISTORY, RESET}
        return not resync.after_seq

    def _begin(self, share: OwnedTarget, item: Item) -> bool:
        """From now on no position passes it; False for what was processed here before."""
        partition, seq = item.partition, seq_of(item)
        if is_redelivery(item):
            share.hand_out_again(partition, seq)
            return True
        if isinstance(item, Resync) and self._goes_back(item):
            self._hands.goes_back(share.target, partition, seq, epoch=share.epoch)
        share.hand_out(partition, seq)
        place, is_resync = (share.target, partition, seq), isinstance(item, Resync)
        if self._hands.is_new(place, stands_for_others=is_resync):
            return True
        self._process(share, partition, seq)
        return False


def fitting(entries: Iterable[AtWork], room_bytes: int) -> list[AtWork]:
    """As many of the first ones as their JSON has room for, with a comma behind each."""
    found: list[AtWork] = []
    for entry in entries:
        room_bytes -= len(msgspec.json.encode(entry)) + 1
        if room_bytes < 0:
            break
        found.append(entry)
    return found


def _place(item: Item) -> Place:
    return item.target, item.partition, seq_of(item)


def _item(entry: Item | Again) -> Item:
    return entry.item if isinstance(entry, Again) else entry


def _copy(item: Item) -> Copy:
    if isinstance(item, Resync):
        return item.target, item.partition, seq_of(item), False, item.epoch
    return item.target, item.partition, item.seq, item.redelivery, item.epoch


def _deliveries(item: Item) -> int:
    return 0 if isinstance(item, Resync) else item.deliveries


def _said(share: OwnedTarget, kind: str, **rest: Any) -> Send:
    said = {"type": kind, "target": share.target, "epoch": share.epoch, **rest}
    return Send(msgspec.json.encode(said))
