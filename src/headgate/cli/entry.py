"""Where the `headgate` command begins.

Until a command is loaded, Ctrl-C ends the process as it does any program that doesn't ask: nothing
has begun that would have to end in order. As an exception it would be a traceback out of whatever
is imported at that moment, or nothing at all: pydantic swallows one while it makes a model.
"""

from __future__ import annotations

import signal


def run() -> None:
    """The entry point of the `headgate` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and isn't ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headgate.cli import main

    main.run()
