"""The laboratory on real Spark: the same outcomes as without, and the command from beginning to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from trunkline.overlay.lab.catalogue import EXPERIMENTS
from trunkline.overlay.lab.cluster import run_here, run_on_spark
from trunkline.overlay.lab.experiment import Scale, tasks_of


def test_spark_finds_what_one_process_finds_in_the_same_order(spark: SparkSession) -> None:
    scale = Scale(3, 3, quick=True)
    tasks = [
        task
        for name in ("rumor", "blind-counter", "swim")
        for task in tasks_of(EXPERIMENTS[name], EXPERIMENTS[name].plan(scale), scale, seed=7)
    ]
    parts: list[float] = []
    assert run_on_spark(spark, tasks, parts.append) == run_here(tasks)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_the_command_prints_json_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trunkline", "lab", "run", "rumor", "rendezvous", "--quick", "--json", "--strict"]
    command += ["--master", "local[2]", "--pictures", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert {"case", "published", "ours", "low", "high", "within"} <= cases[0].keys()
    assert all(case["seeds"] >= 30 for case in cases)
    assert (tmp_path / "rumor.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rendezvous.png").exists()
