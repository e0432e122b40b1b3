"""The pool of open segment files when the process has no descriptor left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trunkline.log.embedded.files import FilePool
from trunkline.log.errors import StorageFailure


class Scarce:
    """`os.open` that fails for want of descriptors as long as too many are open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.most = most
        self.open = 0
        real_open, real_close = os.open, os.close

        def scarce_open(path: str, flags: int, mode: int = 0o777) -> int:
            if self.open >= self.most:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.open += 1
            return real_open(path, flags, mode)

        def scarce_close(fd: int) -> None:
            self.open -= 1
            real_close(fd)

        monkeypatch.setattr(os, "open", scarce_open)
        monkeypatch.setattr(os, "close", scarce_close)


def test_with_no_descriptor_left_the_least_used_file_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scarce = Scarce(monkeypatch, 2)
    pool = FilePool(100)
    for name in ("a", "b", "c"):
        pool.fd(str(tmp_path / name), create=True)
    assert (len(pool), scarce.open) == (2, 2)
    pool.fd(str(tmp_path / "a"))
    pool.close()
    assert scarce.open == 0


def test_a_file_in_use_is_not_closed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = Scarce(monkeypatch, 1)
    pool = FilePool(100)
    pool.fd(str(tmp_path / "a"), create=True)
    pinned = pool.pin(str(tmp_path / "a"))
    with pytest.raises(StorageFailure, match="Too many open files"):
        pool.fd(str(tmp_path / "b"), create=True)
    assert os.fstat(pinned.fd)
    pool.unpin(pinned)
    pool.fd(str(tmp_path / "b"), create=True)
    assert scarce.open == 1
    pool.close()
