"""Compiles the frame codecs with mypyc, next to their sources.

    python tools/compile_codecs.py [--force | --report | --check]

With `--force` they are compiled even if they are up to date; with `--report` it only says what is the case, and with
`--check` it also fails where they could have been compiled and are not.

The modules are those of `trunkline.compiled.MODULES`. Without a C compiler, or without mypy, nothing is compiled, the
exit code is 0 all the same and the plain modules are used: they are the same source. What was compiled is noted with a
checksum of the sources in `src/trunkline/compiled.<interpreter>.txt`; when a source changes afterwards, Trunkline ignores
the compiled modules until they are made again. What another interpreter has compiled stays as it is.

Everything is built in a temporary directory and then renamed into place, so that a broker that runs meanwhile keeps the
files that it has mapped. The note goes first and comes back last: whoever starts in between gets the plain modules.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).resolve().parent.parent
GROUP = "trunkline_codecs"
NO_COMPILER = "no C compiler"
NO_HEADERS = "no Python headers"


class _Compiled(Protocol):
    MODULES: tuple[str, ...]
    checksum: Callable[[str], str]
    note_of: Callable[[str], str]


def _load_compiled(root: Path) -> _Compiled:
    """`trunkline.compiled` by its path: a build has the package's source, not the package."""
    spec = importlib.util.spec_from_file_location("_compiled", root / "src" / "trunkline" / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(_Compiled, module)


def why_not() -> str | None:
    """The reason that nothing can be compiled here, or None."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return NO_COMPILER
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return NO_HEADERS
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"no {module}"
    return None


def _suffix() -> str:
    """Of this interpreter's extension modules."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def _note(root: Path) -> Path:
    return root / "src" / "trunkline" / _load_compiled(root).note_of(_suffix())


def made_files(root: Path) -> list[str]:
    """What the last compilation for this interpreter left, relative to `src`: the note and the files that it names."""
    note = _note(root)
    return [note.relative_to(root / "src").as_posix(), *note.read_text().splitlines()[1:]] if note.exists() else []


def up_to_date(root: Path) -> bool:
    note = _note(root)
    if not note.exists():
        return False
    checksum, *files = note.read_text().splitlines()
    return checksum == _load_compiled(root).checksum(str(root / "src" / "trunkline")) and all(
        (root / "src" / name).exists() for name in files
    )


def compile_to(root: Path, target: Path) -> list[str]:
    """Compile the codecs of the tree at `root` into an empty folder; returns the files there, the note first."""
    compiled = _load_compiled(root)
    checksum = compiled.checksum(str(root / "src" / "trunkline"))
    with tempfile.TemporaryDirectory(prefix="trunkline-codecs-") as scratch:
        _run_mypyc(compiled.MODULES, root / "src", Path(scratch))
        library = Path(scratch) / "lib"
        made = [path.relative_to(library).as_posix() for path in sorted(library.rglob("*" + _suffix()))]
        shutil.copytree(library, target, dirs_exist_ok=True)
    note = _note(root).relative_to(root / "src")
    (target / note).write_text("\n".join([checksum, *made]) + "\n")
    return [note.as_posix(), *made]


def compile_into(root: Path) -> None:
    """Compile the codecs of the tree at `root` beside their sources."""
    with tempfile.TemporaryDirectory(prefix="trunkline-codecs-") as built:
        note, *made = compile_to(root, Path(built))
        (root / "src" / note).unlink(missing_ok=True)
        for name in [*made, note]:
            place = root / "src" / name
            beside = place.with_name(f".{place.name}.new")
            shutil.copy2(Path(built) / name, beside)
            os.replace(beside, place)


def _run_mypyc(modules: tuple[str, ...], sources: Path, scratch: Path) -> None:
    """In a process of its own: mypyc and setuptools write to standard output and exit when they fail.

    That process searches where this one does, since an isolated build has its tools on a path of its own, but not by
    PYTHONPATH, which would also decide where mypy looks for the sources.
    """
    paths = [module.replace(".", "/") + ".py" for module in modules]
    program = f"""
import sys
sys.path.extend({[entry for entry in sys.path if entry]!r})
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
from mypyc.build import mypycify
extensions = mypycify({["--config-file=", "--strict", "--follow-imports=silent", "--ignore-missing-imports", *paths]!r},
    opt_level="3", debug_level="0", group_name={GROUP!r}, target_dir={str(scratch / "c")!r})
command = build_ext(Distribution({{"name": "trunkline", "ext_modules": extensions}}))
command.build_lib = {str(scratch / "lib")!r}
command.build_temp = {str(scratch / "o")!r}
command.ensure_finalized()
command.run()
"""
    environment = {**os.environ, "MYPY_CACHE_DIR": str(scratch / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=sources, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"mypyc failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def main(arguments: list[str]) -> int:
    reason = why_not()
    if "--report" in arguments or "--check" in arguments:
        compiled, excused = up_to_date(ROOT), reason in {NO_COMPILER, NO_HEADERS}
        plain = reason if excused else "they could not be compiled"
        print(f"==> frame codecs: {'compiled' if compiled else f'plain Python ({plain})'}")
        return int("--check" in arguments and not compiled and not excused)
    if reason is not None:
        print(f"==> {reason}: using plain Python for the frame codecs")
        return 0
    if up_to_date(ROOT) and "--force" not in arguments:
        return 0
    print("==> compiling the frame codecs (half a minute)", flush=True)
    try:
        compile_into(ROOT)
    except RuntimeError as error:
        print(f"{error}\n==> the frame codecs could not be compiled: using plain Python for them")
        return 1 if "--force" in arguments else 0
    print("==> compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
