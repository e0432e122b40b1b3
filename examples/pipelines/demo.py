"""The demo: a broker, devices and a shop that feed it, and two pipelines that follow live; then tables and a chart.

    make demo        or: python examples/pipelines/demo.py [--chart PATH] [--pace SECONDS] [--bootstrap HOST:PORT]

The IoT pipeline (iot.py) takes readings over MQTT to averages and an alert queue; the event-sourcing pipeline
(event_sourcing.py) folds orders into state, snapshot by snapshot. Both run at the same time on one Spark session, while
their feeders publish. At the end the state is compared with a replay from the first event. Everything it started is
stopped and removed; the chart stays.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import event_sourcing
import iot
from line_chart import line_chart, save
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from stage import PATIENCE_SECONDS, LiveQuery, Message, Stage, opened

DEFAULT_CHART = "trunkline-demo.svg"
PACE_SECONDS = 0.15
"""How long one second of the devices takes."""
DEVICE_SECONDS = 90
ORDERS = 36
REFRESH_SECONDS = 0.2


@dataclass(frozen=True)
class Shown:
    alerts: list[iot.Alert]
    averages: iot.Averages
    orders: event_sourcing.Orders
    same_as_replay: bool
    chart: Path


class Feeder:
    """Sends one part after the other, at the devices' pace."""

    def __init__(self, name: str, parts: Sequence[Callable[[], int]], pace_seconds: float) -> None:
        self.sent = 0
        self.failure: Exception | None = None
        self._parts = parts
        self._pace_seconds = pace_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)

    def _feed(self) -> None:
        try:
            for part in self._parts:
                self.sent += part()
                if self._stop.wait(self._pace_seconds):
                    return
        except Exception as error:
            self.failure = error


class Processed:
    """How many rows a query has processed, and how fast: its reports are remembered, Spark keeps only the last ones."""

    def __init__(self, query: LiveQuery) -> None:
        self._query = query
        self._rows: dict[int, int] = {}
        self.rows_per_second = 0.0
        self.batch_ms = 0

    @property
    def rows(self) -> int:
        for report in self._query.reports:
            if report["numInputRows"]:
                self._rows[report["batchId"]] = report["numInputRows"]
                self.rows_per_second = report["processedRowsPerSecond"]
                self.batch_ms = report["batchDuration"]
        return sum(self._rows.values())


def run(stage: Stage, chart: Path, pace_seconds: float = PACE_SECONDS) -> Shown:
    averages, orders = stage.topic("averages"), stage.topic("orders")
    directory = stage.directory / "orders"
    directory.mkdir()
    devices = iot.Devices(stage)
    events = event_sourcing.order_events(0, ORDERS)
    devices.publish(iot.readings(0))  # so that the topic is there when the query starts
    queue = iot.alert_queue_name(stage)
    with iot.alert_queue(stage) as channel:
        monitoring = stage.start(iot.monitoring(stage, averages, queue), "iot", every="1 second")
        snapshots = event_sourcing.snapshotter(directory, orders)
        folding = stage.start(stage.stream(orders).writeStream.foreachBatch(snapshots), "orders", every="2 seconds")
        feeders = [
            Feeder("devices", [_publishing(devices, second) for second in range(1, DEVICE_SECONDS)], pace_seconds),
            Feeder("shop", [_sending(stage, orders, part) for part in _parts(events, DEVICE_SECONDS)], pace_seconds),
        ]
        alerts: list[iot.Alert] = []
        try:

            def take_alerts() -> int:
                alerts.extend(iot.take_alerts(channel, queue))
                return len(alerts)

            _follow(stage, (monitoring, folding), feeders, take_alerts)
            monitoring.catch_up()  # the windows that the last readings have closed
            take_alerts()
        finally:
            for feeder in feeders:
                feeder.stop()
            devices.close()
            try:
                monitoring.stop()
            finally:
                folding.stop()
    found = iot.read_averages(stage, averages)
    iot.show(stage, found, sorted(alerts))
    state = event_sourcing.orders(stage.spark.read.parquet(str(event_sourcing.snapshots(directory)[-1])))
    event_sourcing.show(stage, state)
    same = state == event_sourcing.orders(event_sourcing.fold(stage.read(orders), None))
    stage.say(f"live state and a replay from the first event: {'the same' if same else 'DIFFERENT'}")
    threshold = ("alert", iot.TOO_HOT_CELSIUS)
    drawn = line_chart(f"Averages per {iot.WINDOW}", found, across="seconds", upward="°C", threshold=threshold)
    save(drawn, chart)
    stage.say(f"chart: {chart}")
    return Shown(sorted(alerts), found, state, same, chart)


def _follow(
    stage: Stage, queries: Sequence[LiveQuery], feeders: Sequence[Feeder], take_alerts: Callable[[], int]
) -> None:
    """Show how far everything is, until the queries have processed all that the feeders sent."""
    counts = [Processed(query) for query in queries]
    deadline = time.monotonic() + PATIENCE_SECONDS
    columns = (TextColumn("{task.description:<19}"), BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=stage.console) as progress:
        totals = (len(iot.DEVICES) * DEVICE_SECONDS, len(event_sourcing.order_events(0, ORDERS)))
        names = ("readings, MQTT", "orders, Kafka")
        published = [
            progress.add_task(f"{name} sent", total=total, note="") for name, total in zip(names, totals, strict=True)
        ]
        handled = [
            progress.add_task(name, total=total, note="")
            for name, total in zip(("readings averaged", "order events folded"), totals, strict=True)
        ]
        while True:
            complete = True
            for at, feeder in enumerate(feeders):
                first = len(iot.DEVICES) if at == 0 else 0
                progress.update(published[at], completed=feeder.sent + first)
                complete = _report(progress, handled[at], counts[at], totals[at]) and complete
                if feeder.failure is not None:
                    raise feeder.failure
            progress.update(published[0], note=f"{take_alerts()} alerts taken")
            for query in queries:
                query.check()
            if complete:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pipelines did not get through in {PATIENCE_SECONDS} seconds")
            time.sleep(REFRESH_SECONDS)


def _report(progress: Progress, task: TaskID, processed: Processed, total: int) -> bool:
    rows = processed.rows
    note = f"{processed.rows_per_second:,.0f} rows/s, lag {max(0, total - rows)}, {processed.batch_ms} ms"
    progress.update(task, completed=min(rows, total), note=note)
    return rows >= total


def _parts(events: Sequence[Message], count: int) -> list[Sequence[Message]]:
    """The events in their order, in this many parts."""
    size = -(-len(events) // count)
    return [events[at : at + size] for at in range(0, len(events), size)]


def _publishing(devices: iot.Devices, second: int) -> Callable[[], int]:
    def publish() -> int:
        made = iot.readings(second)
        devices.publish(made)
        return len(made)

    return publish


def _sending(stage: Stage, topic: str, part: Sequence[Message]) -> Callable[[], int]:
    return lambda: stage.send(topic, part)


def main() -> int:
    parser = argparse.ArgumentParser(description="A broker, its feeders and two pipelines, live in the terminal.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs; without it, one is started")
    parser.add_argument("--amqp", metavar="HOST:PORT")
    parser.add_argument("--mqtt", metavar="HOST:PORT")
    parser.add_argument(
        "--chart", type=Path, default=Path(DEFAULT_CHART), help=f"where to draw it (default: {DEFAULT_CHART})"
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=PACE_SECONDS,
        metavar="SECONDS",
        help=f"how long a second of the devices takes (default: {PACE_SECONDS})",
    )
    chosen = parser.parse_args()
    chosen.postgres = None
    console = Console()
    with opened(chosen, console) as stage:
        shown = stage.patiently(lambda each: run(each, chosen.chart.absolute(), chosen.pace))
    return 0 if shown.same_as_replay else 1


if __name__ == "__main__":
    sys.exit(main())
