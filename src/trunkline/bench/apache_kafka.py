"""A real Apache Kafka on this machine: the peer of the benchmark and the oracle of the integration tests.

    with ApacheKafka() as kafka:
        print(kafka.bootstrap, kafka.start_up_s, kafka.resident_bytes())

The jars come from Maven Central with `mvn dependency:copy-dependencies`, once per version, into
`$XDG_CACHE_HOME/trunkline/apache-kafka-<version>` (default `~/.cache`). They are copied into a directory beside it which is renamed
when it is complete: a download that is interrupted leaves nothing that a later run could take for a whole Kafka, and two
runs at once do not disturb each other.

One node is both broker and controller (KRaft), listens on the loopback only, and keeps its log in `directory` (a
temporary one by default, removed by `stop`). The replication factors of internal topics are 1 because there is one node;
every other setting and every JVM flag is the default of Kafka's own start scripts, except that nothing below an error is
logged. `properties` overrides settings, `heap` the JVM's heap.

Limits: needs Java 17 and Maven on the PATH (KafkaUnavailable says which is missing). A port is found free and then
handed to the JVM; if another process takes it in between, start fails with KafkaUnavailable and can be tried again.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from trunkline.bench.probe import ProbeError, resident_bytes, wait_until_serving

DEFAULT_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
LOG_BINDING_VERSION = "2.25.3"
DOWNLOAD_TIMEOUT_S = 900.0
FORMAT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
OUTPUT_TAIL_CHARS = 2000

JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>trunkline</groupId>
  <artifactId>apache-kafka-for-bench</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_{scala}</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{log_binding}</version></dependency>
  </dependencies>
</project>
"""


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be run here; the message says what is missing or what it said."""


class ApacheKafka:
    """One Kafka node. `start` and `stop`, or `with`. Not restartable after `stop` unless `directory` is given."""

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        directory: Path | None = None,
        heap: str = "1g",
        properties: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        self.version = version
        self.heap = heap
        self.start_up_s = 0.0
        self._properties = dict(properties or {})
        self._quiet = quiet
        self._given_directory = directory
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def address(self) -> str:
        return self.bootstrap

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KafkaUnavailable("Apache Kafka is not running.")
        return self._process.pid

    def start(self) -> None:
        """Fetch the jars if need be, format the directory if it is new, start, and wait until it serves."""
        if self._process is not None:
            raise KafkaUnavailable("Apache Kafka is already running.")
        java = _required("java", "Java 17 or newer")
        jars = fetch_jars(self.version, quiet=self._quiet)
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="trunkline-apache-kafka-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            properties = self._write_properties(self._directory)
            self._format(java, jars, self._directory, properties)
            self._launch(java, jars, self._directory, properties)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask for a clean shutdown, kill if that takes too long, and remove a temporary directory. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None and self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: the directory stays until `stop`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def classpath(self) -> str:
        return classpath(self.version)

    def _write_properties(self, directory: Path) -> Path:
        # A restart keeps its port, so that clients find the node again.
        self._port = self._port or _free_port()
        controller_port = _free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "log"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._properties,
        }
        path = directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _format(self, java: str, jars: Path, directory: Path, properties: Path) -> None:
        if (directory / "log" / "meta.properties").exists():
            return
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", str(jars / "*"), "kafka.tools.StorageTool"]
        result = subprocess.run(
            [*command, "format", "--cluster-id", _random_cluster_id(), "--config", str(properties)],
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0:
            raise KafkaUnavailable(f"Apache Kafka could not format its storage: {_tail(result.stdout + result.stderr)}")

    def _launch(self, java: str, jars: Path, directory: Path, properties: Path) -> None:
        output_path = directory / "output.txt"
        command = [
            java,
            f"-Xmx{self.heap}",
            f"-Xms{self.heap}",
            *JVM_FLAGS,
            "-cp",
            str(jars / "*"),
            "kafka.Kafka",
            str(properties),
        ]
        started = time.monotonic()
        with output_path.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self._process = process
        try:
            wait_until_serving(self.bootstrap, START_TIMEOUT_S, is_alive=lambda: process.poll() is None)
        except ProbeError as error:
            said = _tail(output_path.read_text(errors="replace"))
            raise KafkaUnavailable(f"Apache Kafka did not start: {error}. It said: {said or 'nothing'}") from error
        self.start_up_s = time.monotonic() - started


def classpath(version: str = DEFAULT_VERSION) -> str:
    """What `java -cp` needs to run Kafka's console tools, e.g. org.apache.kafka.tools.ConsoleProducer."""
    return str(fetch_jars(version) / "*")


def fetch_jars(version: str = DEFAULT_VERSION, quiet: bool = False) -> Path:
    """The directory with Kafka's jars, fetched from Maven Central the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"
    complete = cache / f"apache-kafka-{version}"
    if complete.is_dir():
        return complete
    maven = _required("mvn", "Maven")
    _required("java", "Java 17 or newer")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"fetching-{version}-") as scratch_name:
        scratch = Path(scratch_name)
        pom = scratch / "pom.xml"
        pom.write_text(_POM.format(scala=SCALA_VERSION, version=version, log_binding=LOG_BINDING_VERSION))
        if not quiet:
            print(f"Fetching Apache Kafka {version} (about 60 MB, once) …", file=sys.stderr, flush=True)
        started = time.monotonic()
        jars = scratch / "jars"
        result = subprocess.run(
            [
                maven,
                "-q",
                "-B",
                "-f",
                str(pom),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={jars}",
                "-DincludeScope=runtime",
            ],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0 or not jars.is_dir():
            raise KafkaUnavailable(
                f"Apache Kafka {version} could not be fetched with Maven: {_tail(result.stdout + result.stderr)}"
            )
        try:
            jars.rename(complete)
        except OSError:
            # Another process was faster; a non-empty directory is never replaced by a rename.
            if not complete.is_dir():
                raise
        if not quiet:
            print(f"Fetched Apache Kafka {version} in {time.monotonic() - started:.0f} s.", file=sys.stderr, flush=True)
    return complete


def is_available() -> bool:
    """Whether Java and Maven are here, so that a test can be skipped with a reason."""
    return shutil.which("java") is not None and shutil.which("mvn") is not None


def _required(program: str, name: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise KafkaUnavailable(f"Running Apache Kafka needs {name}, but there is no `{program}` on the PATH.")
    return path


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _random_cluster_id() -> str:
    while True:
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        # A leading dash would be read as a flag by the storage tool.
        if not cluster_id.startswith("-"):
            return cluster_id


def _tail(output: str) -> str:
    return output.strip()[-OUTPUT_TAIL_CHARS:]
