"""A client's token, and where it comes from.

A token is a text, or a function that returns one each time it is asked, at once or after a while.
Invariants: what is known is said until a server refuses it or it is about to end; then it is asked
for anew, once for all that wait for it. A function that fails is like a server that is away: asking
again may help. One that blocks holds nobody's loop, and not more than one thread. A token is never
part of an error, nor of a repr, and nor is what a function says.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial

from headgate import errors
from headgate.client.defaults import THIS_MACHINE
from headgate.ports.machine import Machine
from headgate.tasks import Crew

Token = str | Callable[[], str | Awaitable[str]]

ASK_TIMEOUT_S = 30.0


class Credentials:
    def __init__(self, token: Token, machine: Machine = THIS_MACHINE) -> None:
        self._token = token
        self._machine = machine
        self._known: str | None = None
        self._asking = asyncio.Lock()
        self._crew = Crew("token")
        self._at_work: asyncio.Task[Callable[[], object]] | None = None
        """A call of a function that may block."""

    @property
    def can_renew(self) -> bool:
        return not isinstance(self._token, str)

    async def current(self) -> str:
        """What to say now. Raises NotNow where the function fails, and Timeout."""
        if isinstance(self._token, str):
            return self._token
        async with self._asking:
            if self._known is None:
                self._known = await self._asked(self._token)
            return self._known

    async def renewed(self, instead_of: str) -> str:
        """Another token, where there is a way to get one; else the same."""
        self.forget(instead_of)
        return await self.current()

    def forget(self, token: str) -> None:
        """The token isn't good any more: the next call that needs one asks anew."""
        if self._known == token:
            self._known = None

    async def close(self) -> None:
        """Wait for no function any more; one that blocks goes on by itself, and holds nobody up."""
        await self._crew.close()

    async def _asked(self, ask: Callable[[], str | Awaitable[str]]) -> str:
        limit = asyncio.timeout(ASK_TIMEOUT_S)
        try:
            async with limit:
                found = ask() if _is_asynchronous(ask) else await self._returned(ask)
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
            kind = type(error).__name__  # its message may have a secret in it
            raise errors.NotNow(f"the function for the token failed: {kind}") from error
        if not isinstance(token, str):
            raise errors.InvalidRequest(
                f"the function for the token returned {type(token).__name__}, not a text"
            )
        return token

    async def _returned(self, ask: Callable[[], object]) -> object:
        """What `ask` returns or raises, which may block. While a call is at work whose caller has
        stopped waiting, no other one begins: the next caller gets its outcome."""
        if self._at_work is None:
            work = partial(copy_context().run, _outcome, ask)
            self._at_work = self._crew.start("asking", self._machine.offload(work))
        at_work = self._at_work
        await asyncio.wait([at_work])
        self._at_work = None
        return at_work.result()()


def credentials(token: Token | None, machine: Machine = THIS_MACHINE) -> Credentials | None:
    return None if token is None else Credentials(token, machine)


def took_too_long(limit_s: float) -> errors.Timeout:
    return errors.Timeout(f"the function for the token took over {limit_s:g} s; try again")


def _is_asynchronous(ask: Callable[[], object]) -> bool:
    return inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(
        getattr(ask, "__call__", None)  # noqa: B004 - an object's own
    )


def _outcome(ask: Callable[[], object]) -> Callable[[], object]:
    """Returns or raises what `ask` does, whatever that is, where it is called."""
    try:
        found = ask()
    except BaseException as error:  # noqa: BLE001 - raised at the call that waits for it
        return partial(_raise, error)
    return lambda: found


def _raise(error: BaseException) -> None:
    raise error


def _is_unwanted() -> bool:
    """Whether it is this task that is cancelled, and not one that the function waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
