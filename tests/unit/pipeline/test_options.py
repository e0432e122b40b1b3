"""The options of source and sink: those of Spark's Kafka source and sink are understood, or passed over with one warning."""

from __future__ import annotations

import warnings

import pytest

from trunkline.client.login import NOBODY, Login, Tls
from trunkline.pipeline.datasource import TrunklineDataSource
from trunkline.pipeline.options import OptionError, sink_options, source_options

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
SOURCE = {**BROKER, "subscribe": "orders"}


def test_a_typical_reader_of_the_kafka_source_needs_only_another_format() -> None:
    found = source_options(
        {
            **SOURCE,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "includeHeaders": "true",
            "minPartitions": "4",
            "maxOffsetsPerTrigger": "1000",
            "minOffsetsPerTrigger": "100",
            "maxTriggerDelay": "5m",
            "kafkaConsumer.pollTimeoutMs": "120000",
            "kafka.request.timeout.ms": "40000",
            "kafka.isolation.level": "read_uncommitted",
            "kafka.security.protocol": "PLAINTEXT",
            "groupIdPrefix": "notebook",
            "kafka.group.id": "notebook",
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "100",
            "kafka.max.poll.records": "500",
        }
    )
    assert (found.min_offsets_per_trigger, found.max_trigger_delay_ms) == (100, 300_000)
    assert (found.stall_timeout_ms, found.request_timeout_ms, found.committed) == (120_000, 40_000, False)
    assert set(found.passed_over) == {
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafka.group.id",
        "kafka.max.poll.records",
    }


def test_a_typical_writer_of_the_kafka_sink_needs_only_another_format() -> None:
    found = sink_options(
        {
            **BROKER,
            "topic": "out",
            "kafka.acks": "all",
            "kafka.compression.type": "zstd",
            "kafka.transaction.timeout.ms": "60000",
            "kafka.linger.ms": "5",
        }
    )
    assert (found.compression, found.transaction_timeout_ms, found.passed_over) == (
        "zstd",
        60_000,
        ("kafka.linger.ms",),
    )
    (weaker,) = sink_options({**BROKER, "kafka.acks": "1"}).passed_over
    assert weaker.startswith("kafka.acks")


def test_our_own_names_win_over_kafkas() -> None:
    found = sink_options({**BROKER, "compression": "lz4", "kafka.compression.type": "gzip"})
    assert found.compression == "lz4"


def test_what_is_passed_over_is_said_once() -> None:
    source = TrunklineDataSource({**SOURCE, "kafka.group.id": "g", "groupIdPrefix": "p"})
    with pytest.warns(UserWarning, match=r"no use for the options groupIdPrefix, kafka\.group\.id") as said:
        source.schema()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.streamReader(None)  # type: ignore[arg-type]
        source.reader(None)  # type: ignore[arg-type]
        TrunklineDataSource(SOURCE).schema()


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("startingOffset", "earliest", "did you mean startingOffsets"),
        ("group.id", "g", "has no option 'group.id'"),
        ("minOffsetsPerTrigger", "0", "a whole number of at least 1"),
        ("maxTriggerDelay", "soon", "a time like 30s"),
        ("startingOffsetsByTimestampStrategy", "guess", "one of latest, error"),
        ("kafka.isolation.level", "serializable", "option kafka.isolation.level is 'serializable'"),
        ("kafka.security.protocol", "SASL_SSL", "must have a username and a password"),
        ("kafka.security.protocol", "TLS", "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_what_means_nothing_is_refused(option: str, value: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        source_options({**SOURCE, option: value})


def test_limits_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="more than maxOffsetsPerTrigger"):
        source_options({**SOURCE, "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"})
    with pytest.raises(OptionError, match=r"kafka\.acks is 'most'"):
        sink_options({**BROKER, "kafka.acks": "most"})


SASL = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.jaas.config": r"""org.example.Plain required username="al\"ice" password='x=1;';""",
}


def test_a_login_is_that_of_a_kafka_client() -> None:
    stores = {
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.keystore.location": "/own.pem",
        "kafka.ssl.keystore.type": "pem",
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    given = source_options({**SOURCE, **SASL, **stores, "kafka.sasl.mechanism": "SCRAM-SHA-256"})
    assert given.login == Login(
        'al"ice', "x=1;", Tls("/ca.pem", "/own.pem", None, "secret", check_host=False), "SCRAM-SHA-256"
    )
    assert given.passed_over == ()
    assert "x=1" not in repr(given)
    sink = sink_options({**BROKER, "kafka.security.protocol": "ssl", "kafka.ssl.ca.location": "/ca.pem"})
    assert sink.login == Login(tls=Tls("/ca.pem"))
    assert source_options(SOURCE).login == NOBODY


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("kafka.sasl.mechanism", "GSSAPI", "one of PLAIN, SCRAM-SHA-512, SCRAM-SHA-256"),
        ("kafka.ssl.truststore.location", "/store.jks", "must be PEM"),
        ("kafka.sasl.jaas.config", "nothing", "a username and a password"),
    ],
)
def test_a_login_that_is_not_had_here_is_refused(option: str, value: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        source_options({**SOURCE, **SASL, option: value})
