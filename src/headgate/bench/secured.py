"""What it takes to measure the same roles with credentials.

Beside the roles of a benchmark, which ask for none, stand others that ask: both get the same load
in turns, and their ratio says what asking costs. Nothing of it is kept: tokens are made for the
run.
"""

from __future__ import annotations

import asyncio

from headgate import errors
from headgate.adapters.machine import THIS_MACHINE
from headgate.bench.result import Failed
from headgate.client.credentials import Credentials
from headgate.client.http import HttpClient
from headgate.config import Config
from headgate.model.access_api import CreatedToken, CreateToken
from headgate.model.api import Health

TOKEN_BYTES = 32
KNOWN_WITHIN_S = 30.0
LOOK_EVERY_S = 0.02


def with_administrator(config: Config) -> Config:
    """`config` with an administrator, so that everybody has to say who they are, and with a cluster
    token, so that roles do."""
    security = config.security
    cluster = security.cluster.model_copy(update={"tokens": THIS_MACHINE.token(TOKEN_BYTES)})
    guarded = {"admin_token": THIS_MACHINE.token(TOKEN_BYTES), "cluster": cluster}
    return config.model_copy(update={"security": security.model_copy(update=guarded)})


def administrator(config: Config) -> Credentials | None:
    """Those of the administrator; None where callers need none."""
    return Credentials(config.security.admin_token) if config.security.is_on else None


async def token_for(url: str, admin: Credentials, *grants: str) -> str:
    """An API token with these grants, as an administrator makes it."""
    async with HttpClient(url, credentials=admin) as client:
        made = await client.post("/v1/tokens", CreateToken("bench", list(grants)), CreatedToken)
    return made.token


async def known_at(url: str, token: str) -> None:
    """Returns when the node there has heard of the token: a known principal without a grant is
    refused with 403, and an unknown one with 401."""
    async with HttpClient(url, credentials=Credentials(token)) as client:
        try:
            async with asyncio.timeout(KNOWN_WITHIN_S):
                while True:
                    try:
                        await client.get("/v1/settings", Health)
                    except errors.Forbidden:
                        return
                    except errors.HeadgateError:
                        await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            raise Failed(f"{url} has not heard of a token within {KNOWN_WITHIN_S:g} s") from error
