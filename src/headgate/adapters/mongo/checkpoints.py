"""The checkpoint store in MongoDB: one document per topic and partition.

Invariant: the fence is compared in the same update that moves the position, and a majority has it
in its journal before the call returns: neither a second process nor the loss of a primary takes a
position back. Never shows the address with its password.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection
from functools import partial
from typing import Any

import msgspec
import pymongo
from pymongo import AsyncMongoClient, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import (
    ConfigurationError,
    DuplicateKeyError,
    InvalidURI,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from headgate.adapters.mongo.reasons import (
    AUTHENTICATION_FAILED,
    UNAUTHORIZED,
    code_of,
    is_away,
    reason_of,
)
from headgate.decide.lane.checkpoints import (
    FIRST_VERSION,
    NOWHERE,
    Checkpoint,
    claimed,
    fenced,
    held_under,
    listed,
    put,
    wanted_ahead,
)
from headgate.errors import Fenced, InvalidConfig, NoPosition, StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import PREFIX
from headgate.model.position import Position, Tally, Tries

COLLECTION = "checkpoints"
TIMEOUT_S = 5.0
"""One call, with the attempts that PyMongo makes while another primary is being elected."""
TRIES = 10
"""Of those that make or reset the same document at the same moment all but one try again."""

Document = dict[str, Any]

_NO_REPLICA_SET = 20


_NOT_WANTED_BACK: Document = {"back_to": {"$in": [None, NOWHERE]}}
"""Documents that lack it have none."""
_OF_TOPICS = {"_id": {"$regex": "/[0-9]+$", "$not": {"$regex": f"^{PREFIX}"}}}
"""Not those of consumer groups."""


class MongoCheckpointStore:
    """Implements ports.checkpoints.CheckpointStore."""

    def __init__(self, url: str, *, database: str, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._client = _client(url)
        self._positions: AsyncCollection[Document] = self._client[database].get_collection(
            COLLECTION,
            write_concern=WriteConcern("majority", j=True),
            read_concern=ReadConcern("majority"),
            read_preference=ReadPreference.PRIMARY,
        )

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        async with self._errors(f"claiming {ref}"):
            if after is not None:
                return await self._claim_from(ref, fence, after)
            for _ in range(TRIES):
                with contextlib.suppress(DuplicateKeyError):
                    return await self._claim(ref, fence)
                # It exists and isn't ours to take, or is to go back, or it was made between looking
                # and making it.
                stored = await self._stored(ref)
                if stored is not None:
                    new = claimed(stored, ref, fence)
                    if await self._replaced(ref, stored, new):
                        return new.position
            raise _contended(ref, "claiming")

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        async with self._errors(f"saving the position of {ref}"):
            found = await self._positions.find_one_and_update(
                {"_id": _key(ref), **_held(fence), "settled": {"$lt": settled}},
                {"$set": {"settled": settled, "tally": msgspec.to_builtins(tally)}},
                {"_id": True},
            )
            # Either somebody else holds it, or the position isn't above the stored one.
            if found is None and (holder := await self._holder(ref)) != fence:
                raise fenced(ref, holder, fence)

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        async with self._errors(f"noting what was tried of {ref}"):
            await self._note(ref, fence, {"tried": msgspec.to_builtins(tried)})

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        async with self._errors(f"stopping {ref}"):
            await self._note(ref, fence, {"stopped": why})

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        async with self._errors(f"resetting the position of {ref}"):
            for _ in range(TRIES):
                stored = await self._stored(ref)
                new = put(stored, ref, fence, settled=settled, resync=resync)
                if await self._replaced(ref, stored, new):
                    return
            raise _contended(ref, "resetting")

    async def put_back(
        self, ref: PartitionRef, settled: int, until: int, *, instead: bool = False
    ) -> None:
        is_first: Document = {"$or": [_NOT_WANTED_BACK, {"back_to": {"$gt": settled}}]}
        async with self._errors(f"putting back the position of {ref}"):
            await self._positions.update_one({"_id": _key(ref)}, {"$max": {"ahead_to": until}})
            await self._positions.update_one(
                {"_id": _key(ref), **({} if instead else is_first)}, {"$set": {"back_to": settled}}
            )
            await self._positions.update_one({"_id": _key(ref)}, {"$set": {"skip_to": 0}})

    async def put_ahead(self, ref: PartitionRef, settled: int) -> None:
        async with self._errors(f"putting ahead the position of {ref}"):
            for _ in range(TRIES):
                stored = await self._stored(ref)
                if await self._replaced(ref, stored, wanted_ahead(stored, settled)):
                    return
            raise _contended(ref, "putting ahead")

    async def of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        ids = {"_id": {"$regex": f"^{re.escape(group_id)}/"}}
        async with self._errors("reading the positions of a group"):
            return {
                _ref(one): listed(partial(_checkpoint, one))
                async for one in self._positions.find(ids)
            }

    async def list(self) -> dict[PartitionRef, Position]:
        async with self._errors("reading the positions"):
            return {
                _ref(one): listed(partial(_checkpoint, one))
                async for one in self._positions.find(_OF_TOPICS)
            }

    async def close(self) -> None:
        await self._client.close()

    async def _claim(self, ref: PartitionRef, fence: Fence) -> Position:
        """Take what is free or below `fence`; DuplicateKeyError when something above it is there.

        A document that doesn't match isn't updated but made, which its `_id` then prevents.
        """
        document = await self._positions.find_one_and_update(
            {"_id": _key(ref), "$or": _at_most(fence), **_NOT_WANTED_BACK},
            {
                "$set": held_under(fence),
                "$setOnInsert": {
                    "topic": ref.topic,
                    "partition": ref.partition,
                    "version": FIRST_VERSION,
                    "settled": 0,
                },
            },
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        assert document is not None, "made when it wasn't there"
        return _checkpoint(document).position

    async def _claim_from(
        self, ref: PartitionRef, fence: Fence, after: Collection[Fence]
    ) -> Position:
        former = [_held(one) for one in after if one <= fence]
        if not former:
            raise fenced(ref, await self._holder(ref), fence)
        document = await self._positions.find_one_and_update(
            {"_id": _key(ref), "$or": former},
            {"$set": held_under(fence)},
            return_document=ReturnDocument.AFTER,
        )
        if document is None:
            raise fenced(ref, await self._holder(ref), fence)
        return _checkpoint(document).position

    async def _note(self, ref: PartitionRef, fence: Fence, what: Document) -> None:
        """Beside the position, which stays where it is."""
        found = await self._positions.find_one_and_update(
            {"_id": _key(ref), **_held(fence)}, {"$set": what}, {"_id": True}
        )
        if found is None:
            raise fenced(ref, await self._holder(ref), fence)

    async def _stored(self, ref: PartitionRef) -> Checkpoint | None:
        found = await self._positions.find_one({"_id": _key(ref)})
        return None if found is None else _checkpoint(found)

    async def _holder(self, ref: PartitionRef) -> Fence | None:
        stored = await self._stored(ref)
        return None if stored is None else stored.fence

    async def _replaced(
        self, ref: PartitionRef, stored: Checkpoint | None, new: Checkpoint
    ) -> bool:
        """False where another call was quicker: a save or a claim in between makes it another
        document than was read."""
        with contextlib.suppress(DuplicateKeyError):
            written = await self._positions.replace_one(
                _place(ref) if stored is None else _as_read(ref, stored),
                _place(ref) | msgspec.to_builtins(new),
                upsert=stored is None,
            )
            return bool(written.matched_count) or written.upserted_id is not None
        return False

    @contextlib.asynccontextmanager
    async def _errors(self, what: str) -> AsyncIterator[None]:
        """Bounds the block in time and says what MongoDB's errors mean."""
        try:
            with pymongo.timeout(self._timeout_s):
                yield
        except Fenced:
            raise
        except PyMongoError as error:
            raise storage_failed(error, what) from error


def _client(url: str) -> AsyncMongoClient[Document]:
    """Connects when it is first used; raises InvalidConfig."""
    # PyMongo would take anything without a scheme for the name of a host.
    if url.startswith(("mongodb://", "mongodb+srv://")):
        with contextlib.suppress(InvalidURI, ConfigurationError, ValueError, TypeError):
            return AsyncMongoClient(url, appname="headgate", retryWrites=True)
    # Without its cause, which quotes the address.
    raise InvalidConfig(
        "mongo.url must be the address of a MongoDB replica set, such as "
        "mongodb://user@host:27017,host2:27017/?replicaSet=name",
        key="mongo.url",
    )


def storage_failed(error: PyMongoError, what: str) -> StorageFailed:
    reason, code = reason_of(error), code_of(error)
    if code in (UNAUTHORIZED, AUTHENTICATION_FAILED):
        advice = f"MongoDB refuses it ({reason}); check the user of mongo.url and its role"
    elif code == _NO_REPLICA_SET:
        advice = "MongoDB runs alone; let mongo.url name a replica set, which may have one member"
    elif is_away(error):
        advice = f"MongoDB can't be reached ({reason}); check mongo.url and that a majority runs"
    else:
        advice = f"MongoDB reports an error ({reason}); check the servers"
    return StorageFailed(f"{what} failed: {advice}", reason=reason)


def _key(ref: PartitionRef) -> str:
    return f"{ref.topic}/{ref.partition}"


def _ref(document: Document) -> PartitionRef:
    """By its key, which is there whatever became of the rest."""
    topic, _, partition = document["_id"].rpartition("/")
    return PartitionRef(topic, int(partition))


def _place(ref: PartitionRef) -> Document:
    return {"_id": _key(ref), "topic": ref.topic, "partition": ref.partition}


def _held(fence: Fence) -> Document:
    """Matches what is held under `fence`. Documents that lack a claimant have none."""
    epoch, window, attempt = fence.numbers
    claimant = fence.claimant or {"$in": [None, ""]}
    return {"epoch": epoch, "window": window, "attempt": attempt, "claimant": claimant}


def _as_read(ref: PartitionRef, stored: Checkpoint) -> Document:
    """Matches while nobody has changed it; only a reset changes none of these."""
    back = _NOT_WANTED_BACK if stored.back_to == NOWHERE else {"back_to": stored.back_to}
    ahead = {"ahead_to": stored.ahead_to or {"$in": [None, 0]}}
    return {"_id": _key(ref), **_held(stored.fence), "settled": stored.settled, **back, **ahead}


def _checkpoint(document: Document) -> Checkpoint:
    try:
        return msgspec.convert(document, Checkpoint)
    except msgspec.ValidationError as error:
        key = document["_id"]
        raise NoPosition(
            f"what MongoDB stores for {key} is no position ({error}); delete the document to start "
            "over",
            key=key,
        ) from error


def _contended(ref: PartitionRef, doing: str) -> StorageFailed:
    return StorageFailed(
        f"{doing} {ref} failed: too many want it at a time; try again", topic=ref.topic
    )


def _at_most(fence: Fence) -> list[Document]:
    """The documents whose fence doesn't bar `fence`."""
    epoch, window, attempt = fence.numbers
    return [
        {"epoch": {"$lt": epoch}},
        {"epoch": epoch, "window": {"$lt": window}},
        {"epoch": epoch, "window": window, "attempt": {"$lt": attempt}},
        _held(Fence(epoch, window, attempt)),
        _held(fence),
    ]
