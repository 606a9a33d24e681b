"""gRPC, for control streams and deliveries.

A process that was forked off has nothing of gRPC but its memory, and must leave that alone. gRPC's
own handlers start threads there, which crash it where a thread was inside gRPC at the fork; with an
open stream one always is. So they are off, unless the user has asked for them. That is settled when
gRPC is loaded, and programs that this process starts don't inherit it.
"""

import os

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_environ = os.environ  # noqa: TID251 - what gRPC reads there is no setting of ours

if _FORK_SUPPORT not in _environ:
    _environ[_FORK_SUPPORT] = "0"
    import grpc.aio  # noqa: F401 - which reads it

    del _environ[_FORK_SUPPORT]
