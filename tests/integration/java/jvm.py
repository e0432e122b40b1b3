"""Java programs for the tests: jars from Maven Central, sources compiled once, one JVM for each run.

`client_classpath` fetches kafka-clients of a given release, and nothing else, into the cache directory that the bench
uses for a whole Apache Kafka; the directory appears by one rename, so that an interrupted download leaves nothing to be
mistaken for a whole one. Sources are compiled into a directory named by the hash of their text beside it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Quick to start rather than quick to run: these programs live for seconds.
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
FETCH_SECONDS = 600.0
COMPILE_SECONDS = 120.0
OUTPUT_TAIL_CHARS = 4000

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>trunkline</groupId>
  <artifactId>kafka-clients-for-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def required(program: str) -> str:
    path = shutil.which(program)
    assert path is not None, f"the Java tests need `{program}` on the PATH (a JDK of release 17, and Maven)"
    return path


def cache() -> Path:
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def client_classpath(version: str) -> str:
    """The jars of kafka-clients of this release and what it needs."""
    complete = cache() / f"kafka-clients-{version}"
    if not complete.is_dir():
        with tempfile.TemporaryDirectory(dir=cache(), prefix="fetching-clients-") as scratch:
            pom = Path(scratch) / "pom.xml"
            pom.write_text(_POM.format(version=version))
            jars = Path(scratch) / "jars"
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
            _run([required("mvn"), "-q", "-B", "-f", str(pom), *goal], FETCH_SECONDS)
            _publish(jars, complete)
    return str(complete / "*")


def compiled(sources: Path, classpath: str) -> Path:
    """The classes of every `.java` file in a folder."""
    files = sorted(sources.glob("*.java"))
    text = classpath.encode() + b"".join(file.read_bytes() for file in files)
    complete = cache() / f"test-classes-{hashlib.sha256(text).hexdigest()[:16]}"
    if not complete.is_dir():
        with tempfile.TemporaryDirectory(dir=cache(), prefix="compiling-") as scratch:
            classes = Path(scratch) / "classes"
            classes.mkdir()
            flags = ["-J-XX:TieredStopAtLevel=1", "-proc:none", "-d", str(classes), "-cp", classpath]
            _run([required("javac"), *flags, *map(str, files)], COMPILE_SECONDS)
            _publish(classes, complete)
    return complete


def java(classpath: str, arguments: Sequence[str], timeout: float, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a main class to its end; the caller judges exit code and output."""
    return subprocess.run(
        [required("java"), *JVM_FLAGS, "-cp", classpath, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _publish(made: Path, complete: Path) -> None:
    try:
        made.rename(complete)
    except OSError:
        # Another worker was faster: its directory is as good as ours.
        assert complete.is_dir()


def _run(command: list[str], timeout: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    said = (done.stdout + done.stderr)[-OUTPUT_TAIL_CHARS:]
    assert done.returncode == 0, f"{command[0]} failed with {done.returncode}: {said}"
