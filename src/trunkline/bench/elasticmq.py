"""A real ElasticMQ on this machine: the peer of the SQS benchmark.

    with ElasticMQ() as elasticmq:
        print(elasticmq.address, elasticmq.start_up_s, elasticmq.resident_bytes())

The jars come from Maven Central, once per version, into the user's cache directory, as those of Apache Kafka do. Settings are its
defaults, on a free port of the loopback, except that only warnings are logged. It keeps its messages in memory.

Limits: needs Java 17 and Maven on the PATH (ElasticMQUnavailable says which is missing).
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trunkline.bench.probe import EXCHANGE_TIMEOUT_S, ProbeError, wait_until_serving
from trunkline.bench.server_process import LOOPBACK, OUTPUT_TAIL_CHARS, ServerProcess, free_port

DEFAULT_VERSION = "1.6.14"
SCALA_VERSION = "2.13"
DOWNLOAD_TIMEOUT_S = 900.0
START_TIMEOUT_S = 60.0

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>trunkline</groupId>
  <artifactId>elasticmq-for-bench</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.elasticmq</groupId><artifactId>elasticmq-server_{scala}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""
_CONFIGURATION = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "{host}", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "{host}", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


class ElasticMQUnavailable(Exception):
    """ElasticMQ cannot be run here; the message says what is missing or what it said."""


class ElasticMQ(ServerProcess):
    product = "ElasticMQ"
    unavailable = ElasticMQUnavailable

    def __init__(self, version: str = DEFAULT_VERSION, directory: Path | None = None, heap: str = "1g") -> None:
        super().__init__(directory)
        self.version = version
        self.heap = heap
        self._port = 0

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    def _launch(self, directory: Path) -> None:
        java = _required("java", "Java 17 or newer")
        jars = fetch_jars(self.version)
        self._port = self._port or free_port()
        configuration = directory / "elasticmq.conf"
        configuration.write_text(_CONFIGURATION.format(host=LOOPBACK, port=self._port))
        command = [java, f"-Xmx{self.heap}", f"-Xms{self.heap}", f"-Dconfig.file={configuration}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]  # fmt: skip
        self._run(
            [*command, "-cp", str(jars / "*"), "org.elasticmq.server.Main"],
            lambda is_alive: wait_until_serving(self.address, START_TIMEOUT_S, is_alive, greet),
        )


def greet(address: str) -> None:
    """Ask for the list of queues, and raise unless there is one."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=EXCHANGE_TIMEOUT_S)
    try:
        headers = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
        connection.request("POST", "/", "{}", headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ProbeError(f"the answer is {answer.status}")
    except http.client.HTTPException as error:
        raise ProbeError(f"the answer is no HTTP: {error}") from error
    finally:
        connection.close()


def fetch_jars(version: str = DEFAULT_VERSION) -> Path:
    """The directory with ElasticMQ's jars, fetched from Maven Central the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"
    complete = cache / f"elasticmq-{version}"
    if complete.is_dir():
        return complete
    maven = _required("mvn", "Maven")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"fetching-elasticmq-{version}-") as scratch_name:
        scratch = Path(scratch_name)
        (scratch / "pom.xml").write_text(_POM.format(scala=SCALA_VERSION, version=version))
        print(f"Fetching ElasticMQ {version} (about 60 MB, once) …", file=sys.stderr, flush=True)
        jars = scratch / "jars"
        command = [maven, "-q", "-B", "-f", str(scratch / "pom.xml"), "dependency:copy-dependencies"]
        result = subprocess.run(
            [*command, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0 or not jars.is_dir():
            said = (result.stdout + result.stderr).strip()[-OUTPUT_TAIL_CHARS:]
            raise ElasticMQUnavailable(f"ElasticMQ {version} could not be fetched with Maven: {said}")
        try:
            jars.rename(complete)
        except OSError:  # another process was faster
            if not complete.is_dir():
                raise
    return complete


def _required(program: str, name: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ElasticMQUnavailable(f"Running ElasticMQ needs {name}, but there is no `{program}` on the PATH.")
    return path
