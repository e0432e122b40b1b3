"""A real Apache Kafka on this machine: the peer of the benchmark and the oracle of the integration tests.

    with ApacheKafka() as kafka:
        print(kafka.bootstrap, kafka.start_up_s, kafka.resident_bytes())

The jars come from Maven Central with `mvn dependency:copy-dependencies`, once per version, into
`$XDG_CACHE_HOME/trunkline/apache-kafka-<version>` (default `~/.cache`). They are copied into a directory beside it which is renamed
when it is complete: a download that is interrupted leaves nothing that a later run could take for a whole Kafka, and two
runs at once do not disturb each other.

One node is both broker and controller (KRaft), listens on the loopback only, and keeps its log in `directory` (a
temporary one by default, removed by `stop`). The replication factors of internal topics are 1 because there is one node,
its session with itself is long because it may be paused, and what is deleted goes at once; every other setting and every
JVM flag is the default of Kafka's own start scripts, except that nothing below an error is logged. `properties` overrides settings, `heap` the JVM's heap.

Limits: needs Java 17 and Maven on the PATH (KafkaUnavailable says which is missing). A port is found free and then
handed to the JVM; if another process takes it in between, start fails with KafkaUnavailable and can be tried again.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from trunkline.bench.probe import wait_until_serving
from trunkline.bench.server_process import LOOPBACK, OUTPUT_TAIL_CHARS, ServerProcess, free_port

DEFAULT_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
LOG_BINDING_VERSION = "2.25.3"
DOWNLOAD_TIMEOUT_S = 900.0
FORMAT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0

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


class ApacheKafka(ServerProcess):
    """One Kafka node. It can be started again after `stop` when `directory` is given."""

    product = "Apache Kafka"
    unavailable = KafkaUnavailable

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        directory: Path | None = None,
        heap: str = "1g",
        properties: Mapping[str, str] | None = None,
        quiet: bool = False,
        certificates: Path | None = None,
    ) -> None:
        """With `certificates`, a directory of `trunkline tls self-signed`, `address` is a listener over TLS."""
        super().__init__(directory)
        self._certificates = certificates
        self._tls_port = 0
        self.version = version
        self.heap = heap
        self._properties = dict(properties or {})
        self._quiet = quiet
        self._port = 0

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def address(self) -> str:
        return self.bootstrap if self._certificates is None else f"{LOOPBACK}:{self._tls_port}"

    def classpath(self) -> str:
        return classpath(self.version)

    def _write_properties(self, directory: Path) -> Path:
        # A restart keeps its port, so that clients find the node again.
        self._port = self._port or free_port()
        controller_port = free_port()
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
            "broker.session.timeout.ms": "600000",  # it may be paused
            # Deleted topics give their memory back now, not a minute later in the middle of another measurement.
            "log.segment.delete.delay.ms": "0",
            **self._properties,
        }
        if self._certificates is not None:
            settings |= self._tls_properties(directory, settings)
        path = directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _tls_properties(self, directory: Path, settings: Mapping[str, str]) -> dict[str, str]:
        assert self._certificates is not None
        self._tls_port = self._tls_port or free_port()
        own = directory / "own.pem"
        own.write_text("".join((self._certificates / name).read_text() for name in ("server.key", "server.pem")))
        return {
            "listeners": f"{settings['listeners']},SSL://127.0.0.1:{self._tls_port}",
            "advertised.listeners": f"{settings['advertised.listeners']},SSL://127.0.0.1:{self._tls_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
        }

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

    def _launch(self, directory: Path) -> None:
        """Fetch the jars if need be, format the directory if it is new, start."""
        java = _required("java", "Java 17 or newer")
        jars = fetch_jars(self.version, quiet=self._quiet)
        properties = self._write_properties(directory)
        self._format(java, jars, directory, properties)
        memory = [f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        self._run(
            [java, *memory, *JVM_FLAGS, "-cp", str(jars / "*"), "kafka.Kafka", str(properties)],
            lambda is_alive: wait_until_serving(self.bootstrap, START_TIMEOUT_S, is_alive=is_alive),
        )


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


def _random_cluster_id() -> str:
    while True:
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        # A leading dash would be read as a flag by the storage tool.
        if not cluster_id.startswith("-"):
            return cluster_id


def _tail(output: str) -> str:
    return output.strip()[-OUTPUT_TAIL_CHARS:]
