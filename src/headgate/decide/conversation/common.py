"""What every client's conversation with its gateways has in common, without any I/O.

    new ─ enter → connecting ─ opened → opening ─ (all is begun) → live
                      ↑                    │                        │
                      └──── lost, refused for now, redirected ──────┘
    … ─ refused for good, out of patience → failed ─ (told, and asked again) → connecting
    … ─ close → closing ─ (the gateway has saved everything) → closed

Events come in as calls, what has to be done goes out as effects. Whatever must survive that a
user's call is cancelled is in here: what has arrived, what was handed out, what is acknowledged.

Invariants: what has arrived is handed out in its order, once; an error stands behind what arrived
before it and is raised once, after which the next call tries again; after `close` nothing is handed
out or begun any more. Several callers may take items: each is done with its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from headgate import errors
from headgate.decide.conversation.effects import Connect, Effects, HangUp, Send
from headgate.decide.conversation.patience import Outage, Patience
from headgate.decide.following.arrived import Arrived
from headgate.model.client_messages import Item

Acks = Literal["auto", "manual"]
MAY_PASS = (errors.NotNow, errors.StorageFailed)
"""What trying again may mend: also a store that is away, by time or by an operator."""
Control = TypeVar("Control")
"""What a gateway says besides items."""
Entry = TypeVar("Entry")
"""A waiting item, with its conversation's own notes on it."""


class Phase(StrEnum):
    NEW = "new"
    CONNECTING = "connecting"
    OPENING = "opening"
    LIVE = "live"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"


class Conversation(Generic[Control, Entry]):
    def __init__(self, acks: Acks, patience: Patience) -> None:
        self.phase = Phase.NEW
        self.has_begun = False
        """Whether it was ever live."""
        self.reconnects = 0
        self.waiting: Arrived[Entry | errors.HeadgateError] = Arrived()
        """What has arrived and nobody has taken yet."""
        self._acks = acks
        self._patience = patience
        self._outage: Outage | None = None
        self._is_entering = False
        self._failure: errors.HeadgateError | None = None
        self._in_hand: dict[Hashable, list[Entry]] = {}
        """What each caller took since they last asked."""

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.CLOSING, Phase.CLOSED)

    # --- the connection --------------------------------------------------------------------------

    def enter(self) -> Effects:
        """The first opening: whatever goes wrong with it is final."""
        self.check()
        try:
            list(self._requests())
        except (TypeError, ValueError, RecursionError) as error:
            raise errors.InvalidRequest(
                f"what is asked for can't be written as JSON ({error}): give plain texts, numbers, "
                "lists and mappings"
            ) from error
        self._is_entering = True
        self.phase = Phase.CONNECTING
        return (Connect(0.0),)

    def check(self) -> None:
        """Raises InvalidRequest when there is nothing to ask for."""

    def opened(self) -> Effects:
        """There is a connection: ask. An attempt may come here several times."""
        if self.phase not in (Phase.CONNECTING, Phase.OPENING):
            return (HangUp(),)
        self.phase = Phase.OPENING
        return tuple(Send(request) for request in self._requests())

    def unreachable(self, error: errors.HeadgateError, now_s: float) -> Effects:
        """An attempt has come to nothing."""
        if self.phase not in (Phase.CONNECTING, Phase.OPENING):
            return ()
        return self._try_again(error, now_s)

    def lost(self, now_s: float) -> Effects:
        if self.phase is Phase.CLOSING:
            self.phase = Phase.CLOSED
        if self.phase not in (Phase.OPENING, Phase.LIVE):
            return ()
        reason = errors.PeerUnreachable("the gateway closed the connection; try again")
        return self._try_again(reason, now_s)

    def misunderstood(self) -> Effects:
        """The gateway said something that can't be passed over."""
        if self.phase not in (Phase.OPENING, Phase.LIVE):
            return ()
        return self._fail(
            errors.InvalidRequest(
                "the gateway sent a message that this version does not know; upgrade headgate"
            )
        )

    def close(self) -> Effects:
        """End; what has to be said before that is said."""
        if self.is_over:
            return ()
        was_live = self.phase is Phase.LIVE
        farewell: Effects = ()
        if was_live:
            farewell = self._farewell()
        elif self.phase is Phase.OPENING:
            farewell = self._withdrawal()
        self.phase = Phase.CLOSING if was_live and self._has_to_wait else Phase.CLOSED
        self.waiting.clear()
        self._failure = None
        return farewell

    def ended(self) -> None:
        """Nobody waits for the gateway's last word any more."""
        self.phase = Phase.CLOSED

    # --- calls -----------------------------------------------------------------------------------

    @property
    def callers(self) -> Collection[Hashable]:
        """Those that have an item in hand."""
        return self._in_hand

    def done(self, caller: Hashable, now_s: float) -> Effects:
        """A caller that asks for the next item, or has ended, is done with what it took before."""
        entries = self._in_hand.pop(caller, None)
        if entries is None or self._acks == "manual":
            return ()
        if len(entries) == 1:
            return self._done_with(entries[0], now_s)
        return tuple([effect for entry in entries for effect in self._done_with(entry, now_s)])

    def take(self, caller: Hashable) -> Item | None:
        """The next item, if one waits. Raises the error that has its turn."""
        while self.waiting:
            entry = self.waiting.popleft()
            if isinstance(entry, errors.HeadgateError):
                raise entry
            item = self._hand_out(entry)
            if item is not None:
                if caller in self._in_hand:
                    self._in_hand[caller].append(entry)
                else:
                    self._in_hand[caller] = [entry]
                return item
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def put_back(self, caller: Hashable, now_s: float) -> Effects:
        """The caller never saw the items that it took since it last asked: they come next."""
        effects: Effects = ()
        for entry in reversed(self._in_hand.pop(caller, ())):
            self._unseen(entry)
            if not self.is_over:
                effects += self._put_back(entry, now_s)
        return effects

    def _unseen(self, entry: Entry) -> None:
        """It doesn't count as handed out."""

    def _put_back(self, entry: Entry, now_s: float) -> Effects:
        self.waiting.appendleft(entry)
        return ()

    def asked(self, now_s: float) -> Effects:
        """Somebody is about to wait, because nothing is here."""
        if self.phase is Phase.LIVE:
            return self._say_acks(now_s)
        if self.phase in (Phase.NEW, Phase.FAILED):
            self.check()
            reason = errors.PeerUnreachable("there is no connection to a gateway; try again")
            return self._try_again(reason, now_s)
        return ()

    # --- what differs ----------------------------------------------------------------------------

    _has_to_wait = False
    """Whether the gateway answers the farewell."""

    def arrived(self, item: Item) -> bool:
        """Take it in; False when it should not have come, which is for `unexpected`."""
        raise NotImplementedError

    def unexpected(self, now_s: float) -> Effects:
        """An item came that the conversation has no place for."""
        raise NotImplementedError

    def heard(self, message: Control, now_s: float) -> Effects:
        """Anything but an item."""
        raise NotImplementedError

    def reminded(self, now_s: float) -> Effects:
        """It had asked for that."""
        return ()

    def goes_on(self) -> str:
        """Where, in words, after a reconnect."""
        raise NotImplementedError

    def _requests(self) -> Iterable[bytes]:
        """What is asked on a new connection."""
        raise NotImplementedError

    def _farewell(self) -> Effects:
        raise NotImplementedError

    def _withdrawal(self) -> Effects:
        """What was asked on this connection, and isn't answered, is not wanted any more."""
        return ()

    def _disconnected(self) -> None:
        """What that connection brought and nobody answers for any more is put right."""
        raise NotImplementedError

    def _hand_out(self, entry: Entry) -> Item | None:
        """The item as the user gets it; None for what they have or must not get."""
        raise NotImplementedError

    def _done_with(self, entry: Entry, now_s: float) -> Effects:
        raise NotImplementedError

    def _say_acks(self, now_s: float) -> Effects:
        raise NotImplementedError

    # --- changes of phase ------------------------------------------------------------------------

    def _begun(self) -> None:
        self.phase = Phase.LIVE
        self._outage = None
        self.has_begun = True
        if not self._is_entering:
            self.reconnects += 1
        self._is_entering = False

    def _try_again(self, reason: errors.HeadgateError, now_s: float) -> Effects:
        if self._is_entering or not isinstance(reason, MAY_PASS):
            return self._fail(reason)
        if self._outage is None:
            self._outage = Outage(self._patience, now_s)
        pause_s = self._outage.next_pause_s(now_s)
        if pause_s is None:
            return self._fail(reason)
        self._disconnected()
        self.phase = Phase.CONNECTING
        return (HangUp(), Connect(pause_s, reason.message))

    def _fail(self, error: errors.HeadgateError) -> Effects:
        self._disconnected()
        self.phase = Phase.FAILED
        self._outage = None
        self._is_entering = False
        self._failure = error
        return (HangUp(),)

    @property
    def failure(self) -> errors.HeadgateError | None:
        """Why it failed, until a caller has been told."""
        return self._failure
