"""Batches as bytes: as lines, which a gateway reads one after the other, or as one JSON object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import errors
from headgate.adapters.delivery_wire import (
    Outgoing,
    encode_batch,
    encode_lines,
    read_batch,
)
from headgate.model.delivery import Delivery, DeliveryBatch, identity
from tests.adapters.transports.stage import batch, delivery, plain

small = st.integers(0, 2)
tricky = st.text("1:/a", max_size=3)
ordinary = st.builds(
    lambda event_id, key, collection, partition, epoch, seq, names, document: (
        msgspec.structs.replace(
            delivery(seq),
            event_id=event_id,
            key=key,
            collection=collection,
            partition=partition,
            epoch=epoch,
            subscriptions=names,
            document=msgspec.Raw(msgspec.json.encode(document)),
        )
    ),
    tricky,
    st.none() | tricky,
    tricky,
    small,
    small,
    st.integers(1, 5),
    st.lists(st.sampled_from("abc"), max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers(), max_size=2),
)


@given(st.lists(ordinary, min_size=1, max_size=8))
def test_an_outline_says_where_each_record_is_from_and_for_whom(deliveries: list[Delivery]) -> None:
    outline = batch(*deliveries).outline
    assert outline is not None
    assert [
        (run.partition, run.epoch, seq, names)
        for run in outline.runs
        for seq, names in zip(run.seqs, run.subscriptions, strict=True)
    ] == [(one.partition, one.epoch, one.seq, one.subscriptions) for one in deliveries]
    assert len(outline) == len(deliveries)
    assert outline.names() == {name for one in deliveries for name in one.subscriptions}


@given(st.lists(ordinary, max_size=8))
def test_a_batch_is_read_as_it_was_written(deliveries: list[Delivery]) -> None:
    sent = batch(*deliveries)
    found = read_batch(b"before" + encode_lines(sent), len(b"before"))
    assert found.outline == sent.outline
    assert list(found.messages) == sent.messages
    assert plain(found) == plain(sent)


@given(ordinary, ordinary)
def test_two_events_have_one_identity_if_they_share_the_id_and_what_places_them(
    one: Delivery, other: Delivery
) -> None:
    """What places an event is `collection/key`, or nothing."""

    def parts(event: Delivery) -> tuple[str, str | None]:
        placed = None if event.key is None else f"{event.collection}/{event.key}"
        return event.event_id, placed

    first, second = batch(one, other).identities
    assert (first == second) is (parts(one) == parts(other))
    assert (first, second) == (identity(one), identity(other))


@pytest.mark.parametrize(
    "more",
    [
        {"topic": "other"},
        {"since": (1,)},
        {"left": ("s1",)},
        {"redelivery": True},
        {"lost_from": 1},
        {"broadcast": True},
        {"from_seq": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_batch_with_anything_out_of_the_ordinary_is_one_object(more: dict[str, Any]) -> None:
    sent = batch(delivery(1), msgspec.structs.replace(delivery(2), **more))
    assert sent.outline is None
    assert encode_lines(sent) == encode_batch(sent)
    assert plain(read_batch(encode_lines(sent))) == plain(sent)


def test_a_batch_whose_documents_have_lines_is_one_object() -> None:
    document = msgspec.Raw(b'{\n"a": 1\n}')
    sent = batch(msgspec.structs.replace(delivery(1), document=document))
    assert encode_lines(sent) == encode_batch(sent)
    assert plain(read_batch(encode_lines(sent))) == plain(sent)


def test_only_the_outline_is_read_before_somebody_asks_for_more() -> None:
    outline, _, _ = encode_lines(batch(delivery(1), delivery(2))).partition(b"\n")
    found = read_batch(outline + b"\ngarbage")
    assert (found.gateway_id, found.window, found.attempt) == ("gateway-1", 3, 1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda lines: [lines[0], b"garbage"], id="nothing but garbage"),
        pytest.param(lambda lines: [*lines[:1], b"garbage", *lines[2:]], id="no identities"),
        pytest.param(lambda lines: [*lines[:1], b'["a"]', *lines[2:]], id="few identities"),
        pytest.param(lambda lines: [*lines[:2], *lines[3:]], id="a message less"),
        pytest.param(lambda lines: [*lines[:2], lines[2], *lines[2:]], id="a message more"),
        pytest.param(lambda lines: [*lines[:2], b"garbage", *lines[3:]], id="no message"),
        pytest.param(lambda lines: lines[:-1], id="cut off"),
    ],
)
def test_lines_that_are_not_what_the_outline_says_are_refused(change: Any) -> None:
    lines = encode_lines(batch(delivery(1), delivery(2))).split(b"\n")
    found = read_batch(b"\n".join(change(lines)))
    with pytest.raises(errors.InvalidRequest, match="the batch is not valid"):
        _ = found.deliveries, found.identities


def test_runs_that_have_subscriptions_of_each_other_are_refused() -> None:
    _, rest = encode_lines(batch(delivery(1), delivery(2))).split(b"\n", 1)
    found = read_batch(
        b'["gateway-1",3,1,"flights",[[0,1,[1],[]],[0,1,[2],[["s"],["s"]]]]]\n' + rest
    )
    with pytest.raises(errors.InvalidRequest, match="the batch is not valid"):
        _ = found.deliveries


def test_what_was_prepared_is_not_encoded_again() -> None:
    encoded: list[DeliveryBatch] = []

    def encode(one: DeliveryBatch) -> bytes:
        encoded.append(one)
        return encode_lines(one)

    outgoing = Outgoing(encode)
    first, second = batch(delivery(1)), batch(delivery(2))
    outgoing.prepare("here", first)
    assert outgoing.encoded("there", second) == encode_lines(second)
    assert outgoing.encoded("here", first) == encode_lines(first)
    assert len(encoded) == 2
    outgoing.prepare("here", first)
    assert outgoing.encoded("here", second) == encode_lines(second)
    assert outgoing.encoded("here", first) == encode_lines(first)
    assert len(encoded) == 5


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[]", b"[]\n", b"[1,2]\n{}", b'["g",1,0,"t",[[0]]]\n{}', b"{}", b"x"]
)
def test_whatever_else_comes_is_refused(data: bytes) -> None:
    with pytest.raises(errors.InvalidRequest):
        read_batch(data)
