"""The shapes in which figures leave the benchmark; programs and the documentation depend on them."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from trunkline.bench import report
from trunkline.bench.apache_kafka import KafkaUnavailable, fetch_jars
from trunkline.bench.cases import RATE, SECONDS, Figure
from trunkline.bench.cli import bench

FIGURES = [Figure("produce/100B/acks=1/1p", RATE, 1_500_000.4, 1_000_000.0), Figure("start-up", SECONDS, 0.25, None)]


def test_json_is_a_list_of_case_unit_ours_peer_ratio() -> None:
    assert json.loads(report.to_json(FIGURES)) == [
        {"case": "produce/100B/acks=1/1p", "unit": "msg/s", "ours": 1_500_000, "peer": 1_000_000, "ratio": 1.5},
        {"case": "start-up", "unit": "s", "ours": 0.25, "peer": None, "ratio": None},
    ]


def test_markdown_is_one_table_row_per_figure() -> None:
    rows = [line for line in report.to_markdown(FIGURES, "Apache Kafka", "4.3.1").splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| produce/100B/acks=1/1p | msg/s | 1,500,000 | 1,000,000 | 1.50 |",
        "| start-up | s | 0.25 |  |  |",
    ]


def test_the_table_shows_both_sides_and_the_ratio() -> None:
    output = io.StringIO()
    report.print_table(FIGURES, "Apache Kafka", Console(file=output, width=100))
    line = next(line for line in output.getvalue().splitlines() if "produce" in line)
    assert line.split() == ["produce/100B/acks=1/1p", "msg/s", "1,500,000", "1,000,000", "1.50"]


def test_one_format_at_a_time() -> None:
    result = CliRunner().invoke(bench, ["kafka", "--json", "--markdown"])
    assert result.exit_code == 2
    assert "Choose one" in result.output


def test_a_machine_without_java_is_told_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    with pytest.raises(KafkaUnavailable, match="needs Maven, but there is no `mvn` on the PATH"):
        fetch_jars()
    result = CliRunner().invoke(bench, ["kafka", "--peer", "--json"])
    assert result.exit_code == 1
    assert "there is no `mvn`" in result.output
