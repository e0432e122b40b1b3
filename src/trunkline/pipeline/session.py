"""A local Spark session that is set up as our source and sink like it, and one sentence for who has no Java.

Whoever has a session already does not need this: `format("trunkline")` works in any. What it sets: the interpreter of the
workers is this one, in local mode they are forked with their imports done (see `worker_daemon`), the driver listens on the loopback, the
Arrow batches that Python sinks get hold more rows, and checkpoints are written the quick way (a rename per file, no
checksum files), which saves a stream tens of milliseconds per batch. The quick start of the JVM (`quick_start`) trades
speed in the long run for seconds at the beginning: for tests and examples. A write without a mode appends (see `save_mode`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trunkline.pipeline.class_archive import ClassArchive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_JAVA_TIMEOUT_S = 30.0
_ON_THIS_MACHINE = re.compile(r"local(\[.*\])?")
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

WITHOUT_JAVA = (
    f"Spark needs Java {MIN_JAVA} or newer and {{problem}}: install it with `sudo apt-get install openjdk-17-jre-headless` "
    "(Debian, Ubuntu), `brew install openjdk@17` (macOS) or from https://adoptium.net, and set JAVA_HOME if it is not "
    "on the PATH."
)


class JavaMissing(Exception):
    """There is no Java that Spark can run on; the message says what to install, and how."""


class Java(NamedTuple):
    program: str
    version: str
    """What `java -version` says."""

    def loads(self, archive: Path) -> bool:
        """Whether it starts with this archive of classes, all of which it reads: a file that was cut off kills a JVM."""
        quiet = ["-Xlog:disable", "-XX:ErrorFile=/dev/null", "-XX:-CreateCoredumpOnCrash"]
        command = [self.program, *quiet, "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}", "-version"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_JAVA_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def check_java() -> Java:
    """The Java that Spark will use; raises JavaMissing unless it is new enough."""
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
    return Java(program, done.stderr + done.stdout)


def quick_java_options(java: Java) -> list[str]:
    """Flags with which a JVM starts sooner and, in the long run, computes slower. It says nothing but errors: what it
    thinks of its class archive would go to standard output, which may be parsed."""
    import pyspark

    archive = ClassArchive(_cache(), Path(pyspark.__file__).parent, java.version, java.loads)
    quiet = ["-Xlog:disable", "-Xlog:all=error:stderr"]
    return ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *quiet, *archive.java_options()]


def local_session(
    name: str = "trunkline",
    *,
    master: str = "local[2]",
    heap: str = "1g",
    conf: Mapping[str, str] | None = None,
    quick_start: bool = False,
) -> SparkSession:
    """A Spark session in this process; raises JavaMissing."""
    java = check_java()
    from pyspark.sql import SparkSession

    from trunkline.pipeline.save_mode import append_by_default

    append_by_default()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # A query starts half a dozen Python processes; without bytecode each compiles PySpark anew, for seconds.
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_cache() / "bytecode"))
    flags = quick_java_options(java) if quick_start else []
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
        "spark.driver.extraJavaOptions": " ".join(flags),
    }
    if _ON_THIS_MACHINE.fullmatch(master):
        # Elsewhere the package may come with the job: it is not yet there when the workers' parent process starts.
        settings["spark.python.daemon.module"] = "trunkline.pipeline.worker_daemon"
    settings.update(conf or {})
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "trunkline"
