"""A small gateway for clients, told what to do wrong: real rules, no I/O, and it keeps the books.

Every topic has one partition, a log of numbered records; a group has one target. Whoever speaks out
of turn, or acknowledges what wasn't sent, is noted as a mistake of the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
PREFETCH = 100


class Wire(Protocol):
    """The gateway's end of a connection."""

    def send(self, message: Message) -> None:
        """Say something."""

    def drop(self) -> None:
        """Cut it."""


def compact(message: Message) -> bytes:
    """As gateways write it; clients tell some messages by how they begin."""
    return json.dumps(message, separators=(",", ":")).encode()


def event(topic: str, seq: int, **rest: Any) -> Message:
    return {
        "type": "event",
        "topic": topic,
        "partition": 0,
        "seq": seq,
        "event_id": f"{topic}-{seq}",
        "key": "k",
        "collection": "",
        "op": "insert",
        "document": {"n": seq},
        **rest,
    }


@dataclass
class Group:
    """One target; `settled` is what is saved, `sent` what its owner has had."""

    epoch: int = 0
    settled: int = 0
    sent: int = 0
    owner: Session | None = None


@dataclass
class ModelGateway:
    logs: dict[str, int] = field(default_factory=dict)
    """Topics and the seq of their last record."""
    keys: int = 1
    """Records belong to so many keys, in turn."""
    kept_from: dict[str, int] = field(default_factory=dict)
    """The first record that retention has left of a topic."""
    silent: set[str] = field(default_factory=set)
    """Subscriptions, or consumers, that get no answer."""
    refused: dict[str, Message] = field(default_factory=dict)
    """Subscriptions, or consumers, that get this error."""
    redirect: list[Message] = field(default_factory=list)
    """Whoever comes is sent away, once for each."""
    cut_off: int = 0
    """So many of those who come are cut off at once."""
    known: dict[str, int | None] = field(default_factory=dict)
    """Tokens and until when they are good; where there are none, nobody is asked for one."""
    tells_lost_history: bool = True
    hears_held: bool = True
    """Whether that has a reason of its own, as it had not once."""
    groups: dict[str, Group] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    """Those that are open."""
    opened: int = 0
    left: int = 0
    mistakes: list[str] = field(default_factory=list)
    requests: list[Message] = field(default_factory=list)

    def connect(self, wire: Wire) -> Session:
        self.opened += 1
        session = Session(self, wire)
        self.sessions.append(session)
        if self.cut_off:
            self.cut_off -= 1
            session.is_cut_off = True
            wire.drop()
        elif self.redirect:
            wire.send(self.redirect.pop(0))
            session.redirected = True
        return session

    def append(self, topic: str, count: int = 1) -> None:
        self.logs[topic] = self.logs.get(topic, 0) + count
        for session in list(self.sessions):
            session.flush()

    def drop_all(self) -> None:
        for session in list(self.sessions):
            session.wire.drop()
            session.gone()

    def answer(self, name: str) -> None:
        """To one that got none until now."""
        self.silent.discard(name)
        for session in list(self.sessions):
            session.answer_late(name)


class Session:
    """One connection, of a subscriber or of a consumer."""

    def __init__(self, gateway: ModelGateway, wire: Wire) -> None:
        self.gateway = gateway
        self.wire = wire
        self.redirected = False
        self.is_cut_off = self.is_known = False
        self.topics: dict[str, str] = {}
        self.sent: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.group: Group | None = None
        self.topic = ""
        self._unanswered: dict[str, Callable[[], None]] = {}

    def gone(self) -> None:
        if self in self.gateway.sessions:
            self.gateway.sessions.remove(self)
        if self.group is not None and self.group.owner is self:
            self.group.owner = None

    def heard(self, message: Message) -> None:
        self.gateway.requests.append(message)
        if self.redirected or self not in self.gateway.sessions:
            return
        kind = message["type"]
        if kind == "auth":
            self._authenticate(message["token"])
        elif self.gateway.known and not self.is_known:
            self.gateway.mistakes.append(f"{kind} before auth")
        elif kind in ("subscribe", "join"):
            name = message["id" if kind == "subscribe" else "consumer"]
            begin = self._subscribe if kind == "subscribe" else self._join
            self._unanswered[name] = lambda: begin(name, message)
            self.answer_late(name)
        elif kind == "ack" and "subscription" in message:
            self._ack(message["subscription"], message["positions"]["0"])
        elif self.group is None and kind == "leave" and self._unanswered:
            self.gateway.left += 1
            self._unanswered.clear()
            self.wire.send({"type": "ended"})
        elif self.group is None:
            self.gateway.mistakes.append(f"{kind} before joined")
        elif kind == "ack":
            self._ack_target(message)
        elif kind == "released":
            if self.group.owner is self and message["epoch"] == self.group.epoch:
                self.group.owner = None
        elif kind == "leave":
            self.gateway.left += 1
            self.wire.send({"type": "ended"})
            self.group.owner = None

    def _authenticate(self, token: str) -> None:
        known = self.gateway.known
        self.is_known = token in known
        if self.is_known:
            self.wire.send(
                {"type": "authenticated", "principal": "me", "expires_at_ms": known[token]}
            )
        else:
            error = {"code": "unauthorized", "message": "nobody knows that token", "details": {}}
            self.wire.send({"type": "error", "error": error})

    def answer_late(self, name: str) -> None:
        if name not in self.gateway.silent and name in self._unanswered:
            begin = self._unanswered.pop(name)
            if (error := self.gateway.refused.get(name)) is not None:
                self.wire.send({"type": "error", "subscription": name, "error": error})
            else:
                begin()

    # --- subscribers -----------------------------------------------------------------------------

    def _subscribe(self, name: str, asked: Message) -> None:
        topic, start = asked["topic"], asked["from"]
        head = self.gateway.logs.setdefault(topic, 0)
        after = start["0"] - 1 if isinstance(start, dict) else 0 if start == "earliest" else head
        self.topics[name], self.sent[name] = topic, after
        self.acknowledged[name] = after
        self.wire.send(
            {
                "type": "subscribed",
                "subscription": name,
                "topic": topic,
                "positions": {"0": after},
            }
        )
        self.flush()

    def _ack(self, name: str, seq: int) -> None:
        if name not in self.sent or seq > self.sent[name]:
            self.gateway.mistakes.append(f"ack of {seq} for {name}, sent {self.sent.get(name)}")
        else:
            self.acknowledged[name] = max(seq, self.acknowledged[name])

    def flush(self) -> None:
        for topic in dict.fromkeys(self.topics.values()):
            self._resync(topic)
            while names := self._behind(topic):
                seq = self.sent[names[0]] + 1
                for name in names:
                    self.sent[name] = seq
                self.wire.send(event(topic, seq, subscriptions=names))
        self._flush_target()

    def _behind(self, topic: str) -> list[str]:
        """Those that are furthest behind; they share a message."""
        at = {name: self.sent[name] for name, of in self.topics.items() if of == topic}
        least = min(at.values())
        return [name for name in at if at[name] == least < self.gateway.logs[topic]]

    def _resync(self, topic: str) -> None:
        kept_from = self.gateway.kept_from.get(topic, 1)
        for name in [name for name, of in self.topics.items() if of == topic]:
            if self.sent[name] + 1 < kept_from:
                resync = {"type": "resync", "subscription": name, "topic": topic, "partition": 0}
                between = {"after": self.sent[name], "from": kept_from, "reason": "retention"}
                self.wire.send(resync | between)
                self.sent[name] = kept_from - 1

    # --- consumers -------------------------------------------------------------------------------

    def _join(self, name: str, asked: Message) -> None:
        self.topic = asked["topic"]
        self.gateway.logs.setdefault(self.topic, 0)
        group = self.group = self.gateway.groups.setdefault(asked["group"], Group())
        self.wire.send(
            {
                "type": "joined",
                "topic": self.topic,
                "group": asked["group"],
                "consumer": name,
                "targets": 1,
                "tells_lost_history": self.gateway.tells_lost_history,
                "hears_held": self.gateway.hears_held,
            }
        )
        if group.owner is None:
            self.assign()

    def assign(self) -> None:
        """Under a new epoch: also to one that was its owner before."""
        group = self.group
        assert group is not None
        group.owner, group.sent = self, group.settled
        group.epoch += 1
        positions = {"0": group.settled}
        self.wire.send(
            {"type": "assigned", "target": 0, "epoch": group.epoch, "positions": positions}
        )
        self._flush_target()

    def revoke(self) -> None:
        assert self.group is not None
        self.wire.send({"type": "revoke", "target": 0, "epoch": self.group.epoch})

    def _flush_target(self) -> None:
        group = self.group
        if group is None or group.owner is not self:
            return
        head = self.gateway.logs[self.topic]
        while group.sent < min(head, group.settled + PREFETCH):
            group.sent += 1
            key = f"k{group.sent % self.gateway.keys}"
            self.wire.send(event(self.topic, group.sent, target=0, epoch=group.epoch, key=key))

    def _ack_target(self, message: Message) -> None:
        group, seq = self.group, message.get("positions", {}).get("0", 0)
        assert group is not None
        if group.owner is not self or message["epoch"] != group.epoch:
            error = {"code": "fenced", "message": "not yours", "details": {}}
            self.wire.send({"type": "error", "target": 0, "error": error})
        elif seq > group.sent:
            self.gateway.mistakes.append(f"ack of {seq}, sent {group.sent}")
        else:
            group.settled = max(seq, group.settled)
            self._flush_target()
