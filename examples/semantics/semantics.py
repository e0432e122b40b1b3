"""The five delivery semantics under faults: what was lost, and what came twice.

    python examples/semantics/semantics.py                        all five, a minute or two
    python examples/semantics/semantics.py exactly-once --jobs 50 --kills 2

For each, a broker process and two worker processes are started, numbered jobs are put, and meanwhile workers and broker are killed
with SIGKILL and started again. At most once, at least once and timeout note each job that was handled in a file: an effect in the
outside world, which no broker can take back. Exactly once and transaction put a result into a queue, in one transaction with taking the
job. At the end everything is counted. The program fails if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import trunkline
from trunkline.listeners import LISTENERS

DELIVERIES = ("at-most-once", "at-least-once", "exactly-once", "transaction", "timeout")
IN_QUEUE = ("exactly-once", "transaction")  # their effects are messages
MAY_BE_LOST = ("at-most-once",)
MAY_COME_TWICE = ("at-least-once", "timeout")
LEASE = 2.0
WORKERS = 2
JOB_SECONDS = 0.02


class Outcome(NamedTuple):
    delivery: str
    jobs: int
    killed_workers: int
    killed_brokers: int
    lost: int
    twice: int

    @property
    def kept(self) -> bool:
        """Whether the promise was."""
        return (not self.lost or self.delivery in MAY_BE_LOST) and (not self.twice or self.delivery in MAY_COME_TWICE)


# -- a worker process ----------------------------------------------------------------------------------------------------


def work(url: str, delivery: str, effects: str) -> None:
    noted = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with trunkline.connect(url, timeout=30) as t:
        jobs = t.queue("jobs", delivery=delivery, lease=LEASE if delivery == "timeout" else None)

        def handle(number: int) -> None:
            time.sleep(JOB_SECONDS)
            os.write(noted, f"{number}\n".encode())

        def handle_in_transaction(number: int, x: trunkline.Transaction) -> None:
            time.sleep(JOB_SECONDS)
            x.put("results", number)

        jobs.notify(handle_in_transaction if delivery in IN_QUEUE else handle, concurrency=2)
        print("ready", flush=True)
        signal.pause()


# -- what is killed ------------------------------------------------------------------------------------------------------


class Broker:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = [free_port(), free_port()]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"trunkline://127.0.0.1:{self._ports[1]}/?kafka={self._ports[0]}"

    def start(self) -> None:
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        ports = {"kafka": self._ports[0], "amqp": self._ports[1]}  # the other listeners are off
        settings = {f"TRUNKLINE_{row.setting.upper()}": str(ports.get(row.name, "off")) for row in LISTENERS}
        environment = {**os.environ, **settings}
        command = [sys.executable, "-m", "trunkline", "serve", "--data", str(self._directory / "data")]
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(ready)], stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + 60
        while not ready.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"the broker did not start: see {self._directory / 'broker.log'}")
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Worker:
    def __init__(self, url: str, delivery: str, effects: Path) -> None:
        command = [sys.executable, __file__, "--work", url, delivery, str(effects)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


# -- the demonstration ---------------------------------------------------------------------------------------------------


def demonstrate(delivery: str, jobs: int, kills: int, directory: Path) -> Outcome:
    directory.mkdir(parents=True, exist_ok=True)
    effects = directory / "effects.txt"
    effects.touch()
    broker = Broker(directory)
    broker.start()
    workers: list[Worker] = []
    try:
        with trunkline.connect(broker.url, timeout=30) as t:
            queue = t.queue("jobs", delivery=delivery)
            before_kills = jobs // 2
            queue.put_all(range(before_kills))
            workers += [Worker(broker.url, delivery, effects) for _ in range(WORKERS)]
            put_one_by_one = iter(range(before_kills, jobs))
            for number in range(kills):
                wait_until(lambda: handled(t, delivery, effects) > (number + 1) * before_kills // (kills + 2))  # noqa: B023
                workers.pop(0).kill()
                put_some(queue, put_one_by_one, (jobs - before_kills) // (2 * kills))
                broker.kill()
                broker.start()
                put_some(queue, put_one_by_one, (jobs - before_kills) // (2 * kills))
                workers.append(Worker(broker.url, delivery, effects))
            put_some(queue, put_one_by_one, jobs)
            wait_until(lambda: waiting(t, "jobs") == 0)
            counted = counts(t, delivery, effects)
    finally:
        for worker in workers:
            worker.kill()
        broker.kill()
    lost = jobs - len(counted)
    return Outcome(delivery, jobs, kills, kills, lost, sum(1 for times in counted.values() if times > 1))


def put_some(queue: trunkline.Queue[object], numbers: object, count: int) -> None:
    for _, number in zip(range(count), numbers, strict=False):  # type: ignore[call-overload]
        try:
            queue.put(number)
        except trunkline.ConnectionLost:
            pass  # at most once: it is not sent again, and may be lost


def waiting(t: trunkline.Connection, name: str) -> int:
    (queue,) = t.manage("queues", name=name)  # type: ignore[misc]
    return int(queue["ready"]) + int(queue["unacked"])


def handled(t: trunkline.Connection, delivery: str, effects: Path) -> int:
    return waiting(t, "results") if delivery in IN_QUEUE else len(effects.read_bytes().split())


def counts(t: trunkline.Connection, delivery: str, effects: Path) -> Counter[int]:
    if delivery not in IN_QUEUE:
        return Counter(map(int, effects.read_text().split()))
    found: Counter[int] = Counter()
    results = t.queue("results")
    while (message := results.poll()) is not None:
        found[int(message.value)] += 1
        message.ack()
    return found


def wait_until(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():  # type: ignore[operator]
                return
        except trunkline.Refused:
            pass  # the queue is not declared yet
        if time.monotonic() > deadline:
            raise SystemExit("it did not come to an end")
        time.sleep(0.05)


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("delivery", nargs="*", choices=[*DELIVERIES, []], help="which; all unless said")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3, help="of a worker and of the broker, each")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    broken = False
    if not asked.json:
        print(f"{'delivery':15} {'jobs':>5} {'kills':>6} {'lost':>5} {'twice':>6}")
    for delivery in asked.delivery or DELIVERIES:
        with tempfile.TemporaryDirectory() as directory:
            outcome = demonstrate(delivery, asked.jobs, asked.kills, Path(directory))
        broken |= not outcome.kept
        if asked.json:
            print(json.dumps({**outcome._asdict(), "kept": outcome.kept}))
        else:
            kills = outcome.killed_workers + outcome.killed_brokers
            promise = "" if outcome.kept else "   the promise was broken"
            print(f"{delivery:15} {outcome.jobs:5} {kills:6} {outcome.lost:5} {outcome.twice:6}{promise}", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
