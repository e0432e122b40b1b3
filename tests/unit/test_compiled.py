"""Compiled and plain codecs: the same tests pass on both, and edited sources are never shadowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path

import pytest

import trunkline
from tools import compile_codecs
from trunkline import compiled

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(trunkline.__file__).parent
NOTE = compiled.note_of(EXTENSION_SUFFIXES[0])
OTHER_SUFFIX = ".cpython-39-other.so"
CODEC_TESTS = [
    "tests/unit/log/test_records.py",
    "tests/unit/amqp/test_codec_frames.py",
    "tests/unit/amqp/test_codec_values.py",
    "tests/unit/mqtt/test_codec.py",
    "tests/unit/mqtt/test_codec_oracles.py",
]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder with the sources, and the note that says that they were compiled as they are."""
    monkeypatch.delenv(compiled.PURE_VARIABLE, raising=False)
    package = tmp_path / "trunkline"
    for module in compiled.MODULES:
        copy = Path(compiled.source_of(str(package), module))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled.source_of(str(PACKAGE), module), copy)
    (package / NOTE).write_text(f"{compiled.checksum(str(package))}\n")
    return package


def test_modules_compiled_from_these_sources_are_used(tree: Path) -> None:
    assert compiled.usable(str(tree))


def test_an_edited_source_is_not_shadowed(tree: Path) -> None:
    source = Path(compiled.source_of(str(tree), compiled.MODULES[-1]))
    source.write_text(source.read_text() + "# edited\n")
    assert not compiled.usable(str(tree))


def test_modules_compiled_for_another_interpreter_are_not_used(tree: Path) -> None:
    (tree / NOTE).rename(tree / compiled.note_of(OTHER_SUFFIX))
    assert not compiled.usable(str(tree))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, with a compiler that leaves files without content in place of mypyc."""

    def run_mypyc(modules: tuple[str, ...], sources: Path, scratch: Path) -> None:
        for module in ("trunkline_codecs__mypyc", *modules):
            made = scratch / "lib" / (module.replace(".", "/") + str(sysconfig.get_config_var("EXT_SUFFIX")))
            made.parent.mkdir(parents=True, exist_ok=True)
            made.touch()

    monkeypatch.setattr(compile_codecs, "_run_mypyc", run_mypyc)
    root = tmp_path / "checkout"
    shutil.copytree(PACKAGE, root / "src" / "trunkline", ignore=shutil.ignore_patterns("*.so", "compiled*.txt"))
    return root


def test_interpreters_side_by_side_keep_what_they_have_compiled(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_codecs.compile_into(checkout)
    mine = compile_codecs.made_files(checkout)
    assert len(mine) == len(compiled.MODULES) + 2
    with monkeypatch.context() as other:
        other.setattr(sysconfig, "get_config_var", {"EXT_SUFFIX": OTHER_SUFFIX}.get)
        assert not compile_codecs.up_to_date(checkout)
        compile_codecs.compile_into(checkout)
        assert compile_codecs.up_to_date(checkout)
        assert not set(compile_codecs.made_files(checkout)) & set(mine)
    assert compile_codecs.up_to_date(checkout)
    assert compile_codecs.made_files(checkout) == mine
    assert compiled.usable(str(checkout / "src" / "trunkline"))


def test_compiling_for_a_wheel_leaves_the_checkout_alone(checkout: Path, tmp_path: Path) -> None:
    before = sorted(checkout.rglob("*"))
    files = compile_codecs.compile_to(checkout, tmp_path / "wheel")
    assert sorted(checkout.rglob("*")) == before
    assert files[0] == f"trunkline/{NOTE}"
    assert all((tmp_path / "wheel" / name).exists() for name in files)
    assert (tmp_path / "wheel" / files[0]).read_text().splitlines()[1:] == files[1:]


def test_the_environment_asks_for_plain_modules(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.PURE_VARIABLE, "1")
    assert not compiled.usable(str(tree))
    monkeypatch.setenv(compiled.PURE_VARIABLE, "0")
    assert compiled.usable(str(tree))


def test_without_a_note_nothing_is_compiled(tree: Path) -> None:
    (tree / NOTE).unlink()
    assert not compiled.usable(str(tree))


def test_plain_modules_are_found_in_their_sources_only() -> None:
    finder = compiled.PlainFinder(str(PACKAGE))
    for module in compiled.MODULES:
        spec = finder.find_spec(module)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        assert spec.origin == compiled.source_of(str(PACKAGE), module)
    assert finder.find_spec("trunkline.app") is None


def test_codecs_in_use_are_what_is_said() -> None:
    for module in compiled.MODULES:
        __import__(module)
        used = sys.modules[module].__file__
        assert used is not None
        assert used.endswith(".py") != trunkline.CODECS_COMPILED


@pytest.mark.slow
@pytest.mark.skipif(not trunkline.CODECS_COMPILED, reason="the codecs in use are the plain ones already")
def test_plain_codecs_pass_the_same_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *CODEC_TESTS],
        cwd=ROOT,
        env={**os.environ, compiled.PURE_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
