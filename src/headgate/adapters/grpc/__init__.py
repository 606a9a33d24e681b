"""gRPC, for control streams and deliveries.

A process that was forked off has nothing of gRPC but its memory, and must leave that alone. gRPC's
own handlers start threads there, which crash it where a thread was inside gRPC at the fork; with an
open stream one always is. So they are off, unless somebody has asked for them. That is settled when
gRPC is loaded, and programs that this process starts don't inherit it.
"""

import os

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

if _FORK_SUPPORT not in os.environ:
    os.environ[_FORK_SUPPORT] = "0"
    import grpc.aio

    del os.environ[_FORK_SUPPORT]
