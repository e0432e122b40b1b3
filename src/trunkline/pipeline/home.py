"""Where pipelines keep their state: one directory each, no daemon, no database.

    <home>/<pipeline>/pipeline.json        file, current version; replaced atomically
    <home>/<pipeline>/v<N>/run.lock        locked (flock) by the process that runs this version; its pid
    <home>/<pipeline>/v<N>/progress.json   what it last said of itself; replaced atomically
    <home>/<pipeline>/v<N>/schemas/        inferred schemas, so that a restart does not infer others
    <home>/<pipeline>/v<N>/checkpoints/    Spark's, one per query
    <home>/<pipeline>/v<N>/spark.log       what Spark wrote in the last run, and the trace of what ended it

A version runs if and only if its lock is held: the kernel releases it however the process ends, so a killed run is never
taken for a running one, whatever its pid is reused for. `current` moves when a replay has caught up.

The home is $TRUNKLINE_PIPELINES, or trunkline/pipelines under $XDG_STATE_HOME (~/.local/state).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_VERSION = re.compile(r"v(\d+)")


class HomeError(Exception):
    """The state directory does not allow what was asked; the message says why."""


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    if environ.get("TRUNKLINE_PIPELINES"):
        return Path(environ["TRUNKLINE_PIPELINES"])
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(state) / "trunkline" / "pipelines"


@dataclass(frozen=True)
class VersionHome:
    """The state of one version of a pipeline."""

    directory: Path
    number: int

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def log(self) -> Path:
        return self.directory / "spark.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for as long as the version runs; HomeError if another process does."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "run.lock", "a") as file:
            name = self.directory.parent.name
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HomeError(f"pipeline {name} is running already, as process {self.pid()}") from None
            if not os.path.exists(file.name) or not os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                raise HomeError(f"pipeline {name} was removed at this moment; start it again")
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def running(self) -> bool:
        try:
            with open(self.directory / "run.lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def pid(self) -> int | None:
        """Of the process that holds the lock; of the last one that did, where nobody does."""
        try:
            return int((self.directory / "run.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def progress(self) -> dict[str, Json]:
        return _read(self.directory / "progress.json")

    def write_progress(self, progress: Mapping[str, Json]) -> None:
        _write(self.directory / "progress.json", progress)

    def schema(self, source: str) -> str | None:
        try:
            return (self.directory / "schemas" / source).read_text("utf-8")
        except FileNotFoundError:
            return None

    def keep_schema(self, source: str, schema: str) -> None:
        _replace(self.directory / "schemas" / source, schema)


@dataclass(frozen=True)
class PipelineHome:
    """The state of one pipeline."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    def exists(self) -> bool:
        return (self.directory / "pipeline.json").is_file()

    def current(self) -> int:
        found = _read(self.directory / "pipeline.json").get("version")
        return found if isinstance(found, int) else 1

    def file(self) -> str | None:
        found = _read(self.directory / "pipeline.json").get("file")
        return found if isinstance(found, str) else None

    def keep(self, *, version: int, file: str | None) -> None:
        _write(self.directory / "pipeline.json", {"version": version, "file": file})

    def version(self, number: int) -> VersionHome:
        return VersionHome(self.directory / f"v{number}", number)

    def versions(self) -> list[VersionHome]:
        """Oldest first."""
        if not self.directory.is_dir():
            return []
        found = [match for path in self.directory.iterdir() if (match := _VERSION.fullmatch(path.name))]
        return [self.version(number) for number in sorted(int(match[1]) for match in found)]

    def next_version(self) -> int:
        return max([self.current(), *(item.number for item in self.versions())]) + 1

    def discard(self, number: int) -> None:
        """Remove what an attempt at a version that never became current has left."""
        if number == self.current() or self.version(number).running():
            raise HomeError(f"version {number} of {self.name} is in use")
        shutil.rmtree(self.version(number).directory, ignore_errors=True)

    def remove(self) -> None:
        """Forget the pipeline: checkpoints, schemas, progress. HomeError while one of its versions runs."""
        with contextlib.ExitStack() as held:
            for version in self.versions():
                held.enter_context(version.locked())
            shutil.rmtree(self.directory)


@dataclass(frozen=True)
class Home:
    directory: Path

    def pipeline(self, name: str) -> PipelineHome:
        if name in {"", ".", ".."} or "/" in name:
            raise HomeError(f"{name!r} is no name of a pipeline")
        return PipelineHome(self.directory / name)

    def pipelines(self) -> list[PipelineHome]:
        if not self.directory.is_dir():
            return []
        found = [PipelineHome(path) for path in sorted(self.directory.iterdir()) if path.is_dir()]
        return [item for item in found if item.exists()]


def _read(path: Path) -> dict[str, Json]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise HomeError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise HomeError(f"{path} is damaged: not an object")
    return cast("dict[str, Json]", found)


def _write(path: Path, value: Mapping[str, Json]) -> None:
    _replace(path, json.dumps(value, indent=2))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)
