"""`/metrics`: figures for Prometheus, in the text format.

The names are those that dashboards read which exist already: RabbitMQ's Overview (`rabbitmq_*`) and kafka_exporter's (`kafka_*`);
our own begin with `trunkline_`. Totals come from `/metrics`; `/metrics/per-object` has a line per queue, topic and group, as RabbitMQ
divides it. Nothing is counted for this: it is read off what the broker knows when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trunkline.log.store import TopicPartition
from trunkline.protocols.http.message import Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.management.service import NODE_NAME, Service
from trunkline.version import BEHAVES_LIKE, VERSION

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_OBJECTS = 20_000

Labels = Mapping[str, str]


def add_routes(router: Router, service: Service) -> None:
    router.add("GET", "/metrics", lambda request: _answer(service, request, per_object=False))
    router.add("GET", "/metrics/per-object", lambda request: _answer(service, request, per_object=True))


async def _answer(service: Service, request: Request, *, per_object: bool) -> Response:
    page = Exposition()
    await _node(page, service)
    _queues(page, service, per_object=per_object)
    _topics(page, service, per_object=per_object)
    _groups(page, service)
    _mqtt(page, service)
    return Response(200, page.text().encode(), _TYPE)


class Exposition:
    """Families of samples, each written with its help and type once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]

    def gauge(self, name: str, text: str, value: float) -> None:
        self.add(name, "gauge", text, [({}, value)])

    def counter(self, name: str, text: str, value: float) -> None:
        self.add(name, "counter", text, [({}, value)])

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


async def _node(page: Exposition, service: Service) -> None:
    node = await service.node()
    broker = service.broker
    identity = {
        "rabbitmq_node": NODE_NAME,
        "rabbitmq_cluster": broker.cluster_id,
        "rabbitmq_cluster_permanent_id": broker.cluster_id,
        "rabbitmq_endpoint": "",
        "namespace": "",
    }
    page.add("rabbitmq_identity_info", "gauge", "Who this is", [(identity, 1)])
    build = {"rabbitmq_version": BEHAVES_LIKE, "product_name": "Trunkline", "product_version": VERSION}
    page.add("rabbitmq_build_info", "gauge", "What this is", [(build, 1)])
    page.add("trunkline_build_info", "gauge", "What this is", [({"version": VERSION, "python": node.python}, 1)])
    page.gauge("rabbitmq_process_resident_memory_bytes", "Memory in use", node.memory_bytes)
    page.gauge("rabbitmq_resident_memory_limit_bytes", "Memory of the machine", node.memory_total_bytes)
    page.gauge("rabbitmq_disk_space_available_bytes", "Free disk under the log", node.disk_free_bytes)
    page.gauge("rabbitmq_disk_space_available_limit_bytes", "Below this publishers wait", broker.limits.min_free_bytes)
    page.gauge("rabbitmq_process_open_fds", "Open files and sockets", node.open_files)
    page.gauge("rabbitmq_process_max_fds", "Most of them", node.max_open_files)
    page.gauge("rabbitmq_connections", "Connections, of all protocols", broker.counters.connections)
    page.gauge("rabbitmq_alarms_free_disk_space_watermark", "Publishers wait", broker.space.blocked is not None)
    page.counter("process_cpu_seconds_total", "CPU time", node.cpu_s)
    page.gauge("trunkline_unsent_bytes", "What clients have not taken yet", broker.counters.unsent_bytes)
    page.gauge("trunkline_input_held_bytes", "What clients have begun to send", broker.input.held_bytes)
    uptime_s = (service.clock.wall_ms() - service.started_ms) / 1000
    page.gauge("rabbitmq_erlang_uptime_seconds", "Since the start", uptime_s)


_QUEUE_FIGURES = (
    ("rabbitmq_queue_messages_ready", "gauge", "Messages ready", "ready"),
    ("rabbitmq_queue_messages_unacked", "gauge", "Messages delivered and not settled", "unacked"),
    ("trunkline_queue_messages_delayed", "gauge", "Messages that wait for their time", "delayed"),
    ("rabbitmq_queue_consumers", "gauge", "Consumers", "consumers"),
    ("rabbitmq_queue_messages_ready_bytes", "gauge", "Bytes ready", "ready_bytes"),
    ("rabbitmq_queue_messages_unacked_bytes", "gauge", "Bytes delivered and not settled", "unacked_bytes"),
    ("rabbitmq_queue_process_memory_bytes", "gauge", "Bytes in memory", "buffered_bytes"),
    ("rabbitmq_queue_messages_published_total", "counter", "Messages published", "published"),
    ("trunkline_queue_messages_delivered_total", "counter", "Messages delivered", "delivered"),
    ("trunkline_queue_messages_redelivered_total", "counter", "Messages delivered again", "redelivered"),
    ("trunkline_queue_messages_acknowledged_total", "counter", "Messages acknowledged", "acknowledged"),
    ("trunkline_queue_messages_dead_lettered_total", "counter", "Messages given up", "dead_lettered"),
)
_GLOBAL_FIGURES = (
    ("rabbitmq_global_messages_received_total", "published"),
    ("rabbitmq_global_messages_received_confirm_total", "published"),
    ("rabbitmq_global_messages_confirmed_total", "published"),
    ("rabbitmq_global_messages_routed_total", "published"),
    ("rabbitmq_global_messages_delivered_total", "delivered"),
    ("rabbitmq_global_messages_redelivered_total", "redelivered"),
    ("rabbitmq_global_messages_acknowledged_total", "acknowledged"),
)


def _queues(page: Exposition, service: Service, *, per_object: bool) -> None:
    totals: dict[str, float] = {}
    rows: list[tuple[Labels, tuple[int, ...]]] = []
    fields = [field for _, _, _, field in _QUEUE_FIGURES]
    count = 0
    for queue in service.messaging.queues:
        count += 1
        stats = queue.cursor.stats()
        values = tuple(getattr(stats, field) for field in fields)
        for field, value in zip(fields, values, strict=True):
            totals[field] = totals.get(field, 0) + value
        if per_object and len(rows) < _MAX_OBJECTS:
            rows.append(({"vhost": queue.vhost, "queue": queue.name}, values))
    page.gauge("rabbitmq_queues", "Queues", count)
    page.gauge("rabbitmq_consumers", "Consumers", totals.get("consumers", 0))
    for position, (name, kind, text, field) in enumerate(_QUEUE_FIGURES):
        samples = [(labels, float(values[position])) for labels, values in rows] if per_object else []
        page.add(name, kind, text, samples or [({}, totals.get(field, 0))])
    ready, unacked = totals.get("ready", 0), totals.get("unacked", 0)
    page.gauge("rabbitmq_queue_messages", "Messages in queues", ready + unacked)
    for name, field in _GLOBAL_FIGURES:
        page.add(name, "counter", "Over all queues", [({"protocol": "amqp091"}, totals.get(field, 0))])
    for name in (
        "rabbitmq_global_messages_unroutable_dropped_total",
        "rabbitmq_global_messages_unroutable_returned_total",
    ):
        page.add(name, "counter", "Not counted here", [({"protocol": "amqp091"}, 0)])


def _topics(page: Exposition, service: Service, *, per_object: bool) -> None:
    current: list[tuple[Labels, float]] = []
    oldest: list[tuple[Labels, float]] = []
    partitions: list[tuple[Labels, float]] = []
    appended = 0
    for name, info in service.broker.topics().items():
        bounds = [service.broker.bounds(TopicPartition(name, each)) for each in range(info.partitions)]
        appended += sum(each.high_watermark for each in bounds)
        if info.internal or info.ephemeral or len(current) >= _MAX_OBJECTS:
            continue
        partitions.append(({"topic": name}, info.partitions))
        for number, each in enumerate(bounds):
            labels = {"topic": name, "partition": str(number)}
            current.append((labels, each.high_watermark))
            oldest.append((labels, each.log_start_offset))
    page.gauge("kafka_brokers", "Brokers", 1)
    page.add("kafka_topic_partitions", "gauge", "Partitions of a topic", partitions)
    page.add("kafka_topic_partition_current_offset", "gauge", "End of a partition", current)
    page.add("kafka_topic_partition_oldest_offset", "gauge", "Start of a partition", oldest)
    page.counter("trunkline_log_records_total", "Records appended to the log, by whatever protocol", appended)


def _groups(page: Exposition, service: Service) -> None:
    lag: list[tuple[Labels, float]] = []
    offset: list[tuple[Labels, float]] = []
    sums: dict[tuple[str, str], int] = {}
    members: list[tuple[Labels, float]] = []
    for group in service.log.groups()[:_MAX_OBJECTS]:
        name = str(group["name"])
        for entry in service.log.lags(name):
            labels = {"consumergroup": name, "topic": entry.topic, "partition": str(entry.partition)}
            lag.append((labels, entry.lag))
            offset.append((labels, entry.committed))
            sums[name, entry.topic] = sums.get((name, entry.topic), 0) + entry.lag
        described = service.log.group(name)["members"]
        members.append(({"consumergroup": name}, len(described) if isinstance(described, list) else 0))
    page.add("kafka_consumergroup_lag", "gauge", "Records that a group is behind", lag)
    page.add("kafka_consumergroup_current_offset", "gauge", "Where a group is", offset)
    of_topic = [({"consumergroup": group, "topic": topic}, float(behind)) for (group, topic), behind in sums.items()]
    page.add("kafka_consumergroup_lag_sum", "gauge", "Records that a group is behind in a topic", of_topic)
    page.add("kafka_consumergroup_members", "gauge", "Members of a group", members)


def _mqtt(page: Exposition, service: Service) -> None:
    counters = service.broker.counters.mqtt
    page.gauge("trunkline_mqtt_connections", "MQTT connections", counters.connected)
    page.counter("trunkline_mqtt_messages_received_total", "MQTT publications in", counters.messages_received)
    page.counter("trunkline_mqtt_messages_sent_total", "MQTT publications out", counters.messages_sent)
    page.counter("trunkline_mqtt_messages_dropped_total", "MQTT publications dropped", counters.dropped)
