"""Spark's own Kafka connector: the peer of our source and sink, and a client that must work with us unchanged.

Its jars come from Maven Central with `mvn`, once, into `$XDG_CACHE_HOME/trunkline/spark-kafka-<version>` (default
`~/.cache`), which appears by one rename when it is complete. The release is that of the installed PySpark where Maven has
it. Where it does not, the nearest earlier one is taken that works with it (`FALLBACK`), each jar by its own version, because
a repository may also lack what the connector depends on; `Connector.version` says which one it is, and whoever prints
figures prints it too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCALA_VERSION = "2.13"
FETCH_TIMEOUT_S = 600.0
OUTPUT_TAIL_CHARS = 1000

_ARTIFACT = f"spark-sql-kafka-0-10_{SCALA_VERSION}"
FALLBACK_VERSION = "4.2.0"
FALLBACK = (
    ("org.apache.spark", _ARTIFACT, FALLBACK_VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>trunkline</groupId>
  <artifactId>spark-kafka-connector</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class ConnectorUnavailable(Exception):
    """Spark's Kafka connector cannot be fetched here; the message says why."""


@dataclass(frozen=True, slots=True)
class Connector:
    version: str
    jars: tuple[Path, ...]

    @property
    def conf(self) -> dict[str, str]:
        """What a session needs to know `format("kafka")`."""
        return {"spark.jars": ",".join(str(jar) for jar in self.jars)}


def fetch_connector(spark_version: str) -> Connector:
    """The connector for this release of Spark, or the nearest that there is."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"
    for version in (spark_version, FALLBACK_VERSION):
        complete = cache / f"spark-kafka-{version}"
        if complete.is_dir():
            return Connector(version, tuple(sorted(complete.glob("*.jar"))))
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorUnavailable("Fetching Spark's Kafka connector needs Maven, but there is no `mvn` on the PATH.")
    cache.mkdir(parents=True, exist_ok=True)
    own = _DEPENDENCY.format("org.apache.spark", _ARTIFACT, spark_version, "")
    each = "".join(_DEPENDENCY.format(*artifact, _ALONE) for artifact in FALLBACK)
    reasons = []
    for version, dependencies in ((spark_version, own), (FALLBACK_VERSION, each)):
        complete = cache / f"spark-kafka-{version}"
        try:
            _fetch(maven, dependencies, cache, complete)
            return Connector(version, tuple(sorted(complete.glob("*.jar"))))
        except ConnectorUnavailable as error:
            reasons.append(f"{version}: {error}")
    raise ConnectorUnavailable(f"Spark's Kafka connector could not be fetched. {' '.join(reasons)}")


def _fetch(maven: str, dependencies: str, cache: Path, complete: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-spark-kafka-") as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(_POM.format(dependencies=dependencies))
        jars = Path(scratch) / "jars"
        goal: Sequence[str] = ("dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime")
        try:
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(pom), *goal],
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConnectorUnavailable(f"mvn was not done in {FETCH_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not jars.is_dir():
            said = (done.stdout + done.stderr).strip()
            first = next((line for line in said.splitlines() if "ERROR" in line), said)
            raise ConnectorUnavailable(first[:OUTPUT_TAIL_CHARS])
        try:
            jars.rename(complete)
        except OSError:
            # Another process was faster: its directory is as good as ours.
            if not complete.is_dir():
                raise
