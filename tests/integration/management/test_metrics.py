"""Metrics, read by Prometheus's own parser, and health checks."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.management.api import Api
from tests.integration.server import ServerProcess


def samples(api: Api, path: str = "/metrics") -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = Api(api.port, user=None).ask("GET", path)
    assert answer.status == 200
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_names_that_dashboards_read_are_there(api: Api, unique: Callable[[str], str]) -> None:
    name = unique("q") + '"\\'
    api.ask("PUT", "/api/queues/%2F/" + name.replace('"', "%22").replace("\\", "%5C"), {})
    found = samples(api)
    for name_of in (
        "rabbitmq_identity_info", "rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked", "rabbitmq_connections",
        "rabbitmq_queues", "rabbitmq_consumers", "rabbitmq_process_resident_memory_bytes", "rabbitmq_disk_space_available_bytes",
        "rabbitmq_global_messages_received_total", "rabbitmq_global_messages_delivered_total", "kafka_brokers",
        "rabbitmq_global_messages_acknowledged_total", "trunkline_log_records_total",
    ):  # fmt: skip
        assert name_of in found, name_of
    ((identity, one),) = found["rabbitmq_identity_info"]
    assert one == 1
    assert {"rabbitmq_cluster", "rabbitmq_node", "rabbitmq_endpoint", "namespace"} <= identity.keys()
    of_queues = samples(api, "/metrics/per-object")["rabbitmq_queue_messages_ready"]
    assert ({"vhost": "/", "queue": name}, 0.0) in of_queues


def test_lag_has_the_names_of_kafka_exporter(api: Api, managed: ServerProcess, unique: Callable[[str], str]) -> None:
    topic, group = unique("t"), unique("g")
    producer = Producer({"bootstrap.servers": managed.bootstrap})
    for _ in range(3):
        producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": managed.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    found = samples(api)
    labels = {"consumergroup": group, "topic": topic, "partition": "0"}
    assert (labels, 2.0) in found["kafka_consumergroup_lag"]
    assert (labels, 1.0) in found["kafka_consumergroup_current_offset"]
    assert ({"topic": topic, "partition": "0"}, 3.0) in found["kafka_topic_partition_current_offset"]
    consumer.close()


def test_health(api: Api) -> None:
    anybody = Api(api.port, user=None)
    assert anybody.ask("GET", "/health/live").body == {"status": "ok"}
    assert anybody.ask("GET", "/health/ready").status == 200
    assert api.get(f"/api/health/checks/port-listener/{api.port}")["status"] == "ok"
    missing = api.ask("GET", "/api/health/checks/port-listener/1")
    assert (missing.status, missing.body["missing"]) == (503, 1)
    assert api.ask("GET", "/api/health/checks/protocol-listener/stomp").status == 503
