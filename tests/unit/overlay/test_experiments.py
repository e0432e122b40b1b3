"""The published figures, reproduced with small networks; and how a figure is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trunkline.cli import lab
from trunkline.cli.main import cli
from trunkline.overlay.lab import report
from trunkline.overlay.lab.catalogue import EXPERIMENTS
from trunkline.overlay.lab.cluster import run_here
from trunkline.overlay.lab.experiment import (
    MIN_SEEDS,
    Experiment,
    Figure,
    Judgement,
    Kind,
    Outcome,
    Result,
    Scale,
    Setting,
    judge,
    seed_of,
    tasks_of,
)
from trunkline.overlay.lab.experiments.rendezvous import gamma_quantile
from trunkline.overlay.lab.experiments.rumor import PUBLISHED, oblivious_fraction

QUICK = Scale(MIN_SEEDS, MIN_SEEDS, quick=True)


def results_of(experiment: Experiment, scale: Scale = QUICK) -> list[Result]:
    settings = experiment.plan(scale)
    tasks = tasks_of(experiment, settings, scale, seed=0)
    outcomes = run_here(tasks)
    return [
        Result(setting, [outcome for task, outcome in zip(tasks, outcomes, strict=True) if task.setting == at])
        for at, setting in enumerate(settings)
    ]


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_published_figure_lies_within_its_interval(experiment: Experiment, tmp_path: Path) -> None:
    results = results_of(experiment)
    judgements = [judgement for result in results for judgement in judge(experiment, result)]
    outside = [report.row(judgement) for judgement in judgements if judgement.within is False]
    assert not outside
    assert sum(judgement.within is True for judgement in judgements) >= 2
    report.draw(experiment, results, tmp_path / "picture.png")
    report.draw(experiment, results, tmp_path / "again.png")
    assert (tmp_path / "picture.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def test_the_table_of_rumors_solves_its_equation() -> None:
    for k, published in PUBLISHED.items():
        assert oblivious_fraction(k) == pytest.approx(published, abs=5e-7)


def test_gamma_quantiles_are_those_of_the_tables() -> None:
    assert gamma_quantile(1, 0.99) == pytest.approx(4.60517, abs=1e-5)
    assert gamma_quantile(20, 0.99) == pytest.approx(63.691 / 40, abs=1e-4)  # chi-squared with 40 degrees of freedom
    assert gamma_quantile(20, 0.01) == pytest.approx(22.164 / 40, abs=1e-4)


def test_a_run_is_repeated_by_its_seed_and_no_two_runs_share_one() -> None:
    experiment = EXPERIMENTS["blind-counter"]
    tasks = tasks_of(experiment, experiment.plan(QUICK), QUICK, seed=1)[:2]
    assert run_here(tasks) == run_here(tasks)
    assert run_here(tasks)[0] != run_here(tasks)[1]
    assert len({seed_of(seed, "e", label, run) for seed in (0, 1) for label in "ab" for run in range(50)}) == 200


def judged(published: float | None, values: list[float], kind: Kind = Kind.MEAN, tolerance: float = 0.0) -> Judgement:
    figure = Figure("case", "x", published, tolerance, kind)
    result = Result(Setting("s", {}, (figure,)), [Outcome({"x": value}) for value in values])
    return judge(EXPERIMENTS["rumor"], result)[0]


def test_a_figure_is_judged_by_the_mean_or_by_single_runs() -> None:
    values = [9.0, 11.0] * 50
    assert judged(10.2, values).within
    assert not judged(10.5, values).within
    assert judged(10.5, values, tolerance=0.25).within
    assert judged(10.9, values, Kind.RUN).within
    assert not judged(11.1, values, Kind.RUN).within
    assert judged(None, values).within is None
    assert judged(8.0, values).deviation == pytest.approx(0.25)
    assert judged(0.0, values).deviation is None


def test_a_table_for_a_document_has_a_line_for_each_figure() -> None:
    lines = report.markdown([judged(10.2, [9.0, 11.0] * 50), judged(None, [1.0, 1.0])]).splitlines()
    assert lines[2:] == ["| case | 10.2 | 10 | -2.0% | 9.698 to 10.3 | yes |", "| case | – | 1 | – | 1 to 1 | – |"]


def test_a_size_of_ones_own_has_no_published_ranges_of_another() -> None:
    rounds = [
        figure
        for setting in EXPERIMENTS["anti-entropy"].plan(Scale(nodes=500))
        for figure in setting.figures
        if figure.measure == "rounds"
    ]
    assert [figure.published for figure in rounds] == [None, None, None]


def test_the_list_names_every_experiment() -> None:
    done = CliRunner().invoke(cli, ["lab", "list", "--json"])
    assert [one["name"] for one in json.loads(done.stdout)] == list(EXPERIMENTS)


def test_an_unknown_name_is_told_which_there_are() -> None:
    done = CliRunner().invoke(cli, ["lab", "run", "rumour"])
    assert done.exit_code == 2
    assert "blind-counter" in done.output


def test_without_its_packages_the_laboratory_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "find_spec", lambda name: None)
    done = CliRunner().invoke(cli, ["lab", "all"])
    assert done.exit_code == 1
    assert "needs the package pyspark" in done.output
    assert ".[lab]" in done.output
