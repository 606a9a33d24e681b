"""What the coordinator must remember across its own death."""

from __future__ import annotations

import msgspec

from headgate.model.access import ApiToken
from headgate.model.connector import Connector
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.topology import Move, Node, Owner, Topic


class StoredReset(msgspec.Struct, frozen=True, array_like=True):
    """An operator wants the position of `ref` at `settled`, as decide.lane.checkpoints.Reset says;
    once it `is_released`, it is put there with the next fence."""

    ref: PartitionRef
    settled: int
    resync: bool = False
    only_forward: bool = False
    is_released: bool = False


class KeptGateway(msgspec.Struct, frozen=True, array_like=True):
    """The process of a gateway of which everything holds that it was told."""

    gateway_id: str
    incarnation: str


class ReadAgain(msgspec.Struct, frozen=True, array_like=True):
    """The position of `ref` is put back to `after_seq`, if it is beyond it, with the next fence."""

    ref: PartitionRef
    after_seq: int


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """`boot` counts the coordinator's starts: generations and revisions grow from it.

    `kept` are the gateways whose subscribers go on as they are, also with the next coordinator.
    `logs`, `sources` and `targets` keep the last epoch of every partition, also of topics that were
    deleted (with an empty owner) until nothing is left of them, and `above` is at least that of
    every other one there ever was, so that no epoch is ever given out twice. `gateways` are
    those that held subscriptions: until they are back, or their lease has ended, the registry is
    not complete. `nodes` are the members as they were; a restarted coordinator takes them for alive
    until their lease has ended, so that nobody loses sight of a node that never went away.
    `moves` and `target_moves` are the handoffs under way, `draining` the nodes that shall give
    everything away, `resets` what operators want of positions and isn't done yet, `again` from
    where those are read that couldn't be claimed. `intakes` keeps the last epoch of every one of
    the `connectors`, also of those that nobody reads; of deleted ones `above` does. `learning` says
    that this was written while the coordinator still learnt what there is. `tokens_revision` counts
    the changes of the `tokens`, which are kept without their secrets.

    Where not all of a change is stored it is the first fields of it: no epoch is forgotten before
    `above` has it, who isn't `kept` any more is so before anything else of that change, a topic is
    `deleted` before it is gone, or nobody would drop its records, and a connector gets the epoch of
    a new beginning before it has that beginning.
    """

    boot: int = 0
    above: int = 0
    kept: tuple[KeptGateway, ...] = ()
    deleted: tuple[str, ...] = ()
    topics: tuple[Topic, ...] = ()
    logs: tuple[Owner, ...] = ()
    sources: tuple[Owner, ...] = ()
    gateways: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    moves: tuple[Move, ...] = ()
    draining: tuple[str, ...] = ()
    learning: bool = False
    groups: tuple[Group, ...] = ()
    targets: tuple[Owner, ...] = ()
    target_moves: tuple[Move, ...] = ()
    resets: tuple[StoredReset, ...] = ()
    again: tuple[ReadAgain, ...] = ()
    intakes: tuple[Owner, ...] = ()
    connectors: tuple[Connector, ...] = ()
    tokens: tuple[ApiToken, ...] = ()
    tokens_revision: int = 0
