"""How far a lane is with its partitions and with its window, and why it ends. All its parts go by
that, and any of them may say it.

Invariant: neither ends twice, and what is said after its end changes no reason.
"""

from __future__ import annotations

from headgate.lane.life import HOLD, WINDOW, Awaited, Hold, HoldEvent, Window, WindowEvent


class Course:
    def __init__(self) -> None:
        self.hold = Awaited(HOLD)
        self.window = Awaited(WINDOW)
        self.reason = ""
        """Why the window, or the lane, has ended."""

    @property
    def has_begun(self) -> bool:
        return self.hold.state in (Hold.READING, Hold.ENDING)

    def hand_over(self, reason: str) -> None:
        """The window is over, and the lane goes on until its successor has taken over."""
        if self.window.state is not Window.OVER:
            self.reason = reason
            self.window.meets(WindowEvent.HANDS_OVER)

    def end(self, reason: str) -> None:
        if self.hold.state in (Hold.WAITING, Hold.RESTING, Hold.READING):
            self.reason = reason
        self.hold.meets(HoldEvent.ENDS)

    async def ends(self) -> None:
        """Returns once it does."""
        await self.hold.reaches(Hold.ENDING, Hold.GIVING_UP)
