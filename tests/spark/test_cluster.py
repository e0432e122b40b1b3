"""A Spark cluster whose workers have no Trunkline installed: the package comes with the job, as one file.

The master and the worker are in the driver's JVM and the executor has one of its own (`local-cluster`). Python is started without
the files of editable installs, so that nothing but the archive has the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, make_topic, values_of
from tests.unit.pipeline.test_shipping import pack
from trunkline.client.client import Client
from trunkline.pipeline.session import check_java, quick_java_options

RUN_SECONDS = 280.0
DRIVER = """
import sys
archive, broker, topic, target, java = sys.argv[1:]
sys.path.insert(0, archive)
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local-cluster[1,1,512]").config("spark.executor.memory", "512m")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "512m").config("spark.driver.extraJavaOptions", java)
spark = builder.config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.addPyFile(archive)
from trunkline.pipeline.datasource import TrunklineDataSource
spark.dataSource.register(TrunklineDataSource)
places = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("trunkline").__file__).collect()
rows = spark.read.format("trunkline").option("bootstrap", broker).option("subscribe", topic).load()
rows.select("key", "value").write.format("trunkline").option("bootstrap", broker).option("topic", target).mode("append").save()
print(places[0])
spark.stop()
"""


@pytest.mark.timeout(300)
def test_the_package_can_be_sent_to_the_workers_with_the_job(
    broker: ServerProcess, client: Client, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, target = make_topic(client, unique("from"), 2), make_topic(client, unique("to"))
    feed(client, topic, [b"%d" % number for number in range(50)])
    archive = pack(tmp_path / "trunkline.zip")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    # A home of its own, because Spark's worker keeps its files in there.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    environment = {
        **os.environ,
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    java = " ".join(quick_java_options(check_java()))
    done = subprocess.run(
        [str(python), "-c", DRIVER, str(archive), broker.bootstrap, topic, target, java],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "trunkline.zip" in done.stdout
    assert sorted(values_of(client, target), key=int) == [b"%d" % number for number in range(50)]
