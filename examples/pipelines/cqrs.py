"""CQRS: commands are judged and written as events; views are kept beside, queried over HTTP while writes go on.

    POST /transfers  -->  topic movements  --(Spark)-->  views in SQLite  -->  GET /accounts/NAME, GET /largest

The two sides share nothing but the log. The write side answers with the positions of the events that it wrote. A
reader who must see his own write passes them on (`GET /accounts/ann?after=0:17`) and is answered when the view has
reached them; everyone else is answered at once with what the view has, and with how far it has come.

Both views and the offsets that they reach are changed in one transaction of SQLite per batch, together with the batch's
number: a reader sees the views of one moment, and a batch that Spark repeats is applied once.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered
from pyspark.sql import functions as f
from stage import PATIENCE_SECONDS, Stage, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "account STRING, amount BIGINT"
TABLES = """
    CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, movements INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS reached (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS batches (query TEXT PRIMARY KEY, batch INTEGER NOT NULL);
"""
MAX_BODY_BYTES = 64 * 1024
MAX_WAIT_SECONDS = 60.0
ACCOUNTS = ("ann", "bob", "eve", "joe")
TRANSFERS = 40

Positions: TypeAlias = dict[int, int]
"""partition -> offset"""


@dataclass(frozen=True)
class Answered:
    balances: dict[str, int]
    """What the view answers at the end, over HTTP."""
    expected: dict[str, int]
    own_write_seen: bool
    """Each reader who passed on where his write was saw at least that write."""
    answers_during_writes: int
    largest: list[tuple[str, int]]


class Ledger:
    """The write side: a transfer is two movements, written together or not at all."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()  # a transactional producer has one transaction at a time
        settings = {
            "bootstrap.servers": stage.bootstrap,
            "transactional.id": stage.name("ledger"),
            "linger.ms": 0,
            "log_level": 2,
        }
        self._producer = Producer(settings)
        self._producer.init_transactions(PATIENCE_SECONDS)

    def transfer(self, source: str, target: str, amount: int) -> Positions:
        """Refuse what makes no sense, write the rest; where in the log it is."""
        if amount <= 0 or source == target:
            raise ValueError("a transfer moves a positive amount between two accounts")
        written: Positions = {}
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Delivered) -> None:
            if error is not None:
                failures.append(error)
            else:
                written[message.partition()] = max(written.get(message.partition(), 0), message.offset())

        with self._lock:
            self._producer.begin_transaction()
            for account, change in ((source, -amount), (target, amount)):
                value = json.dumps({"account": account, "amount": change})
                self._producer.produce(self._topic, value, account, on_delivery=delivered)
            self._producer.commit_transaction(PATIENCE_SECONDS)
        if failures:
            raise RuntimeError(str(failures[0]))
        return written


class Views:
    """The read side: tables in SQLite, changed by one writer and read by any number of readers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._connection() as database:
            database.execute("PRAGMA journal_mode = WAL")  # readers go on while a batch is applied
            database.executescript(TABLES)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=MAX_WAIT_SECONDS)) as database, database:
            yield database

    def applier(self) -> Callable[[DataFrame, int], None]:
        def apply(batch: DataFrame, number: int) -> None:
            batch = batch.persist()
            parsed = batch.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("moved"))
            changes = parsed.groupBy("moved.account").agg(
                f.sum("moved.amount").alias("amount"), f.count("*").alias("n")
            )
            places = batch.groupBy("partition").agg(f.max("offset").alias("position"))
            changed, reached = changes.toArrow().to_pylist(), places.toArrow().to_pylist()
            batch.unpersist()
            with self._connection() as database:
                last = database.execute("SELECT batch FROM batches WHERE query = 'balances'").fetchone()
                if last is not None and last[0] >= number:
                    return
                database.executemany(
                    """INSERT INTO balances VALUES (:account, :amount, :n) ON CONFLICT (account)
                       DO UPDATE SET balance = balance + excluded.balance, movements = movements + excluded.movements""",
                    changed,
                )
                database.executemany("INSERT OR REPLACE INTO reached VALUES (:partition, :position)", reached)
                database.execute("INSERT OR REPLACE INTO batches VALUES ('balances', ?)", [number])

        return apply

    def account(self, name: str) -> dict[str, object] | None:
        with self._connection() as database:
            row = database.execute("SELECT balance, movements FROM balances WHERE account = ?", [name]).fetchone()
            reached = dict(database.execute("SELECT partition, position FROM reached"))
        return {"account": name, "balance": row[0], "movements": row[1], "reached": reached} if row else None

    def largest(self) -> list[tuple[str, int]]:
        with self._connection() as database:
            return database.execute(
                "SELECT account, balance FROM balances ORDER BY balance DESC, account LIMIT 10"
            ).fetchall()

    def wait_for(self, positions: Positions) -> bool:
        """Whether the views reached these positions before the time was over."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        while True:
            with self._connection() as database:
                reached = dict(database.execute("SELECT partition, position FROM reached"))
            if all(reached.get(partition, -1) >= offset for partition, offset in positions.items()):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def handler(ledger: Ledger, views: Views) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            if urlsplit(self.path).path != "/transfers" or not 0 < length <= MAX_BODY_BYTES:
                self.close_connection = True
                return self._answer(HTTPStatus.NOT_FOUND, {"error": "POST a transfer to /transfers"})
            try:
                asked = json.loads(self.rfile.read(length))
                written = ledger.transfer(str(asked["from"]), str(asked["to"]), int(asked["amount"]))
            except (ValueError, KeyError, TypeError) as error:
                return self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
            position = ",".join(f"{partition}:{offset}" for partition, offset in sorted(written.items()))
            return self._answer(HTTPStatus.CREATED, {"position": position})

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            try:
                after = parse_positions(parse_qs(url.query).get("after", [""])[0])
            except ValueError:
                return self._answer(HTTPStatus.BAD_REQUEST, {"error": "after is PARTITION:OFFSET, with commas between"})
            if after and not views.wait_for(after):
                return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "the view is not there yet"})
            if url.path == "/largest":
                return self._answer(HTTPStatus.OK, views.largest())
            found = views.account(unquote(url.path.removeprefix("/accounts/")))
            if found is None:
                return self._answer(HTTPStatus.NOT_FOUND, {"error": "no such account"})
            return self._answer(HTTPStatus.OK, found)

        def _answer(self, status: HTTPStatus, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are many and of no interest."""

    return Handler


def parse_positions(text: str) -> Positions:
    pairs = (item.split(":") for item in text.split(",") if item)
    return {int(partition): int(offset) for partition, offset in pairs}


def run(stage: Stage) -> Answered:
    topic = stage.topic("movements")
    views = Views(stage.directory / "views.sqlite")
    writer = stage.stream(topic).writeStream.foreachBatch(views.applier())
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(Ledger(stage, topic), views))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    query = stage.start(writer, "balances")
    try:
        return _use(stage, f"http://127.0.0.1:{server.server_port}")
    finally:
        query.stop()
        server.shutdown()
        server.server_close()


def _use(stage: Stage, url: str) -> Answered:
    """Write and read in turns: now and then what was just written, else what there is."""
    expected = dict.fromkeys(ACCOUNTS, 0)
    own_write_seen, answers, position = True, 0, ""
    for number in range(TRANSFERS):
        source, target = ACCOUNTS[number % 4], ACCOUNTS[(number + 1 + number % 3) % 4]
        position = str(_post(f"{url}/transfers", {"from": source, "to": target, "amount": number + 1})["position"])
        expected[source] -= number + 1
        expected[target] += number + 1
        if number % 20 == 5:
            answer = _get(f"{url}/accounts/{source}?after={position}")
            own_write_seen = own_write_seen and answer["balance"] == expected[source]
        elif number > 5:
            answers += bool(_get(f"{url}/accounts/{target}"))
    balances = {name: int(str(_get(f"{url}/accounts/{name}?after={position}")["balance"])) for name in ACCOUNTS}
    with urllib.request.urlopen(f"{url}/largest?after={position}", timeout=PATIENCE_SECONDS) as response:
        largest = [(name, balance) for name, balance in json.load(response)]
    stage.show("GET /largest", ["account", "balance"], largest)
    stage.say(f"{TRANSFERS} transfers written and {answers} queries answered at the same time, from {url}")
    return Answered(balances, expected, own_write_seen, answers, largest)


def _get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
        found: dict[str, object] = json.load(response)
        return found


def _post(url: str, content: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        found: dict[str, object] = json.load(response)
        return found


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
