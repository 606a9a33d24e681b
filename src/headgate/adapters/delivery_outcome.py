"""The outcome of sending a batch, the same for every transport.

Invariant: whatever a gateway answers, or doesn't, becomes a `DeliveryAnswer` with one verdict per
delivery, or one of the errors that ports.transport names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from headgate.errors import HeadgateError, InvalidRequest, NotNow, PeerUnreachable, TooLarge
from headgate.model.delivery import Batch, DeliveryAnswer, DeliveryBatch
from headgate.ports.transport import Accept


class Refusal(msgspec.Struct, frozen=True):
    """Why a gateway didn't take a batch; `status` as in HTTP."""

    status: int
    message: str


class UnderWay:
    """Calls that wait for a gateway: each as long as it said, and none beyond `end`."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Timeout, None] = {}

    @asynccontextmanager
    async def within(self, url: str, timeout_s: float) -> AsyncIterator[None]:
        """Raises PeerUnreachable for what doesn't end in time."""
        waiting = asyncio.timeout(timeout_s)
        self._waiting[waiting] = None
        try:
            async with waiting:
                yield
        except TimeoutError as error:
            late = f"nothing came within {timeout_s:g} s"
            reason = late if waiting in self._waiting else "the connection was given up"
            raise no_answer(url, reason) from error
        finally:
            self._waiting.pop(waiting, None)

    def end(self) -> None:
        """Give all of them up."""
        now_s = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            waiting.reschedule(now_s)
        self._waiting.clear()


async def taken(accept: Accept, batch: Batch) -> DeliveryAnswer:
    """What a gateway says of a batch, when it can."""
    answer = accept(batch)
    return answer if isinstance(answer, DeliveryAnswer) else await answer


def checked(url: str, answer: DeliveryAnswer, batch: DeliveryBatch) -> DeliveryAnswer:
    if len(answer.verdicts) != len(batch.deliveries):
        raise NotNow(
            f"gateway at {url} answered for {len(answer.verdicts)} events instead of "
            f"{len(batch.deliveries)}",
            url=url,
        )
    return answer


def refused(url: str, refusal: Refusal) -> HeadgateError:
    """Only what says that the batch itself is wrong is for good."""
    said = f": {refusal.message}" if refusal.message else ""
    match refusal.status:
        case 400 | 422:
            return InvalidRequest(f"gateway at {url} refused a batch{said}", url=url)
        case 413:
            return TooLarge(f"gateway at {url} refused a batch as too large{said}", url=url)
        case 401 | 403:
            return NotNow(
                f"gateway at {url} doesn't accept what this router shows: set the same "
                "security.cluster.tokens on both (or transport.token, without a cluster token)",
                url=url,
            )
    return NotNow(f"gateway at {url} answered {refusal.status}{said}", url=url)


def no_answer(url: str, reason: object) -> PeerUnreachable:
    return PeerUnreachable(f"gateway at {url} doesn't answer: {reason}", url=url)
