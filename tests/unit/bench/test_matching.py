"""The benchmark of content matching: what it generates matches as often as it says, at every size."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from trunkline.bench import match_cli
from trunkline.bench.matching import KINDS, Matching, measure


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_matches_about_as_many_filters_of_every_kind(kind: str) -> None:
    found = measure(kind, 3_000, seconds=0.1)
    assert found.filters == 3_000
    assert found.events_per_s > 0
    assert 0.1 < found.matches_per_event < 20


def test_the_command_prints_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_cli, "_measured", lambda kind, size: Matching(kind, size, 1e4, 10.0, 50.0, 700.0))
    shown = CliRunner().invoke(match_cli.match, ["--quick", "--kind", "mixed", "--json"])
    assert shown.exit_code == 0, shown.output
    assert [(each["kind"], each["filters"]) for each in json.loads(shown.stdout)] == [
        ("mixed", 10_000),
        ("mixed", 100_000),
    ]
