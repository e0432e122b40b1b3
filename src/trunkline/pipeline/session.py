"""A local Spark session that is set up as our source and sink like it, and one sentence for who has no Java.

Whoever has a session already does not need this: `format("trunkline")` works in any. What it sets: the interpreter of the
workers is this one, the driver listens on the loopback, the Arrow batches that Python sinks get hold more rows, and
checkpoints are written the quick way (a rename per file, no checksum files), which saves a stream tens of milliseconds per
batch. The quick start of the JVM (`quick_start`) trades speed in the long run for seconds at the beginning: for tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_JAVA_TIMEOUT_S = 30.0
_ARCHIVE_SETTLED_S = 10.0
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

WITHOUT_JAVA = (
    f"Spark needs Java {MIN_JAVA} or newer and {{problem}}: install it with `sudo apt-get install openjdk-17-jre-headless` "
    "(Debian, Ubuntu), `brew install openjdk@17` (macOS) or from https://adoptium.net, and set JAVA_HOME if it is not "
    "on the PATH."
)


class JavaMissing(Exception):
    """There is no Java that Spark can run on; the message says what to install, and how."""


def check_java() -> None:
    """Raise JavaMissing unless `java` is new enough for Spark."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None or not os.path.exists(program):
        where = f"there is none in JAVA_HOME={home}" if home else "there is no `java` on the PATH"
        raise JavaMissing(WITHOUT_JAVA.format(problem=where))
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(WITHOUT_JAVA.format(problem=f"{program} does not run ({error})")) from error
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found.group(1)) < MIN_JAVA:
        version = found.group(1) if found else "of an unknown version"
        raise JavaMissing(WITHOUT_JAVA.format(problem=f"{program} is Java {version}"))


def local_session(
    name: str = "trunkline",
    *,
    master: str = "local[2]",
    heap: str = "1g",
    conf: Mapping[str, str] | None = None,
    quick_start: bool = False,
) -> SparkSession:
    """A Spark session in this process; raises JavaMissing."""
    check_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # A query starts half a dozen Python processes; without bytecode each compiles PySpark anew, for seconds.
        os.environ.setdefault("PYTHONPYCACHEPREFIX", os.path.join(_cache(), "bytecode"))
    java = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_archive_flags()] if quick_start else []
    settings = {
        "spark.driver.memory": heap,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # How long Python may take to answer the JVM: on a busy machine longer than Spark's 15 seconds.
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.driver.extraJavaOptions": " ".join(java),
        **(conf or {}),
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _archive_flags() -> list[str]:
    """Let the JVM keep the classes that it has read, so that the next start need not read them again.

    Java 17 writes such an archive as it exits. It is used once it has not changed for a while; a file that was cut off
    is of no use to a JVM, and of no harm.
    """
    from pyspark import __file__ as spark_file
    from pyspark import __version__ as spark_version

    # An archive holds for one class path only: each installation has its own.
    place = zlib.crc32(os.path.dirname(spark_file).encode())
    archive = os.path.join(_cache(), f"spark-{spark_version}-{place:08x}.jsa")
    written = archive + ".new"
    os.makedirs(os.path.dirname(archive), exist_ok=True)
    try:
        if not os.path.exists(archive) and time.time() - os.stat(written).st_mtime > _ARCHIVE_SETTLED_S:
            os.replace(written, archive)
    except OSError:
        pass  # there is none yet, or another process was faster
    if os.path.exists(archive):
        return [f"-XX:SharedArchiveFile={archive}"]
    return [] if os.path.exists(written) else [f"-XX:ArchiveClassesAtExit={written}"]


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "trunkline")
