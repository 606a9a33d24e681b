"""The MongoDB deployment that a connector reads: one client, from the first call on.

Invariant: every command ends within a bound, goes to the primary (or to one and the same mongos,
which has the cursor), and fails with one of Headgate's errors that holds no secret, unless the
caller asks for MongoDB's own. The address with its secrets is in PyMongo's client and nowhere else.
Secrets that the server refused are looked up anew by the next command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote_plus

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import NetworkTimeout, OperationFailure, PyMongoError
from pymongo.read_preferences import ReadPreference
from pymongo.server_description import ServerDescription

from headgate.adapters.mongo.asking import within
from headgate.adapters.mongo.bson_json import CODEC, Document
from headgate.adapters.mongo.origin_errors import WRONG_CREDENTIALS, origin_error
from headgate.decide.connectors.mongo_settings import REFERENCE, MongoSettings, user_info
from headgate.errors import HeadgateError, InvalidConfig, OriginRefused

SELECTION_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_MS = 5_000
HEARTBEAT_MS = 5_000
"""A network that swallows everything is noticed after this and a connect's timeout."""
ANSWER_TIMEOUT_MS = 60_000
SEARCH_TIMEOUT_MS = 3_600_000
"""For what is next in a stream. A server that has to look through a long oplog for the changes of
one collection says nothing before it has found some or is through: some 100,000 entries a second.
Who gave up before that would ask for the same again, for ever. A server that is gone is noticed by
its heartbeat."""
CLOSE_TIMEOUT_S = 5.0
"""For leave that is taken of a server, which notices in time also where it hears nothing."""

Resolve = Callable[[str], str]
"""From a reference, `NAME` or `file:PATH`, to the secret; raises InvalidConfig."""


class Deployment:
    """Connects with the first command."""

    def __init__(self, settings: MongoSettings, resolve: Resolve) -> None:
        self.settings = settings
        self._resolve = resolve
        self._secrets: tuple[str, ...] = ()
        self._client: AsyncMongoClient[Document] | None = None
        self._refused = False
        self._version: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Deployment({self.settings.uri!r})"

    async def session(self) -> AsyncClientSession:
        """What belongs together: a cursor, and what is done with it."""
        return (await self._connected()).start_session()

    async def command(
        self, database: str, command: Document, session: AsyncClientSession | None = None
    ) -> Document:
        """MongoDB's answer, or PyMongo's error: `error` says what that means."""
        client = await self._connected()
        # PyMongo knows one bound for all commands, which is that of a search.
        is_search = "getMore" in command
        try:
            return await within(
                None if is_search else ANSWER_TIMEOUT_MS / 1_000,
                client[database].command(
                    command,
                    read_preference=ReadPreference.PRIMARY,
                    codec_options=CODEC,
                    session=session,
                ),
            )
        except TimeoutError as error:
            raise NetworkTimeout(f"no answer within {ANSWER_TIMEOUT_MS} ms") from error
        except OperationFailure as error:
            self._refused = error.code in WRONG_CREDENTIALS
            raise

    async def version(self) -> tuple[int, ...]:
        """Of the server that answers; asked for once."""
        if self._version is None:
            answer = await self.command("admin", {"buildInfo": 1})
            self._version = tuple(answer["versionArray"][:3])
        return self._version

    def error(self, error: Exception) -> HeadgateError:
        """The error to raise from `error`, for a reader of changes."""
        if isinstance(error, HeadgateError):
            return error
        return origin_error(error, self.settings, self._secrets)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            await within(CLOSE_TIMEOUT_S, client.close())
        except TimeoutError:
            await client.close()  # which has no sessions left to tell the server of

    async def _connected(self) -> AsyncMongoClient[Document]:
        if self._refused:
            await self.close()
            self._refused = False
        if self._client is None:
            uri, self._secrets = resolved(self.settings.uri, self._resolve)
            try:
                self._client = AsyncMongoClient(
                    uri,
                    appname="headgate",
                    serverSelectionTimeoutMS=SELECTION_TIMEOUT_MS,
                    connectTimeoutMS=CONNECT_TIMEOUT_MS,
                    socketTimeoutMS=SEARCH_TIMEOUT_MS,
                    heartbeatFrequencyMS=HEARTBEAT_MS,
                    # PyMongo would overwrite how long a getMore waits for changes.
                    timeoutMS=None,
                    server_selector=_always_the_same,
                )
            except (PyMongoError, ValueError, TypeError) as error:
                # Without its cause, which quotes the address.
                raise self.error(error) from None
        return self._client


def resolved(uri: str, resolve: Resolve) -> tuple[str, tuple[str, ...]]:
    """The address with its secrets in place, and these. In the place of a user or a password they
    are taken as they are: what must be escaped there is escaped here."""
    start, end = user_info(uri)
    secrets: list[str] = []
    parts: list[str] = []
    behind = 0
    for found in REFERENCE.finditer(uri):
        try:
            secret = resolve(found[1])
        except InvalidConfig as error:
            raise OriginRefused(error.message, **error.details) from None
        escaped = quote_plus(secret) if start <= found.start() < end else secret
        secrets += (secret, escaped)
        parts += (uri[behind : found.start()], escaped)
        behind = found.end()
    # A reference that is the whole address holds a password of which we know no more.
    inner_start, inner_end = user_info(text := "".join((*parts, uri[behind:])))
    password = text[inner_start:inner_end].partition(":")[2]
    known = {one for one in (*secrets, password) if one}
    return text, tuple(sorted(known, key=len, reverse=True))


def _always_the_same(servers: Sequence[ServerDescription]) -> list[ServerDescription]:
    """Of several mongos the same one: no other has the cursor."""
    return sorted(servers, key=lambda one: one.address)[:1]
