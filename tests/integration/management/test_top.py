"""`trunkline top`, `trunkline completion` and the log as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.management.api import Api
from tests.integration.server import NO_LISTENERS
from tests.integration.waiting import wait_until
from trunkline.cli.main import cli


def test_top_shows_rates_and_the_longest_queues(api: Api) -> None:
    api.ask("PUT", "/api/queues/%2F/top-queue", {})
    for _ in range(3):
        message = {"properties": {}, "routing_key": "top-queue", "payload": "x", "payload_encoding": "string"}
        api.ask("POST", "/api/exchanges/%2F/amq.default/publish", message)
    arguments = ["top", "--once", "--interval", "0.2", "--url", f"http://127.0.0.1:{api.port}"]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert "top-queue" in shown.output
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert {each["name"]: each["messages"] for each in document["queues"]}["top-queue"] == 3
    assert document["overview"]["totals"]["queues"] >= 1


def test_top_says_what_to_do_when_it_is_refused(api: Api, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong\n")
    address = ["--url", f"http://127.0.0.1:{api.port}"]
    refused = CliRunner().invoke(cli, ["top", "--once", *address, "--user", "guest", "--password-file", str(secret)])
    assert refused.exit_code == 1
    assert "--password-file" in refused.stderr
    assert CliRunner().invoke(cli, ["top", "--url", "ftp://x"]).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_TRUNKLINE_COMPLETE" in done.stdout


def test_the_log_can_be_json(tmp_path: Path) -> None:
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "trunkline",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--ready-file",
        str(ready),
        "-q",
    ]
    command += ["--kafka-port", "0", "--log-format", "json"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, **NO_LISTENERS})
    try:
        wait_until(ready.exists, what="the ready file")
    finally:
        process.terminate()
        process.wait(30)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["message"] == "shutting down"
    assert lines[-1]["level"] == "info"
