"""Made-up event ids: valid UUIDs of version 7 that grow with the clock."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.produce.event_ids import ENTROPY_BYTES, event_id

entropy = st.binary(min_size=ENTROPY_BYTES, max_size=ENTROPY_BYTES)


@given(st.integers(0, 2**48 - 1), entropy)
def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front(now_ms: int, noise: bytes) -> None:
    made = uuid.UUID(event_id(now_ms, noise))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == now_ms


@given(entropy, entropy)
def test_a_later_id_is_greater(noise: bytes, other_noise: bytes) -> None:
    assert event_id(1_700_000_000_000, noise) < event_id(1_700_000_000_001, other_noise)


def test_other_randomness_is_another_id() -> None:
    assert event_id(5, bytes(10)) != event_id(5, bytes(9) + b"\x01")
