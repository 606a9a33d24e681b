"""Hands what connectors read to the owners of the partitions, here or on other nodes.

Invariant: whatever goes wrong leaves here as an error of `headgate.errors`; all of it may be handed
in again, because the partition knows how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate import errors
from headgate.model.api import ErrorAnswer
from headgate.model.event import Event, PartitionRef
from headgate.model.http import Request, Response, Route
from headgate.model.intake import IntakeMark
from headgate.model.refusals import rebuild
from headgate.ports.http import HttpCalls
from headgate.ports.log import Taken
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends

MSGPACK = "application/msgpack"
BODY_BYTES_MAX = 64 * 1024 * 1024
"""A batch is cut well below this, but for a single document that is larger."""
TIMEOUT_S = 15.0
"""For the answer of another node. It may write long after that, which harms nobody."""
STORE_TIMEOUT_S = 10.0
"""For the store's answer to what was handed in before: shorter, so that another node hears why."""


class IntakeRequest(msgspec.Struct, frozen=True):
    """A connector's batch for one partition, as nodes send it to each other."""

    mark: IntakeMark
    version: int
    events: list[Event]


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(IntakeRequest).decode
_decode_answer = msgspec.msgpack.Decoder(Taken).decode
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class TakingIn:
    """`headers` have what a node shows to another."""

    def __init__(
        self,
        partitions: Partitions,
        appends: Appends,
        calls: HttpCalls,
        *,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._headers = headers
        self._partitions = partitions
        self._appends = appends
        self._calls = calls

    async def take_in(
        self, ref: PartitionRef, mark: IntakeMark, events: Sequence[Event], *, version: int
    ) -> Taken:
        """Raises what ports.log.LogWriter.take_in does; NotNow also where `ref` has no owner that
        can be reached."""
        if self._partitions.get(ref) is not None:
            return await self._here(ref, mark, events, version=version)
        url = self._partitions.peer_url(ref)
        if not url:
            raise _ownerless(ref)
        return await self._there(url, ref, IntakeRequest(mark, version, list(events)))

    async def _here(
        self, ref: PartitionRef, mark: IntakeMark, events: Sequence[Event], *, version: int
    ) -> Taken:
        await self._appends.taken(ref, mark.connector, timeout_s=STORE_TIMEOUT_S)
        target = self._partitions.get(ref)
        if target is None or self._partitions.closing:
            raise _ownerless(ref)
        self._check_known(mark)
        request = self._appends.enter(len(events), _size_bytes(events))
        try:
            return await self._appends.take_in(request, target, mark, events, version=version)
        except errors.Fenced as error:
            raise _ownerless(ref) from error  # a newer owner has it, and we shall hear which
        finally:
            self._appends.leave(request)

    def _check_known(self, mark: IntakeMark) -> None:
        """A connector that was deleted is taken in from no more, whatever its reader has heard, and
        one of the same name that came after it is another one."""
        intakes = self._partitions.topology.intakes
        epochs = [owner.epoch for owner in intakes if owner.ref.topic == mark.connector]
        if not epochs:
            raise errors.NotNow(
                f"this node knows no connector {mark.connector}: it was deleted, or is too new",
                connector=mark.connector,
            )
        if mark.epoch < epochs[0]:
            raise errors.ConnectorFenced(
                f"connector {mark.connector} is read in epoch {epochs[0]}, and epoch {mark.epoch} "
                "came; stop reading for it",
                connector=mark.connector,
                epoch=epochs[0],
            )

    async def _there(self, url: str, ref: PartitionRef, request: IntakeRequest) -> Taken:
        response = await self._calls.send(
            "POST",
            f"{url}/internal/v1/topics/{ref.topic}/{ref.partition}/intake",
            timeout_s=TIMEOUT_S,
            headers=(("content-type", MSGPACK), *self._headers),
            body=_encode(request),
        )
        try:
            if response.status == 200:
                return _decode_answer(response.body)
            raise rebuild(_decode_error(response.body).error, response.status)
        except msgspec.DecodeError as error:
            raise errors.OutcomeUnknown(
                f"{url} answered something that is no answer to a connector", url=url
            ) from error

    # --- what other nodes ask -------------------------------------------------------------------

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/internal/v1/topics/{name}/{partition}/intake",
                self._answer,
                summary="Take in what a connector on another node has read.",
                public=False,
                accepts=(MSGPACK,),
                callers=("ingest",),
            )
        ]

    async def _answer(self, request: Request) -> Response:
        number = request.params["partition"]
        if not (number.isascii() and number.isdigit()):
            raise errors.InvalidRequest(f"{number!r} is no partition's number")
        ref = PartitionRef(request.params["name"], int(number))
        with self._appends.room.arriving() as place:
            body = await request.body(BODY_BYTES_MAX, arrived=place.arrived)
            try:
                asked = _decode_request(body)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise errors.InvalidRequest(f"the request body is not valid: {error}") from error
            del body  # the events have their own documents
        taken = await self._here(ref, asked.mark, asked.events, version=asked.version)
        return Response(200, _encode(taken), MSGPACK)


def _size_bytes(events: Sequence[Event]) -> int:
    return sum([len(event.document) + len(event.earlier or b"") for event in events])


def _ownerless(ref: PartitionRef) -> errors.NotNow:
    return errors.NotNow(
        f"partition {ref.partition} of {ref.topic} has no owner here yet; try again",
        topic=ref.topic,
        partition=ref.partition,
    )
