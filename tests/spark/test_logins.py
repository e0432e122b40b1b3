"""The source and the sink log in as a Kafka client is told to."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from tests.integration.security.conftest import secured
from tests.integration.security.secured import PASSWORDS, Secured

__all__ = ["secured"]  # a fixture


def test_rows_are_written_and_read_over_tls(
    spark: SparkSession,
    secured: Secured,
    unique: Callable[[str], str],
) -> None:
    topic = unique("topic")
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="{PASSWORDS["admin"]}";'
    options = {
        "kafka.bootstrap.servers": secured.at("kafka-tls"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": secured.ca,
    }
    rows = spark.createDataFrame([("k", "one"), ("k", "two")], "key string, value string")
    rows.write.format("trunkline").options(**options).option("topic", topic).mode("append").save()
    found = spark.read.format("trunkline").options(**options).option("subscribe", topic).load()
    assert sorted(bytes(row.value) for row in found.collect()) == [b"one", b"two"]
