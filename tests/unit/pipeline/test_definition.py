"""Definitions: what a file may say, and what is said about one that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trunkline.pipeline import application
from trunkline.pipeline.definition import DefinitionError, DeltaSink, Pipeline, TopicSink, from_table, load

SOURCE = {"name": "orders", "topics": ["orders"]}
SINK = {"kind": "topic", "topic": "out"}


def define(**table: object) -> Pipeline:
    return from_table({"source": [SOURCE], "sink": [SINK], **table}, default_name="test", directory=Path("/nowhere"))


def test_a_file_becomes_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "large-orders.toml"
    file.write_text(
        """
        trigger_ms = 1000
        [spark]
        spark.ui.enabled = true
        [[source]]
        name = "orders"
        topics = ["orders", "old-orders"]
        format = "json"
        schema = "id BIGINT NOT NULL, amount DOUBLE"
        options = { maxOffsetsPerTrigger = 1000 }
        [[transformation]]
        name = "large"
        sql = "SELECT * FROM orders WHERE amount > 100"
        [[sink]]
        kind = "topic"
        topic = "large-orders"
        key = "id"
        [[sink]]
        kind = "delta"
        path = "lake/large/{version}"
        mode = "upsert"
        keys = "id"
        view = "orders"
        """
    )
    found = load(file)
    assert (found.name, found.trigger_ms, found.directory) == ("large-orders", 1000, tmp_path)
    assert found.spark == {"spark.ui.enabled": "true"}
    (source,) = found.sources
    assert (source.topics, source.dead_letters) == (("orders", "old-orders"), "orders.dead-letters")
    assert source.options == {"maxOffsetsPerTrigger": "1000"}
    topic, delta = found.sinks
    assert isinstance(topic, TopicSink)
    assert isinstance(delta, DeltaSink)
    assert (found.view_of(topic), found.view_of(delta), delta.keys) == ("large", "orders", ("id",))
    assert found.query_of(delta) == "lake-large-version"


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"source": []}, r"needs a \[\[source\]\]"),
        ({"sink": []}, r"needs a \[\[sink\]\]"),
        ({"source": SOURCE}, r"must be written as \[\[source\]\]"),
        ({"nmae": "x"}, "no key 'nmae'; did you mean name"),
        ({"name": "a/b"}, "no name for a pipeline"),
        ({"trigger_ms": "often"}, "trigger_ms must be a whole number"),
        ({"source": [{"name": "orders"}]}, "set either topics or pattern"),
        ({"source": [{"topics": ["x"]}]}, "needs the key 'name'"),
        ({"source": [{**SOURCE, "topcis": 1}]}, "source 'orders' has no key 'topcis'; did you mean topics"),
        ({"source": [{**SOURCE, "headers": "yes"}]}, "headers must be true or false"),
        ({"source": [{**SOURCE, "name": "a-b"}]}, "so that SQL can say it"),
        ({"source": [{**SOURCE, "format": "xml"}]}, "format must be one of raw, json, csv, avro"),
        ({"source": [{**SOURCE, "format": "csv"}]}, "format csv needs a schema"),
        ({"source": [{**SOURCE, "schema": "id INT"}]}, "a schema needs format"),
        ({"source": [{**SOURCE, "topics": ["a b"]}]}, "a character other than"),
        ({"source": [SOURCE, SOURCE]}, "two views are called 'orders'"),
        ({"source": [SOURCE, {**SOURCE, "name": "more"}]}, "view must say which"),
        ({"sink": [{"kind": "tape"}]}, "kind must be one of topic, parquet"),
        ({"sink": [{**SINK, "view": "nothing"}]}, "there is no view 'nothing': there is orders"),
        ({"sink": [{**SINK, "view": "order"}]}, "there is no view 'order'; did you mean orders?"),
        ({"sink": [SINK, SINK]}, "two sinks are called 'out'"),
        ({"sink": [{**SINK, "mode": "complete"}]}, "mode must be one of append, update"),
        ({"sink": [{"kind": "delta", "path": "x", "mode": "upsert"}]}, "mode = 'upsert' and keys go together"),
        ({"sink": [{"kind": "iceberg", "table": "x", "path": "y"}]}, "must be like namespace.table"),
        ({"sink": [{"kind": "iceberg", "table": "x.y"}]}, "set either path or catalog"),
        ({"sink": [{"kind": "postgresql", "table": "x", "url": "mysql://h/d"}]}, "must begin with postgresql"),
        ({"sink": [{"kind": "jdbc", "table": "x; drop", "url": "jdbc:h2:x"}]}, "table must be a plain name"),
        ({"transformation": [{"name": "x"}]}, "set either sql or function"),
        ({"transformation": [{"name": "x", "function": "m:f"}]}, "inputs must name the views"),
        ({"transformation": [{"name": "x", "function": "m.f", "inputs": ["orders"]}]}, "must be like module:function"),
        ({"transformation": [{"name": "x", "function": "m:f", "inputs": ["later"]}]}, "no view 'later' comes before"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        define(**table)


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("name = ")
    with pytest.raises(DefinitionError, match=r"p\.toml: not valid TOML"):
        load(file)
    with pytest.raises(DefinitionError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")


def test_a_python_file_has_its_pipeline_by_name(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "from trunkline.pipeline.definition import Pipeline, Source, TopicSink\n"
        "assert __name__ != '__main__'\n"
        "pipeline = Pipeline(name='coded', sources=(Source(name='s', topics=('t',)),), sinks=(TopicSink(topic='o'),))\n"
    )
    found = application.load(file)
    assert (found.name, found.directory) == ("coded", tmp_path)
    file.write_text("pipeline = 7\n")
    with pytest.raises(DefinitionError, match="there is no `pipeline = Pipeline"):
        application.load(file)
    with pytest.raises(DefinitionError, match=r"a \.toml or a \.py file"):
        application.load(tmp_path / "app.yaml")


def test_the_example_in_python_is_the_one_of_the_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
    (toml,) = (text for text in re.findall("```toml\n(.*?)```", page, re.DOTALL) if "[[source]]" in text)
    (python,) = (text for text in re.findall("```python\n(.*?)```", page, re.DOTALL) if "Pipeline(" in text)
    (tmp_path / "large-orders.toml").write_text(toml)
    (tmp_path / "app.py").write_text(python)
    written, coded = application.load(tmp_path / "large-orders.toml"), application.load(tmp_path / "app.py")
    assert (coded.name, coded.sources, coded.sinks) == (written.name, written.sources, written.sinks)
    assert [item.name for item in coded.transformations] == [item.name for item in written.transformations]
    assert callable(coded.transformations[0].function)
