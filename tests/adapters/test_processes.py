"""Ports that are free, for one process at a time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from headgate.adapters import processes
from headgate.adapters.processes import free_port
from headgate.errors import PortInUse

HOST = "127.0.0.1"


def test_a_port_is_given_out_once_and_can_be_listened_on() -> None:
    ports = [free_port(HOST) for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.create_server((HOST, ports[0])), socket.create_server((HOST, ports[1])):
        pass


def test_a_port_that_somebody_listens_on_is_not_given_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
        with pytest.raises(PortInUse, match=f"from {port} to {port}"):
            free_port(HOST)


def test_a_port_is_nobody_elses_while_the_process_lives_that_got_it() -> None:
    port = free_port(HOST)
    program = (
        "from headgate.adapters import processes\n"
        f"processes.PORTS = range({port}, {port + 1})\n"
        f"print(processes.free_port({HOST!r}))"
    )
    another = [sys.executable, "-c", program]
    refused = subprocess.run(another, capture_output=True, text=True, timeout=60, check=False)
    assert f"all ports from {port} to {port} of {HOST} are in use" in refused.stderr
    os.close(processes._marks.pop())
    given = subprocess.run(another, capture_output=True, text=True, timeout=60, check=True)
    assert given.stdout.strip() == str(port)
