"""How repetitions are ordered and reduced, with measurements that are scripted; and one real, tiny run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from trunkline.bench import comparison, kafka_contest
from trunkline.bench.comparison import Comparison
from trunkline.bench.kafka_contest import QUICK, KafkaContest, Scale
from trunkline.bench.load import Job, measure
from trunkline.bench.probe import ProbeError, broker_count, resident_bytes, wait_until_serving
from trunkline.bench.trunkline_process import TrunklineProcess

TINY = Scale(
    small_messages=400, large_messages=200, latency_messages=50, latency_rounds=1, warm_up_rounds=0, repetitions=1
)


@dataclasses.dataclass
class ScriptedSide:
    address: str
    start_up_s: float
    resident_mib: int
    paused: bool = False

    def __enter__(self) -> ScriptedSide:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def resident_bytes(self) -> int:
        return self.resident_mib * 2**20

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def stop(self) -> None:
        return


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Both brokers are scripted: ours does 300, 100, 200 … messages a second, the peer half of that."""
    asked: list[Job] = []
    speeds = [300.0, 100.0, 200.0]

    def scripted(job: Job) -> list[float]:
        nth = sum(1 for earlier in asked if earlier.bootstrap == job.bootstrap and earlier.kind == job.kind)
        asked.append(job)
        speed = speeds[nth % 3] / (1 if job.bootstrap == "ours" else 2)
        return [speed, 10 * speed] if job.kind == "latency" else [speed]

    monkeypatch.setattr(kafka_contest, "measure", scripted)
    monkeypatch.setattr(kafka_contest, "delete_topic", lambda *_: None)
    monkeypatch.setattr(comparison, "SETTLE_S", 0.0)
    monkeypatch.setattr(comparison, "RESUME_S", 0.0)
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr(kafka_contest, "TrunklineProcess", lambda *_: ScriptedSide("ours", 0.2, 40))
    monkeypatch.setattr(kafka_contest, "ApacheKafka", lambda **_: ScriptedSide("peer", 3.0, 400))
    return asked


def test_sides_alternate_and_the_median_counts(jobs: list[Job]) -> None:
    scale = dataclasses.replace(QUICK, repetitions=3, warm_up_rounds=0)
    figures = Comparison(KafkaContest(scale), True, ["produce/100B/acks=1/1p"]).run()
    assert [job.bootstrap for job in jobs] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert [(f.case, f.ours, f.peer, f.ratio) for f in figures] == [("produce/100B/acks=1/1p", 200.0, 100.0, 2.0)]


def test_only_the_side_that_is_measured_runs(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {"ours": ScriptedSide("ours", 0.2, 40), "peer": ScriptedSide("peer", 3.0, 400)}
    monkeypatch.setattr(kafka_contest, "TrunklineProcess", lambda *_: sides["ours"])
    monkeypatch.setattr(kafka_contest, "ApacheKafka", lambda **_: sides["peer"])
    running: list[tuple[str, list[str]]] = []
    scripted: Callable[[Job], list[float]] = vars(kafka_contest)["measure"]

    def watched(job: Job) -> list[float]:
        running.append((job.bootstrap, [name for name, side in sides.items() if not side.paused]))
        return scripted(job)

    monkeypatch.setattr(kafka_contest, "measure", watched)
    Comparison(KafkaContest(dataclasses.replace(QUICK, repetitions=2)), True, ["produce/100B/*"]).run()
    assert {bootstrap for bootstrap, _ in running} == {"ours", "peer"}
    assert all(alive == [bootstrap] for bootstrap, alive in running)
    assert not any(side.paused for side in sides.values())


def test_both_sides_get_the_same_work(jobs: list[Job]) -> None:
    Comparison(KafkaContest(QUICK), True).run()
    work = {
        side: [dataclasses.replace(job, bootstrap="", topic="") for job in jobs if job.bootstrap == side]
        for side in ("ours", "peer")
    }
    assert work["ours"] == work["peer"]
    assert len({job.topic for job in jobs if job.kind != "consume"}) == sum(job.kind != "consume" for job in jobs)


def test_start_up_and_memory_are_compared_so_that_less_is_better(jobs: list[Job]) -> None:
    figures = {
        figure.case: figure for figure in Comparison(KafkaContest(QUICK), True, ["start-up", "memory/idle"]).run()
    }
    assert jobs == []
    assert figures["start-up"].ratio == pytest.approx(15.0)
    assert figures["memory/idle"].ratio == pytest.approx(10.0)


def test_a_consumed_topic_is_filled_once_for_all_repetitions(jobs: list[Job]) -> None:
    scale = dataclasses.replace(QUICK, repetitions=3, warm_up_rounds=0)
    Comparison(KafkaContest(scale), False, ["consume/1KB/1p"]).run()
    assert [job.kind for job in jobs] == ["prefill", "consume", "consume", "consume"]
    assert len({job.topic for job in jobs}) == 1


def test_a_repetition_measures_latency_in_several_rounds_on_both_sides_in_turn(jobs: list[Job]) -> None:
    scale = dataclasses.replace(QUICK, repetitions=2, latency_rounds=3, warm_up_rounds=0)
    Comparison(KafkaContest(scale), True, ["latency/100B/acks=1/1p/*", "produce/100B/acks=1/1p"]).run()
    assert [job.bootstrap for job in jobs if job.kind == "latency"] == ["ours", "peer", "peer", "ours"] * 3
    assert sum(job.kind == "produce" for job in jobs) == 4


def test_progress_ends_at_the_announced_number_of_steps(jobs: list[Job]) -> None:
    announced: list[int] = []
    scale = dataclasses.replace(QUICK, latency_rounds=2)
    Comparison(KafkaContest(scale), True, on_step=lambda _, steps: announced.append(steps)).run()
    assert announced == [len(announced)] * len(announced)


def test_a_broker_that_exits_is_not_waited_for() -> None:
    with pytest.raises(ProbeError, match="exited before it served"):
        wait_until_serving("127.0.0.1:1", 30.0, is_alive=lambda: False)


def test_every_kind_of_case_runs_against_a_real_broker() -> None:
    pytest.importorskip("confluent_kafka")
    with TrunklineProcess() as broker:
        assert broker_count(broker.bootstrap) == 1
        assert resident_bytes(broker.pid) > 2**20
        job = Job("prefill", broker.bootstrap, "kept", 100, "all", 2, TINY.small_messages)
        for kind, topic, count in (
            ("prefill", "kept", 1),
            ("consume", "kept", 1),
            ("produce", "a", 1),
            ("end-to-end", "b", 1),
            ("latency", "c", 2),
        ):
            figures = measure(dataclasses.replace(job, kind=kind, topic=topic))
            assert len(figures) == count
            assert all(figure > 0 for figure in figures)
