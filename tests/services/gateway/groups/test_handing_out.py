"""What keeps a consumer from being handed more."""

from __future__ import annotations

from typing import Any, cast

from headgate.services.gateway.groups.handing_out import HandingOut
from headgate.services.gateway.groups.target import Target
from tests.virtual_time import run_virtual


class KeptBack:
    """Has a document in hand that waits until its consumer has nothing else, so that it can be
    alone: the consumer hasn't got it."""

    number = 0
    failure = None
    stopped = False
    wants_alone = True
    out_bytes = 1_000

    def __init__(self, *, out: int) -> None:
        self.out = self.worked_on = out

    def take(self, *, alone: bool) -> bytes | None:
        return b"large" if alone and not self.out else None


class Sink:
    has_left = False
    free = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)
        self.free = False


def handed_out(target: KeptBack) -> list[bytes]:
    async def scenario() -> list[bytes]:
        sink, made = Sink(), cast("Target", target)
        handing = HandingOut(cast("Any", sink), {0: made}, most=9, most_bytes=10, blamed=True)
        handing.ready(made)
        handing.flush()
        return sink.sent

    return run_virtual(scenario())


def test_what_is_kept_back_does_not_count_against_itself() -> None:
    assert handed_out(KeptBack(out=0)) == [b"large"]
    assert handed_out(KeptBack(out=1)) == []
