"""A batch too large for one message of NATS goes out in parts, and the order stays: what a part
leaves unsettled isn't passed by a later one. The server is a double, with a limit of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from headgate.adapters.delivery_wire import reply_to
from headgate.adapters.nats.delivery import NatsDeliveryTransport
from headgate.model.delivery import Batch, Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.ports.transport import Accept
from tests.services.gateway.subscriptions.test_redelivering import TWO_EACH, again
from tests.services.gateway.test_deliveries import NODE, event, stage
from tests.written_log import TOPIC

MAX_PAYLOAD = 3_000
LARGE = msgspec.Raw(b'{"n":"' + b"x" * 2_000 + b'"}')
"""The document of an event that needs a message of its own."""
TOO_LARGE = msgspec.Raw(b'{"n":"' + b"x" * MAX_PAYLOAD + b'"}')


@dataclass
class Reply:
    data: bytes


@dataclass
class Server:
    """Passes requests on to a gateway."""

    accept: Accept
    max_payload: int
    is_closed: bool = False
    is_connected: bool = True

    async def request(
        self,
        _subject: str,
        data: bytes,
        timeout: float,  # noqa: ASYNC109
        headers: dict[str, str] | None,
    ) -> Reply:
        assert timeout > 0
        assert headers is None
        assert len(data) <= self.max_payload
        return Reply(await reply_to(data, self.accept))


@dataclass
class Gateway:
    """Answers `verdicts` by partition and seq, and accepts the rest; `fill` it says with each."""

    verdicts: dict[tuple[int, int], Verdict]
    fill: float = 0.0
    asked: list[tuple[int, int]] = field(default_factory=list)

    def accept(self, batch: Batch) -> DeliveryAnswer:
        places = [(one.partition, one.seq) for one in batch.deliveries]
        self.asked += places
        return DeliveryAnswer(
            tuple(self.verdicts.get(place, "accepted") for place in places), fill=self.fill
        )


async def sent(
    accept: Accept, *deliveries: Delivery, max_payload: int = MAX_PAYLOAD
) -> DeliveryAnswer:
    lanes = NatsDeliveryTransport("lane-1", "nats://x")
    lanes._client = Server(accept, max_payload)  # type: ignore[assignment]
    batch = DeliveryBatch(NODE, 1, 0, deliveries)
    return await lanes.deliver(f"nats://{NODE}", batch, timeout_s=1.0)


def large(seq: int, partition: int = 0, document: msgspec.Raw = LARGE) -> Delivery:
    return event(seq, "a", partition=partition, document=document)


@pytest.mark.parametrize("max_payload", [1 << 20, MAX_PAYLOAD], ids=["whole", "in parts"])
async def test_no_record_passes_a_redelivery_that_was_put_off(max_payload: int) -> None:
    async with stage(bounds=TWO_EACH) as place:

        async def deliver(*some: Delivery) -> tuple[Verdict, ...]:
            named = place.named(some)
            answer = await sent(place.deliveries.accept, *named, max_payload=max_payload)
            place.answered()
            return answer.verdicts

        # There is room for two redeliveries, and nobody reads.
        first = [again(1, "a"), again(2, "a")]
        assert await deliver(*first) == ("retry", "retry")
        left = [*first, again(3, "a", document=LARGE), event(4, "a", document=LARGE)]
        for _ in range(3):  # what is wanted again goes out again, in its order
            verdicts = await deliver(*left)
            left = [one for one, said in zip(left, verdicts, strict=True) if said == "retry"]
            place.read("a")
        assert (place.seqs("a"), left) == ([1, 2, 3, 4], [])


@pytest.mark.parametrize("max_payload", [1 << 20, MAX_PAYLOAD], ids=["whole", "in parts"])
async def test_of_a_page_all_is_sent_and_nobody_gets_it_out_of_order(max_payload: int) -> None:
    """There is room for two, and "a" has read by the time the last ones come."""
    async with stage(bounds=TWO_EACH) as place:

        def accept(batch: Batch) -> DeliveryAnswer:
            answer = place.deliveries.accept(batch)
            place.answered()
            place.read("b")
            if place.seqs("b")[-1:] == [3]:
                place.read("a")
            return answer

        numbers = range(1, 7)
        page = [again(n, "a", "b", from_seq=1, document=LARGE) for n in numbers]
        for _ in numbers:
            answer = await sent(accept, *place.named(tuple(page)), max_payload=max_payload)
            assert [(one.topic, one.partition) for one in answer.go_on] == [(TOPIC, 0)]
            place.read("a")
        assert place.seqs("a") == place.seqs("b") == [*numbers]


async def test_what_is_refused_in_a_page_is_passed_by_nothing() -> None:
    async with stage(bounds=TWO_EACH) as place:
        page = [
            again(seq, "a", from_seq=1, document=TOO_LARGE if seq == 2 else LARGE)
            for seq in (1, 2, 3, 4)
        ]
        answer = await sent(place.deliveries.accept, *place.named(tuple(page)))
        assert answer.verdicts == ("retry", "rejected", "retry", "retry")
        assert answer.go_on == ()


@pytest.mark.parametrize("verdict", ["retry", "rejected", "stale_fence"])
async def test_what_a_part_leaves_unsettled_holds_its_partition_alone(verdict: Verdict) -> None:
    gateway = Gateway({(0, 1): verdict})
    answer = await sent(gateway.accept, large(1), large(7, 1), large(2), large(8, 1))
    assert answer.verdicts == (verdict, "accepted", "retry", "accepted")
    assert gateway.asked == [(0, 1), (1, 7), (1, 8)]


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "between", "last"])
async def test_an_event_that_is_too_large_says_nothing_about_how_full_the_gateway_is(
    at: int,
) -> None:
    gateway = Gateway({}, fill=0.9)
    sending = [large(seq, partition=seq) for seq in range(3)]
    sending[at] = large(at, partition=at, document=TOO_LARGE)
    answer = await sent(gateway.accept, *sending)
    assert answer.verdicts.count("accepted") == 2
    assert (answer.verdicts[at], answer.fill) == ("rejected", 0.9)
