"""Who asks over HTTP, and is refused because of a token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from headgate import errors
from headgate.client.credentials import credentials
from headgate.client.http import HttpClient
from headgate.model.http import Response
from headgate.ports.http import HttpCalls


class Knowing:
    """An address that knows some tokens."""

    def __init__(self, *known: str) -> None:
        self.said: list[str] = []
        self._known = {f"Bearer {token}" for token in known}

    async def send(
        self,
        _method: str,
        _url: str,
        *,
        timeout_s: float,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        said = dict(headers)["authorization"]
        self.said.append(said)
        if said in self._known:
            return Response(200, b"{}")
        refusal = b'{"error":{"code":"unauthorized","message":"who is that?"}}'
        return Response(401, refusal)

    async def close(self) -> None: ...

    def open(self, *, connect_timeout_s: float) -> HttpCalls:
        return self  # type: ignore[return-value]  # no more than is called here


async def test_one_that_was_renewed_meanwhile_is_said_at_once() -> None:
    address, fresh = Knowing("t2"), itertools.count(1)
    said = credentials(lambda: f"t{next(fresh)}")
    async with HttpClient("http://here", open_calls=address.open, credentials=said) as client:
        await client.call("GET", "/v1/topics")
        await client.call("GET", "/v1/topics")
    assert address.said == ["Bearer t1", "Bearer t2", "Bearer t2"]


async def test_a_new_one_for_each_refusal_is_not_asked_for_without_end() -> None:
    address, fresh = Knowing(), itertools.count(1)
    said = credentials(lambda: f"t{next(fresh)}")
    async with HttpClient("http://here", open_calls=address.open, credentials=said) as client:
        with pytest.raises(errors.Unauthorized):
            await client.call("GET", "/v1/topics")
    assert address.said == ["Bearer t1", "Bearer t2"]
