"""The patterns in examples/pipelines do what they say."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import change_data_capture
import content_routing
import cqrs
import demo
import enrichment
import event_sourcing
import iot
import kappa
import lake_warehouse_mart
import lambda_views
import pytest
from private_postgres import PrivatePostgres
from stage import Message, Stage

DEMO_SECONDS = 280.0
SVG = "{http://www.w3.org/2000/svg}"
"""It takes about one minute where nothing else runs."""


def printed(stage: Stage) -> str:
    assert isinstance(stage.console.file, io.StringIO)
    return stage.console.file.getvalue()


def test_kappa_reprocesses_by_replay_and_swaps_when_it_has_caught_up(stage: Stage) -> None:
    found = kappa.run(stage)
    expected: dict[int, Counter[tuple[str, str]]] = {1: Counter(), 2: Counter()}
    for message in kappa.clicks(0, 10):
        click = json.loads(message.value or b"")
        minute = (click["at_ms"] - kappa.START_MS) // 60_000
        key = (f"22:{14 + minute:02}", click["page"])
        expected[1][key] += 1
        expected[2][key] += not click["robot"]
    # The last click is in minute 9; what ends two minutes before it is final.
    final = {key for key in expected[1] if key[0] <= "22:20"}
    assert found.first == {key: expected[1][key] for key in final}
    assert found.served_during_replay == found.first
    assert found.second == {key: expected[2][key] for key in final}
    assert found.first != found.second
    assert "version 2" in printed(stage)


def test_lambda_serves_every_payment_once_across_batch_runs(stage: Stage) -> None:
    first, second = lambda_views.run(stage)
    assert first.merged == first.sent
    assert second.merged == second.sent
    assert first.merged != first.batch, "the speed view added nothing"
    assert second.batch == first.merged, "the second batch run took over what the speed view had"
    assert set(second.speed) == set(second.sent)


def test_event_sourcing_state_equals_a_replay_from_scratch(stage: Stage) -> None:
    found = event_sourcing.run(stage)
    assert found.live == found.recovered == found.replayed
    assert found.live == python_fold(event_sourcing.order_events(0, 40))
    assert len(found.snapshots) == event_sourcing.KEPT_SNAPSHOTS
    assert 0 < found.recovered_events < found.replayed_events
    assert any(refused for _, _, _, refused in found.live.values())
    assert "the same state" in printed(stage)


def python_fold(messages: list[Message]) -> event_sourcing.Orders:
    """The same rules in plain Python."""
    state: event_sourcing.Orders = {}
    for message in messages:
        happened = json.loads(message.value or b"")
        status, total, events, refused = state.get(happened["order"], ("new", 0, 0, 0))
        allowed = {
            "placed": status == "new",
            "item added": status == "placed",
            "paid": status == "placed" and total > 0,
            "shipped": status == "paid",
            "cancelled": status in {"placed", "paid"},
        }[happened["kind"]]
        if allowed and happened["kind"] == "item added":
            total += happened["amount"]
        elif allowed:
            status = happened["kind"]
        state[happened["order"]] = (status, total, events + 1, refused + (not allowed))
    return state


def test_a_snapshot_that_is_written_again_is_the_same(stage: Stage) -> None:
    topic = stage.topic("orders", 1)
    stage.send(topic, event_sourcing.order_events(0, 6))
    directory = stage.directory / "orders"
    directory.mkdir()
    write = event_sourcing.snapshotter(directory, topic)
    halves = [stage.read(topic).where("offset < 15"), stage.read(topic).where("offset >= 15")]
    write(halves[0], 0)
    for _ in range(2):  # as after a crash between the batch and its commit
        write(halves[1], 1)
    (last,) = event_sourcing.snapshots(directory)[-1:]
    assert event_sourcing.orders(stage.spark.read.parquet(str(last))) == python_fold(event_sourcing.order_events(0, 6))


def test_cqrs_views_answer_over_http_while_writes_go_on(stage: Stage) -> None:
    found = cqrs.run(stage)
    assert found.balances == found.expected
    assert found.own_write_seen
    assert found.answers_during_writes > 0
    assert dict(found.largest) == found.expected
    assert found.largest == sorted(found.largest, key=lambda item: (-item[1], item[0]))


def test_change_data_capture_has_no_gap_between_snapshot_and_stream(
    stage: Stage,
    postgres: PrivatePostgres,
) -> None:
    stage.postgres = postgres.dsn
    found = change_data_capture.run(stage)
    assert found.replica == found.source
    assert {int(json.loads(key)["id"]) for key in found.topic} == {row[0] for row in found.source}
    for row in found.topic.values():
        (match,) = [source for source in found.source if source[0] == int(row["id"] or "")]
        assert [row["name"], row["city"], row["note"]] == [match[1], match[2], match[4]]
    assert found.operations["read"] > 0
    assert found.operations["insert"] > 0
    assert found.operations["update"] > 0
    assert found.tombstones == found.operations["delete"] > 0


def test_lake_warehouse_and_marts_hold_each_sale_once(stage: Stage) -> None:
    found = lake_warehouse_mart.run(stage)
    messages = lake_warehouse_mart.sales(0, 30) + lake_warehouse_mart.sales(30, 60)
    assert found.lake_rows == len(messages)
    assert found.sales == lake_warehouse_mart.SALES
    assert found.rejected == ['does not parse: {"sale": 9'] * 2 + ["sold units: 0"] * 2
    assert found.lake_dates == ["2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17"]
    revenue = sum((number % 4 + 1) * 2.5 * (number % 3 + 1) for number in range(lake_warehouse_mart.SALES))
    assert sum(float(str(row["revenue"])) for row in found.finance) == pytest.approx(revenue)
    assert sum(int(str(row["units"])) for row in found.marketing) == sum(n % 4 + 1 for n in range(60))
    assert found.rebuilt_finance == found.finance


def test_enrichment_joins_with_the_product_of_the_moment(stage: Stage) -> None:
    found = enrichment.run(stage)
    assert sorted(found.orders) == list(range(12))
    assert found.orders[0]["cents"] == 2_900
    assert found.orders[6]["cents"] == 1_900, "the new price holds for later orders"
    assert (found.orders[1]["known"], found.orders[7]["known"]) == (True, False), "the tombstone removed the cup"
    assert (found.orders[2]["known"], found.orders[8]["name"]) == (False, "Teapot")
    assert found.records == 12
    assert found.records_after_repeat == 12, "a batch that is repeated is written once"


def test_content_routing_converts_routes_and_sets_aside_what_does_not_parse(stage: Stage) -> None:
    found = content_routing.run(stage)
    rules: dict[str, Callable[[content_routing.Document], bool]] = {
        "express": lambda item: bool(item["express"]),
        "customs": lambda item: item["country"] != "DE",
        "audit": lambda item: int(str(item["cents"])) >= 10_000,
    }
    rules["archive"] = lambda item: not any(rules[name](item) for name in ("express", "customs", "audit"))
    for topic, rule in rules.items():
        wanted = [item for item in found.sent if rule(item)]
        assert wanted, topic
        assert sorted(found.received[topic], key=lambda item: int(str(item["id"]))) == wanted, topic
    reasons = dict(found.dead)
    assert set(reasons) == {message.value for message in content_routing.malformed()}
    assert len(found.dead) == len(reasons)
    assert reasons[b'{"id": 1, "country"'] == "not JSON with these fields"
    assert reasons[b"seven,DE"] == "not CSV with these columns"
    assert reasons[b"\xff\xff\xff"].startswith("not Avro")
    assert reasons[b"<id>4</id>"] == "no rule converts application/xml"
    assert reasons[b'{"country": "DE"}'] == "there is no id"
    assert reasons[b'{"id": 6}'] == "there is no header content-type"


def test_iot_averages_mqtt_readings_and_queues_alerts_for_amqp(stage: Stage) -> None:
    found = iot.run(stage)
    sums: dict[tuple[str, int], list[float]] = {}
    for reading in found.sent:
        sums.setdefault((reading.device, reading.second // 10 * 10), []).append(reading.celsius)
    means = {key: sum(values) / len(values) for key, values in sums.items()}
    final = {key: mean for key, mean in means.items() if key[1] + 10 <= iot.SECONDS - 1 - 5}
    answered = {(device, second): mean for device, series in found.averages.items() for second, mean in series}
    assert answered == pytest.approx(final)
    hot = sorted((device, second) for (device, second), mean in final.items() if mean > iot.TOO_HOT_CELSIUS)
    assert hot
    assert [(alert.device, alert.second) for alert in found.alerts] == hot


@pytest.mark.timeout(300)
def test_the_demo_runs_by_one_command_and_leaves_only_its_chart(tmp_path: Path) -> None:
    chart, scratch = tmp_path / "chart.svg", tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "demo.py", "--chart", str(chart), "--pace", "0.02"],
        cwd=Path(demo.__file__).parent,
        env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "live state and a replay from the first event: the same" in done.stdout
    readings, events = len(iot.DEVICES) * demo.DEVICE_SECONDS, len(event_sourcing.order_events(0, demo.ORDERS))
    for total in (readings, events):
        assert done.stdout.count(f"{total}/{total}") == 2, "sent and processed"
    assert "oven" in done.stdout.partition("alerts taken from the queue")[2]
    picture = ElementTree.parse(chart).getroot()
    lines = [picture.find(f".//{SVG}g[@id='{device}']/{SVG}path") for device in iot.DEVICES]
    points = [re.findall("[ML]", line.get("d", "")) if line is not None else [] for line in lines]
    assert [len(found) for found in points] == [8] * len(iot.DEVICES), "a point per final window"
    assert [path.name for path in scratch.iterdir() if path.name.startswith("trunkline")] == []
