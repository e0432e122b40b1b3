"""Content-based routing: each document goes to the topics whose rule its content meets, in the format that they want.

    topic documents   JSON, CSV and Avro mixed; the header content-type says which
      --> express     documents that are in a hurry, as JSON
      --> customs     documents from abroad, as Avro
      --> audit       large amounts, as CSV
      --> archive     what no rule takes, as JSON
      --> documents.dead-letters   what does not parse, as it came, with the reason and where it was

One streaming query does it all: the rules become one SQL expression, the sink takes the topic from a column. So the outputs
of a document are written together, exactly once, and a document that does not parse stops nothing.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import fastavro
from formats import AVRO, CSV, JSON, avro_schema, parsed, written
from pyspark.sql import functions as f
from stage import Message, Stage, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIELDS = {"id": "BIGINT", "country": "STRING", "cents": "BIGINT", "express": "BOOLEAN"}
DOCUMENTS = 30

Document: TypeAlias = dict[str, object]


@dataclass(frozen=True)
class Rule:
    topic: str
    when: str
    """A condition in SQL over the document's fields."""
    content_type: str


RULES = (
    Rule("express", "express", JSON),
    Rule("customs", "country <> 'DE'", AVRO),
    Rule("audit", "cents >= 10000", CSV),
)
REST = Rule("archive", "true", JSON)
DEAD_LETTERS = "documents.dead-letters"


@dataclass(frozen=True)
class Routed:
    sent: list[Document]
    received: dict[str, list[Document]]
    """topic -> the documents in it, read back from its format"""
    dead: list[tuple[bytes | None, str]]
    """value and reason"""


def route(documents: DataFrame, rules: Iterable[Rule], rest: Rule, dead_letters: str) -> DataFrame:
    """What to write: key, value, headers, topic. The log is read once, whatever the number of rules."""
    header = f.expr("cast(get(filter(headers, h -> h.key = 'content-type'), 0).value AS string)")
    known = documents.withColumn("content_type", header)
    judged = parsed(known, FIELDS).withColumn(
        "reason", f.expr("CASE WHEN document.id IS NULL THEN coalesce(reason, 'there is no id') END")
    )
    judged = judged.select("*", "document.*")  # so that the rules can name the fields
    matched = ", ".join(f"CASE WHEN {rule.when} THEN {_target(rule.topic, rule.content_type)} END" for rule in rules)
    chosen = judged.selectExpr("*", f"array_compact(array({matched})) AS matched").selectExpr(
        "*",
        f"""explode(CASE WHEN reason IS NOT NULL THEN array({_target(dead_letters, "")})
                         WHEN size(matched) = 0 THEN array({_target(rest.topic, rest.content_type)})
                         ELSE matched END) AS target""",
    )
    converted = written(f.col("document"), f.col("target.format"), FIELDS)
    place = "concat(topic, '-', partition, ' at ', offset)"
    dead_headers = f"array_union(headers, array({_header('reason', 'reason')}, {_header('came-from', place)}))"
    return chosen.select(
        "key",
        f.when(f.col("reason").isNull(), converted).otherwise(f.col("value")).alias("value"),
        f.expr(
            f"CASE WHEN reason IS NULL THEN array({_header('content-type', 'target.format')}) ELSE {dead_headers} END"
        ).alias("headers"),
        f.col("target.topic").alias("topic"),
    )


def _target(topic: str, content_type: str) -> str:
    return f"named_struct('topic', '{topic}', 'format', '{content_type}')"


def _header(name: str, text: str) -> str:
    return f"named_struct('key', '{name}', 'value', cast({text} AS binary))"


def run(stage: Stage) -> Routed:
    source, dead = stage.topic("documents"), stage.topic(DEAD_LETTERS, 1)
    rules = [Rule(stage.topic(rule.topic, 1), rule.when, rule.content_type) for rule in RULES]
    rest = Rule(stage.topic(REST.topic, 1), REST.when, REST.content_type)
    sent = [document(number) for number in range(DOCUMENTS)]
    stage.send(source, [_encoded(each, (JSON, CSV, AVRO)[number % 3]) for number, each in enumerate(sent)])
    stage.send(source, malformed())
    outgoing = route(stage.stream(source, includeHeaders="true"), rules, rest, dead)
    writer = (
        outgoing.writeStream.format("trunkline").option("bootstrap", stage.bootstrap).option("includeHeaders", "true")
    )
    stage.catch_up(writer, "routing")
    routed = Routed(
        sent,
        {
            rule.topic.removeprefix(stage.prefix): [decoded(item) for item in stage.messages(rule.topic)]
            for rule in (*rules, rest)
        },
        [(item.value, item.headers["reason"].decode()) for item in stage.messages(dead)],
    )
    formats = {rule.topic: rule.content_type for rule in (*RULES, REST)}
    stage.show(
        "where the documents went",
        ["topic", "as", "documents"],
        [(name, formats[name], len(found)) for name, found in routed.received.items()],
    )
    stage.show("dead letters", ["value", "reason"], routed.dead)
    return routed


def document(number: int) -> Document:
    country = ("DE", "FR", "DE", "DE")[number % 4]
    return {"id": number, "country": country, "cents": number * 541 % 12_000, "express": number % 5 == 0}


def malformed() -> list[Message]:
    return [
        Message("1", b'{"id": 1, "country"', {"content-type": JSON.encode()}),
        Message("2", b"seven,DE", {"content-type": CSV.encode()}),
        Message("3", b"\xff\xff\xff", {"content-type": AVRO.encode()}),
        Message("4", b"<id>4</id>", {"content-type": b"application/xml"}),
        Message("5", b'{"country": "DE"}', {"content-type": JSON.encode()}),
        Message("6", b'{"id": 6}'),
    ]


def _encoded(content: Document, content_type: str) -> Message:
    stream = io.BytesIO()
    if content_type == JSON:
        stream.write(json.dumps(content).encode())
    elif content_type == CSV:
        line = io.StringIO()
        cells = [str(value).lower() if isinstance(value, bool) else value for value in content.values()]
        csv.writer(line, lineterminator="").writerow(cells)
        stream.write(line.getvalue().encode())
    else:
        fastavro.schemaless_writer(stream, avro_schema(FIELDS), content)
    return Message(str(content["id"]), stream.getvalue(), {"content-type": content_type.encode()})


def decoded(message: Message) -> Document:
    """A document as a consumer without Spark reads it."""
    content_type, value = message.headers["content-type"].decode(), message.value or b""
    if content_type == JSON:
        found: Document = json.loads(value)
        return found
    if content_type == CSV:
        number, country, cents, express = next(csv.reader([value.decode()]))
        return {"id": int(number), "country": country, "cents": int(cents), "express": express == "true"}
    record: Document = fastavro.schemaless_reader(io.BytesIO(value), avro_schema(FIELDS), None)
    return record


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
