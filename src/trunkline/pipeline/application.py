"""Pipelines as files: `pipeline.toml`, or a Python file that has a `Pipeline` under the name `pipeline`.

from trunkline.pipeline.definition import Pipeline, Source, TopicSink, Transformation

def large(orders):
    return orders.where("amount > 100")

pipeline = Pipeline(
    name="large-orders",
    sources=(Source(name="orders", topics=("orders",), format="json"),),
    transformations=(Transformation(name="large", inputs=("orders",), function=large),),
    sinks=(TopicSink(topic="large-orders", key="customer"),),
)
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

from trunkline.pipeline import definition
from trunkline.pipeline.definition import DefinitionError, Pipeline

NAME = "pipeline"


def load(path: Path) -> Pipeline:
    if path.suffix == ".toml":
        return definition.load(path)
    if path.suffix != ".py":
        raise DefinitionError(f"{path}: a pipeline is a .toml or a .py file")
    if not path.is_file():
        raise DefinitionError(f"{path}: there is no such file")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    # Not as __main__: what the file does when it is run by itself is not what a pipeline is loaded for.
    found = runpy.run_path(str(path), run_name=path.stem).get(NAME)
    if not isinstance(found, Pipeline):
        raise DefinitionError(f"{path}: there is no `{NAME} = Pipeline(...)` in it")
    return replace(found, directory=path.resolve().parent)
