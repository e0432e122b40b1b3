"""IoT: readings over MQTT, averages per device and window, alerts to an AMQP queue that people work off.

    devices --MQTT--> topic mqtt --(windows, watermark)--> topic averages
                                                       `-> queue alerts --AMQP--> whoever is on call

No bridge is between the protocols: what a device publishes is a record of the log, and a queue is a topic. One streaming
query writes averages and alerts, exactly once; an alert waits in the queue until somebody has acknowledged it.

A window of a device is final, and out, once a reading later than its end by `LATENESS` has arrived. The time is the
devices' own.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import paho.mqtt.client as mqtt
import pika
from pyspark.sql import functions as f
from stage import PATIENCE_SECONDS, Stage, main

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MQTT_TOPIC = "mqtt"
"""Where the broker keeps what is published over MQTT, unless its settings say otherwise; the key is the MQTT topic."""
SCHEMA = "celsius DOUBLE, at_ms BIGINT"
WINDOW = "10 seconds"
LATENESS = "5 seconds"
TOO_HOT_CELSIUS = 80.0
START_MS = 1_700_000_000_000
DEVICES = ("press", "oven", "pump")
SECONDS = 60

Averages: TypeAlias = dict[str, list[tuple[int, float]]]
"""device -> (start of the window in seconds since the first, average), in order"""


class Reading(NamedTuple):
    device: str
    second: int
    celsius: float


class Alert(NamedTuple):
    device: str
    second: int
    celsius: float


@dataclass(frozen=True)
class Monitored:
    sent: list[Reading]
    averages: Averages
    alerts: list[Alert]


def monitoring(stage: Stage, averages: str, alerts: str) -> DataStreamWriter:
    """The query: what is published over MQTT, to averages and alerts."""
    readings = stage.stream(MQTT_TOPIC, failOnDataLoss="false").where(
        f.col("key").cast("string").startswith(stage.name("plant/"))
    )
    parsed = readings.select(
        f.element_at(f.split(f.col("key").cast("string"), "/"), 2).alias("device"),
        f.from_json(f.col("value").cast("string"), SCHEMA).alias("reading"),
    ).select("device", "reading.celsius", f.timestamp_millis("reading.at_ms").alias("at"))
    means = (
        parsed.withWatermark("at", LATENESS)
        .groupBy("device", f.window("at", WINDOW).alias("window"))
        .agg(f.avg("celsius").alias("celsius"))
        .selectExpr("device", f"cast(unix_millis(window.start) - {START_MS} AS BIGINT) DIV 1000 AS second", "celsius")
    )
    targets = f"CASE WHEN celsius > {TOO_HOT_CELSIUS} THEN array('{averages}', '{alerts}') ELSE array('{averages}') END"
    outgoing = means.selectExpr(
        "device AS key", "to_json(struct(device, second, celsius)) AS value", f"explode({targets}) AS topic"
    )
    return outgoing.writeStream.format("trunkline").option("bootstrap", stage.bootstrap)


class Devices:
    """Publish readings, at least once (QoS 1): the broker has stored each when its acknowledgement is here."""

    def __init__(self, stage: Stage) -> None:
        self._prefix = stage.name("plant/")
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_inflight_messages_set(500)
        host, _, port = stage.mqtt.rpartition(":")
        self._client.connect(host, int(port))
        self._client.loop_start()

    def publish(self, readings: Iterable[Reading]) -> None:
        sent = []
        for reading in readings:
            content = {"celsius": reading.celsius, "at_ms": START_MS + reading.second * 1_000}
            sent.append(self._client.publish(f"{self._prefix}{reading.device}", json.dumps(content), qos=1))
        for each in sent:
            each.wait_for_publish(PATIENCE_SECONDS)
            if not each.is_published():
                raise TimeoutError("the broker did not acknowledge a reading")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def alert_queue(stage: Stage) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A channel on which the queue is declared. Its name is `alert_queue_name`."""
    host, _, port = stage.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    try:
        channel = connection.channel()
        channel.queue_declare(alert_queue_name(stage), durable=True)
        yield channel
    finally:
        connection.close()


def alert_queue_name(stage: Stage) -> str:
    return stage.name("alerts")


def take_alerts(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[Alert]:
    """The alerts that wait, acknowledged."""
    taken: list[Alert] = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            return taken
        found = json.loads(body)
        taken.append(Alert(found["device"], found["second"], found["celsius"]))
        channel.basic_ack(method.delivery_tag)


def run(stage: Stage) -> Monitored:
    averages = stage.topic("averages")
    sent = [reading for second in range(SECONDS) for reading in readings(second)]
    devices = Devices(stage)
    devices.publish(sent)
    devices.close()
    queue = alert_queue_name(stage)
    with alert_queue(stage) as channel:
        stage.catch_up(monitoring(stage, averages, queue), "iot")
        alerts = take_alerts(channel, queue)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not alerts and time.monotonic() < deadline:
            channel.connection.sleep(0.05)
            alerts = take_alerts(channel, queue)
    monitored = Monitored(sent, read_averages(stage, averages), sorted(alerts))
    show(stage, monitored.averages, monitored.alerts)
    return monitored


def readings(second: int) -> list[Reading]:
    """Every device once: the press is steady, the oven warms up and cools, the pump hums along."""
    return [
        Reading("press", second, 40.0),
        Reading("oven", second, 60.0 + 40.0 * math.sin(second / 12.0)),
        Reading("pump", second, 55.0 + 5.0 * math.cos(second / 3.0)),
    ]


def read_averages(stage: Stage, topic: str) -> Averages:
    found: Averages = {}
    for message in stage.messages(topic):
        average = json.loads(message.value or b"")
        found.setdefault(average["device"], []).append((average["second"], average["celsius"]))
    return {device: sorted(found[device]) for device in sorted(found)}


def show(stage: Stage, averages: Averages, alerts: list[Alert]) -> None:
    seconds = sorted({second for series in averages.values() for second, _ in series})
    by_device = {device: dict(series) for device, series in averages.items()}
    stage.show(
        f"averages per {WINDOW}, °C",
        ["from second", *by_device],
        [
            (second, *(f"{series[second]:.1f}" if second in series else "" for series in by_device.values()))
            for second in seconds
        ],
    )
    stage.show(
        "alerts taken from the queue",
        ["device", "from second", "°C"],
        [(alert.device, alert.second, f"{alert.celsius:.1f}") for alert in alerts],
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
