"""Without a Java that Spark can use, one sentence says what to install and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.pipeline.session import Java, JavaMissing, check_java


def pretend_java(directory: Path, says: str) -> str:
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return str(directory)


def test_no_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"no `java` on the PATH: install it with .*openjdk-17") as caught:
        check_java()
    assert str(caught.value).count("\n") == 0


def test_java_that_is_too_old_is_told_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", pretend_java(tmp_path, 'openjdk version "1.8.0_392"') + ":/usr/bin:/bin")
    with pytest.raises(JavaMissing, match="is Java 8"):
        check_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"there is none in JAVA_HOME={tmp_path}"):
        check_java()


def test_java_17_and_newer_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", pretend_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17') + ":/usr/bin:/bin")
    check_java()


def test_java_that_dies_of_an_archive_does_not_load_it(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text(
        '#!/bin/sh\nfor each; do test "$each" = "-XX:SharedArchiveFile=/cut-off" && kill -ABRT $$; done\n'
    )
    program.chmod(0o755)
    java = Java(str(program), "17")
    assert not java.loads(Path("/cut-off"))
    assert Java("/bin/true", "17").loads(Path("/whole"))
    assert not Java(str(tmp_path / "none"), "17").loads(Path("/whole"))
