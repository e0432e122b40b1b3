"""The archive of Spark's classes is taken when it is whole, and whatever is wrong with it costs nothing but time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trunkline.pipeline import class_archive
from trunkline.pipeline.class_archive import ABANDONED_S, MAX_ARCHIVES, SETTLED_S, ClassArchive

WRITE, USE = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="
WHOLE = b"the classes"
CUT_OFF = b"the cl"


def loads(file: Path) -> bool:
    return file.read_bytes() == WHOLE


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def archive(cache: Path, tmp_path: Path) -> ClassArchive:
    return ClassArchive(cache, tmp_path / "pyspark", "17.0.1", loads)


def written_by(archive: ClassArchive) -> Path:
    """Where the JVM of these options writes."""
    (option,) = archive.java_options()
    assert option.startswith(WRITE)
    return Path(option.removeprefix(WRITE))


def age(path: Path, by_s: float = 2 * SETTLED_S) -> None:
    before = path.stat().st_mtime - by_s
    os.utime(path, (before, before))


def test_what_a_jvm_has_written_is_used_once_it_does_not_change(archive: ClassArchive) -> None:
    new = written_by(archive)
    new.write_bytes(WHOLE)
    assert archive.java_options() == [], "it may still be written"
    age(new)
    assert archive.java_options() == [f"{USE}{archive.path}"]
    assert not new.exists()


def test_two_processes_that_start_together_write_files_of_their_own(archive: ClassArchive, cache: Path) -> None:
    files = [written_by(archive), written_by(archive)]
    assert files[0] != files[1]
    for new in files:
        new.write_bytes(WHOLE)
        age(new)
    assert archive.java_options() == [f"{USE}{archive.path}"]
    assert list(cache.iterdir()) == [archive.path], "one is the archive, the other is gone"


def test_a_file_that_was_cut_off_is_removed_and_written_again(archive: ClassArchive) -> None:
    for content in (CUT_OFF, b""):
        new = written_by(archive)
        new.write_bytes(content)
        age(new)
        assert written_by(archive) != new
        assert not new.exists()


def test_another_java_or_spark_has_another_archive_and_the_oldest_go(cache: Path, tmp_path: Path) -> None:
    archives = [
        ClassArchive(cache, tmp_path / "pyspark", f"17.0.{number}", loads) for number in range(MAX_ARCHIVES + 1)
    ]
    archives.append(ClassArchive(cache, tmp_path / "other" / "pyspark", "17.0.0", loads))
    for archive in archives:
        new = written_by(archive)
        new.write_bytes(WHOLE)
        age(new)
        assert archive.java_options() == [f"{USE}{archive.path}"]
        age(archive.path)
    assert {path.name for path in cache.iterdir()} == {item.path.name for item in archives[-MAX_ARCHIVES:]}


def test_a_file_of_an_installation_that_is_gone_is_removed(cache: Path, archive: ClassArchive, tmp_path: Path) -> None:
    gone = ClassArchive(cache, tmp_path / "elsewhere", "17.0.1", loads)
    left = written_by(gone)
    left.write_bytes(WHOLE)
    age(left)
    written_by(archive)
    assert left.exists(), "it may still be taken"
    age(left, ABANDONED_S)
    written_by(archive)
    assert not left.exists()


def test_a_cache_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ClassArchive(tmp_path / "file" / class_archive.__name__, tmp_path, "17", loads).java_options() == []
