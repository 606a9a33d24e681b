"""How a client's connection ends, whatever carries it: once, by its owner, its peer or silence."""

from __future__ import annotations

import asyncio

from headgate.ports.connection import LinkListener


class Watched:
    """What every ports.connection.Link has. A gateway says something far more often than every
    `silence_s`: silence means that nobody is there. What hears anything counts `heard_frames`."""

    def __init__(self, listener: LinkListener, silence_s: float) -> None:
        super().__init__()
        self._listener = listener
        self._silence_s = silence_s
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self.heard_frames = 0
        self.is_paused = False

    def abort(self) -> None:
        raise NotImplementedError

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._silence_s, self._look, self.heard_frames)

    def _look(self, heard: int) -> None:
        """One that isn't read can't be heard either."""
        if self.heard_frames == heard and not self.is_paused:
            self._lose()
        else:
            self._watch()

    def _lose(self) -> None:
        self.abort()
        self._listener.lost()

    def _end(self) -> bool:
        """Whether it wasn't over before."""
        was_over, self._over = self._over, True
        if not was_over and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return not was_over
