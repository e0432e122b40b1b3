"""CRC-32C, the checksum of a record batch: the function of the package `crc32c`, without the rest of that package.

Importing the package also imports its command line and, to learn its own version, the metadata of installed packages with
all that reads those: argparse, email, zipfile. That would be a tenth of a broker's start-up. Its extension module alone has
what is needed here. A package that is laid out otherwise is imported as usual.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Protocol, cast

_PACKAGE, _EXTENSION = "crc32c", "crc32c._crc32c"


class Checksum(Protocol):
    """The checksum of a buffer, going on from that of what came before it."""

    def __call__(self, data: bytes | bytearray | memoryview, before: int = 0, /) -> int: ...


def _extension() -> ModuleSpec | None:
    package = PathFinder.find_spec(_PACKAGE)
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)


def _load() -> ModuleType:
    spec = _extension()
    if spec is None or spec.loader is None:
        return import_module(_PACKAGE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c_of = cast(Checksum, _load().crc32c)
