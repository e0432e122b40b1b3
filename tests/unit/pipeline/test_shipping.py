"""The package in one file, as it is sent to the workers of a Spark cluster: imported from there, without being installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import trunkline

SOURCES = Path(trunkline.__file__).parents[1]
PACKAGES = ("trunkline", "pyspark_trunkline")
# What the workers need: the source is found, and a reader, a writer and the codecs under them can be imported.
USE = """
import sys
sys.path.insert(0, sys.argv[1])
import pkgutil
assert "pyspark_trunkline" in {module.name for module in pkgutil.iter_modules()}
import pyspark_trunkline, trunkline
from trunkline.pipeline import columns, encoding, sink, source
assert pyspark_trunkline.DefaultSource.name() == "trunkline"
for module in (trunkline, columns, encoding, sink, source):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
from trunkline.log.batch import HEADER_BYTES, NewRecord, build_batch, parse_header
batch = build_batch([NewRecord(b"k", b"v", [], 0)])
builder = columns.ColumnBuilder(True)
builder.add(parse_header(batch), batch, HEADER_BYTES, 0, 1)
assert builder.take().rows == 1
print("imported")
"""


def pack(target: Path) -> Path:
    """What a wheel has in it: also the compiled modules, which cannot be loaded from an archive."""
    with zipfile.ZipFile(target, "w") as archive:
        for package in PACKAGES:
            for path in sorted((SOURCES / package).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    archive.write(path, path.relative_to(SOURCES))
    return target


@pytest.mark.parametrize("name", ["trunkline-0.1.0-cp311-cp311-linux_x86_64.whl", "trunkline.zip"])
def test_the_package_is_imported_from_a_file(tmp_path: Path, name: str) -> None:
    packed = pack(tmp_path / name)
    # -S passes over the files of editable installs, so that nothing but the archive has the package.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", USE, str(packed)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "imported\n", done.stderr
