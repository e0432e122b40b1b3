"""Java clients of earlier years: the same program, compiled once for the oldest, run with the jars of each release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.java.jvm import client_classpath, compiled, java
from tests.integration.server import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

OLDEST = "2.1.1"
RELEASES = (OLDEST, "2.8.2", "3.0.2", "3.9.1")
RUN_SECONDS = 120.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("release", RELEASES)
def test_client_of_an_earlier_release(release: str, broker: RunningBroker, unique: Callable[[str], str]) -> None:
    classes = compiled(Path(__file__).parent / "eras", client_classpath(OLDEST))
    name = unique(f"era-{release}")
    done = java(f"{classes}:{client_classpath(release)}", ["Era", broker.bootstrap, name], RUN_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    values = [line.removeprefix("VALUE ") for line in done.stdout.splitlines() if line.startswith("VALUE ")]
    expected = [f"{codec}-{i}" for codec in CODECS for i in range(20)]
    assert values == [*expected, "committed"]
