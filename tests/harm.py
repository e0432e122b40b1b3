"""Harm to the files of a stopped broker, as a disk, a file system or a hand could do it; hypothesis makes it up.

A harm names a file by its number among those of the directory, and places in it by fractions of its size, so that the same
harm can be done to any directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

KINDS = ("flip", "zero", "garbage", "cut", "remove", "swap")


class Harm(NamedTuple):
    kind: str
    file: int
    place: float
    size: int
    mask: int


class Done(NamedTuple):
    """What was done: the range of the file that is not what it was. It ends at the file's end when the file was cut."""

    path: Path
    start: int
    end: int


harms = st.lists(
    st.builds(
        Harm,
        st.sampled_from(KINDS),
        st.integers(0, 10_000),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from((1, 4, 20, 61, 200, 1500)),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=4,
)


def do_harm(directory: Path, files: list[Path], harm: Harm) -> list[Done]:
    """Damage one of the files (two, to swap them); returns what is not as it was."""
    path = directory / files[harm.file % len(files)]
    if not path.exists():
        return []
    content = bytearray(path.read_bytes())
    start = int(harm.place * len(content))
    end = min(len(content), start + harm.size)
    if harm.kind == "remove":
        path.unlink()
        return [Done(path, 0, len(content))]
    if harm.kind == "swap":
        return _swap(path)
    if harm.kind == "cut":
        os.truncate(path, start)
        return [Done(path, start, len(content))]
    for position in range(start, end if harm.kind != "flip" else min(start + 1, len(content))):
        content[position] = 0 if harm.kind == "zero" else content[position] ^ harm.mask
    path.write_bytes(content)
    return [Done(path, start, end)]


def _swap(path: Path) -> list[Done]:
    """Exchange the file with the next one of its kind in its directory."""
    others = sorted(other for other in path.parent.iterdir() if other.suffix == path.suffix and other > path)
    if not others:
        return []
    other = others[0]
    aside = path.with_name("swapped")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)
    return [Done(path, 0, 1 << 60), Done(other, 0, 1 << 60)]
