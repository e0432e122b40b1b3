"""Schemas of records: inferred from examples, translated from Avro, and the reasons why a record does not fit."""

from __future__ import annotations

import io
import json

import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from trunkline.pipeline import csv_schema, json_schema
from trunkline.pipeline.avro import AvroError, Decoder, columns, parse_schema
from trunkline.pipeline.json_schema import Columns, infer


def inferred(*values: object) -> str | None:
    return infer([json.dumps(value).encode() for value in values])


def test_examples_widen_the_schema() -> None:
    assert inferred({"a": 1}, {"a": 2.5, "b": True}, {"c": None}) == "`a` DOUBLE, `b` BOOLEAN, `c` STRING"
    assert inferred({"a": [1, 2.0], "s": {"x": 1}}, {"s": {"y": "t"}}) == (
        "`a` ARRAY<DOUBLE>, `s` STRUCT<`x`: BIGINT, `y`: STRING>"
    )
    assert inferred({"a": 1}, {"a": "text"}) == "`a` STRING"
    assert inferred({"a": 2**70}, {"a": []}, {"e": {}}) == "`a` STRING, `e` STRING"
    assert inferred({"Id": 1, "ID": "x"}, {"id": 2}) == "`Id` BIGINT"


def test_what_is_no_object_does_not_count() -> None:
    assert infer([None, b"{", b"[1]", b"\xff", b'"x"']) is None
    assert infer([b"nope", b'{"a": "x"}']) == "`a` STRING"


@given(
    st.lists(
        st.binary(max_size=40)
        | st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
        max_size=6,
    )
)
def test_inference_and_reasons_take_any_bytes(values: list[bytes]) -> None:
    found = infer(values)
    assert found is None or found.startswith("`")
    for value in values:
        assert json_schema.explain(value, {"a": ("bigint", True), "b": ("struct<c:int>", False)})
        assert csv_schema.explain(value, {"a": ("bigint", True), "b": ("string", False)})


COLUMNS: Columns = {"id": ("bigint", True), "name": ("string", False), "small": ("tinyint", False)}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the record has no value"),
        (b" ", "the value is empty"),
        (b"\xff", "not UTF-8: byte 0 is 0xff"),
        (b"{", "not JSON: Expecting property name"),
        (b"null", "not a JSON object but null"),
        (b'{"name": "x"}', "field id is missing"),
        (b'{"id": null}', "field id is null"),
        (b'{"id": "7"}', 'field id: expected bigint, found "7"'),
        (b'{"id": true}', "field id: expected bigint, found true"),
        (b'{"id": 1, "small": 300}', "field small: expected tinyint, found 300"),
    ],
)
def test_the_reason_names_the_first_thing_that_is_wrong_in_json(value: bytes | None, reason: str) -> None:
    assert json_schema.explain(value, COLUMNS).startswith(reason)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1,x", "expected 3 columns, found 2"),
        (b",x,1", "column id is empty"),
        (b"one,x,1", "column id: expected bigint, found 'one'"),
        (None, "the record has no value"),
    ],
)
def test_the_reason_names_the_first_thing_that_is_wrong_in_csv(value: bytes | None, reason: str) -> None:
    assert csv_schema.explain(value, COLUMNS) == reason


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "Status"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}  # fmt: skip


def test_avro_types_have_their_columns() -> None:
    assert columns(parse_schema(json.dumps(AVRO))) == (
        "`id` BIGINT, `note` STRING, `status` STRING, `before` STRING, `price` DECIMAL(9, 2), "
        "`lines` ARRAY<STRUCT<`sku`: STRING>>, `tags` MAP<STRING, INT>, `at` TIMESTAMP"
    )


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not JSON"),
        ('"string"', "must be a record"),
        ('{"type": "record", "name": "r", "fields": []}', "has no fields"),
        ('{"type": "record", "name": "r", "fields": [{"name": "u", "type": ["int", "string"]}]}', "u: a union must be"),
        ('{"type": "record", "name": "r", "fields": [{"name": "n", "type": "r"}]}', "cannot contain themselves"),
    ],
)
def test_avro_schemas_that_cannot_be_columns_are_refused(schema: str, complaint: str) -> None:
    with pytest.raises(AvroError, match=complaint):
        columns(parse_schema(schema))


def test_avro_values_decode_or_say_why_not() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}],
    }
    buffer = io.BytesIO()
    schemaless_writer(buffer, schema, {"id": 7, "s": "x"})
    value = buffer.getvalue()
    plain, framed = Decoder(json.dumps(schema)), Decoder(json.dumps(schema), framed=True)
    assert plain.decode(value) == ({"id": 7, "s": "x"}, None)
    assert framed.decode(b"\x00\x00\x00\x00\x2a" + value) == ({"id": 7, "s": "x"}, None)
    assert plain.decode(None) == (None, "the record has no value")
    assert plain.decode(value + b"!!") == (None, "not Avro of this schema: 2 bytes are left over")
    row, reason = plain.decode(value[:1])
    assert row is None
    assert reason is not None
    assert reason.startswith("not Avro of this schema")
