"""What a client says of who it is, and where it gets that from.

A token is a text, or a function that returns one each time it is asked, at once or after a while.
Invariants: what is known is said until a server refuses it or it is about to end; then it is asked
for anew, once for all that wait for it. A function that fails is like a server that is away: asking
again may help. A token is never part of an error, nor of a repr, and nor is what a function says.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from headgate import errors

Token = str | Callable[[], str | Awaitable[str]]

ASK_TIMEOUT_S = 30.0


class Credentials:
    def __init__(self, token: Token) -> None:
        self._token = token
        self._known: str | None = None
        self._asking = asyncio.Lock()

    @property
    def can_renew(self) -> bool:
        return not isinstance(self._token, str)

    async def current(self) -> str:
        """What to say now. Raises NotNow where the function fails, and Timeout."""
        if isinstance(self._token, str):
            return self._token
        async with self._asking:
            if self._known is None:
                self._known = await _asked(self._token)
            return self._known

    async def renewed(self, instead_of: str) -> str:
        """Another one, where there is a way to get one; else the same."""
        self.forget(instead_of)
        return await self.current()

    def forget(self, token: str) -> None:
        """It isn't good any more: the next one who needs one asks anew."""
        if self._known == token:
            self._known = None


def credentials(token: Token | None) -> Credentials | None:
    return None if token is None else Credentials(token)


def took_too_long(limit_s: float) -> errors.Timeout:
    return errors.Timeout(f"the function for the token took over {limit_s:g} s; try again")


async def _asked(ask: Callable[[], str | Awaitable[str]]) -> str:
    limit = asyncio.timeout(ASK_TIMEOUT_S)
    try:
        async with limit:
            found = ask()
            token = await found if inspect.isawaitable(found) else found
    except errors.HeadgateError:
        raise
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_unwanted():
            raise
        if limit.expired():
            raise took_too_long(ASK_TIMEOUT_S) from error
        kind = type(error).__name__  # what it says may have a secret in it
        raise errors.NotNow(f"the function for the token failed: {kind}") from error
    if not isinstance(token, str):
        raise errors.InvalidRequest(
            f"the function for the token returned {type(token).__name__}, not a text"
        )
    return token


def _is_unwanted() -> bool:
    """Whether it is this task that is cancelled, and not one that the function waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
