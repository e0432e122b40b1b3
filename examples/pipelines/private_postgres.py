"""A PostgreSQL of one's own: a fresh cluster in a temporary directory, on a free port of the loopback interface.

`wal_level=logical`, so that its changes can be followed. PostgreSQL refuses to run as root; started by root, it runs as
the user `postgres` that its package brings. Nothing is shared with a PostgreSQL that this machine may serve, and nothing
is left: `close` stops the server (pid kept, no search by name) and removes the directory. It is for examples and tests:
no passwords, no fsync.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg2

START_SECONDS = 60.0
STOP_SECONDS = 30.0
SUPERUSER = "trunkline"
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "max_connections": "20",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
    "shared_buffers": "16MB",
}


class PostgresUnavailable(RuntimeError):
    """There is no PostgreSQL to start; the message says what to install."""


class PrivatePostgres:
    """`with PrivatePostgres() as postgres: psycopg2.connect(postgres.dsn)`."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._directory = Path(tempfile.mkdtemp(prefix="trunkline-postgres-"))
        self._user = _unprivileged_user()
        self._server: subprocess.Popen[bytes] | None = None
        self._log = self._directory / "server.log"
        self.port = _free_port()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={SUPERUSER} dbname=postgres"

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user={SUPERUSER}"

    def _start(self) -> None:
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self._directory, entry.pw_uid, entry.pw_gid)
        data = self._directory / "data"
        made = subprocess.run(
            [self._programs / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            cwd=self._directory,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise PostgresUnavailable(f"initdb failed: {made.stderr.strip()}")
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [self._programs / "postgres", "-D", data, "-p", str(self.port), "-k", self._directory, *settings],
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
                cwd=self._directory,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                stdout=log,
                stderr=log,
            )
        self._await_ready()

    def _await_ready(self) -> None:
        assert self._server is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg2.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg2.OperationalError as error:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise PostgresUnavailable(f"PostgreSQL did not start: {error}{self._log.read_text()}") from None
            time.sleep(0.05)

    def close(self) -> None:
        if self._server is not None:
            self._server.send_signal(2)  # SIGINT: end the sessions, then stop
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _programs() -> Path:
    """Where initdb and postgres are: Debian keeps them beside the path, one directory per version."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    found = shutil.which("initdb")
    if found:
        candidates.append(Path(found).resolve().parent)
    for directory in reversed(candidates):
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise PostgresUnavailable(
        "change data capture needs PostgreSQL 10 or newer, and none is installed. On Debian: apt-get install postgresql"
    )


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise PostgresUnavailable(
        "PostgreSQL does not run as root, and there is no user postgres: run this as another user"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
