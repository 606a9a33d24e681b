"""The listening socket of every server: made here, so that a port in use is an error with a
sentence, and port 0 yields the port that was bound."""

from __future__ import annotations

import errno
import socket

from headgate import errors

BACKLOG = 1_024


def listen(host: str, port: int, *, setting: str = "") -> socket.socket:
    """A listening, non-blocking socket; PortInUse when the port is taken.

    `setting` is the config key of the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by what is accepted: an answer in two writes must not wait 40 ms for the
        # acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(error, host, port, setting) from error
    return listener


def _cannot_listen(error: OSError, host: str, port: int, setting: str) -> errors.OperatorError:
    remedy = f" or set {setting}" if setting else ""
    if error.errno == errno.EADDRINUSE:
        return errors.PortInUse(
            f"port {port} on {host} is in use; stop what listens there{remedy}",
            host=host,
            port=port,
        )
    reason = error.strerror or str(error)
    return errors.OperatorError(
        f"cannot listen on {host}:{port}: {reason}; choose another address{remedy}",
        host=host,
        port=port,
    )
