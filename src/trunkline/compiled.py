"""Which modules are compiled, and whether the compiled ones are used.

Frame codecs and record iteration run once per message; they are typed Python that `tools/compile_codecs.py`, or the
build of a wheel, compiles with mypyc into extension modules beside the sources. Python prefers an extension module to a
source file of the same name, so using them needs nothing; what needs doing is the opposite:

- `TRUNKLINE_PURE=1` in the environment asks for the plain modules;
- a source that was edited after compiling must not be shadowed by what it was. The note that compiling leaves has a
  checksum of all sources, and compiled modules are used only when it matches. It is all or none: compiled modules know
  the layout of each other's objects.

Each interpreter has its own note and its own modules, told apart by the suffix of its extension modules, so that several
may use one checkout.

Both are the same source, so they behave the same; the tests run on both. This is imported with the package, before
anything else: it imports nothing that the interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys
from binascii import crc32
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from types import ModuleType

MODULES = (
    "trunkline.log.records",
    "trunkline.routing.ladder",
    "trunkline.routing.rule_tree",
    "trunkline.pipeline.columns",
    "trunkline.pipeline.encoding",
    "trunkline.broker.messaging.typed_values",
    "trunkline.protocols.amqp.properties",
    "trunkline.protocols.amqp.frames",
    "trunkline.protocols.amqp.parser",
    "trunkline.protocols.amqp.codec",
    "trunkline.protocols.stomp.codec",
    "trunkline.protocols.mqtt.values",
    "trunkline.protocols.mqtt.properties",
    "trunkline.protocols.mqtt.packets",
    "trunkline.protocols.mqtt.parser",
    "trunkline.protocols.mqtt.codec",
)
PURE_VARIABLE = "TRUNKLINE_PURE"


def checksum(package: str) -> str:
    """Of the sources of all modules; `package` is the folder of `trunkline`."""
    total = 0
    for module in MODULES:
        with open(source_of(package, module), "rb") as source:
            total = crc32(source.read(), total)
    return f"{total:08x}"


def note_of(suffix: str) -> str:
    """The file with the checksum and then the files that compiling made, for the interpreter with this suffix."""
    return f"compiled{suffix.rpartition('.')[0]}.txt"


def source_of(package: str, module: str) -> str:
    return os.path.join(os.path.dirname(package), *module.split(".")) + ".py"


def usable(package: str) -> bool:
    """Whether compiled modules are here, for this interpreter, and made from the sources as they are."""
    if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
        return False
    try:
        with open(os.path.join(package, note_of(EXTENSION_SUFFIXES[0])), encoding="utf-8") as note:
            noted = note.readline().strip()
        return noted == checksum(package)
    except (OSError, UnicodeDecodeError):
        return False


class PlainFinder:
    """Finds the listed modules in their source files, whatever lies beside them."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        source = source_of(self._package, name)
        spec = ModuleSpec(name, SourceFileLoader(name, source), origin=source)
        spec.has_location = True
        return spec


def choose() -> bool:
    """Make imports take the plain modules unless the compiled ones are usable; returns whether they are."""
    package = os.path.dirname(os.path.abspath(__file__))
    if usable(package):
        return True
    if not os.path.isdir(package):
        return False  # in an archive: extension modules are not found there, and sources not by this finder
    sys.meta_path.insert(0, PlainFinder(package))
    return False
