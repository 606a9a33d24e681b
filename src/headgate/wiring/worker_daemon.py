"""What Spark forks a router's Python workers from: its own daemon, with the lanes' code loaded.

So that code is loaded once, not once per worker. Spark runs this module as a program.

Invariant: no thread runs when Spark's daemon begins, because a fork leaves it behind and whatever
it held locked. What starts threads when it is imported (numpy, pyarrow) mustn't come in here.
"""

from __future__ import annotations

import headgate.wiring.lanes  # noqa: F401  # loaded, for all that are forked from here
from headgate.spark.starting.forks import serve_forks

if __name__ == "__main__":
    serve_forks()
