"""A server that a benchmark or a test runs as a child: started in a directory of its own, stopped with all that it left.

    with SomeServer() as server:
        print(server.address, server.start_up_s, server.resident_bytes())

A subclass gives its `product`, the exception that says why it cannot be run (`unavailable`), and `_launch`, which calls
`_run` with a command and a function that waits until the server answers. What the server prints goes to `output_path`; its
end is in the message when the start fails. The directory is a temporary one, removed by `stop`, unless one was given;
then the server can be started again in it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from trunkline.bench.probe import ProbeError, resident_bytes

LOOPBACK = "127.0.0.1"
OUTPUT_TAIL_CHARS = 2000

IsAlive = Callable[[], bool]


class ServerProcess(ABC):
    """One server; `start` and `stop`, or `with`."""

    product: ClassVar[str]
    unavailable: ClassVar[type[Exception]] = ProbeError
    stop_timeout_s: ClassVar[float] = 30.0

    def __init__(self, directory: Path | None = None) -> None:
        self.start_up_s = 0.0
        self._given_directory = directory
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise self.unavailable(f"{self.product} is not running.")
        return self._process.pid

    @property
    def output_path(self) -> Path:
        if self._directory is None:
            raise self.unavailable(f"{self.product} was never started.")
        return self._directory / "output.txt"

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def pause(self) -> None:
        """Let it do nothing until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def start(self) -> None:
        """Start, and wait until it serves."""
        if self._process is not None:
            raise self.unavailable(f"{self.product} is already running.")
        directory = self._given_directory
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix=f"trunkline-{self.product.lower().replace(' ', '-')}-"))
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        try:
            self._launch(directory)
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def _launch(self, directory: Path) -> None:
        """Write what the server needs into its directory and `_run` it."""

    def _run(
        self,
        command: Sequence[str],
        wait: Callable[[IsAlive], None],
        *,
        environment: Mapping[str, str] | None = None,
        started: float | None = None,
    ) -> None:
        """Run the server until `wait` returns. `started` is when the start began, if something else came first."""
        started = time.monotonic() if started is None else started
        with self.output_path.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self._directory,
            )
        self._process = process
        try:
            wait(lambda: process.poll() is None)
        except ProbeError as error:
            said = self.output_path.read_text(errors="replace").strip()[-OUTPUT_TAIL_CHARS:]
            raise self.unavailable(f"{self.product} did not start: {error}. It said: {said or 'nothing'}") from error
        self.start_up_s = time.monotonic() - started

    def stop(self) -> None:
        """Ask for a clean shutdown, kill if that takes too long, and remove a temporary directory. Safe to call twice."""
        process, self._process = self._process, None
        end(process, self.stop_timeout_s)
        if self._directory is not None and self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: the directory stays until `stop`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def end(process: subprocess.Popen[bytes] | None, timeout_s: float) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)  # it may be paused
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port
