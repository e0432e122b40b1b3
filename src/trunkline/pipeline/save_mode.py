"""`frame.write.format("trunkline").save()` without a mode: appends, as Spark's Kafka sink does.

Spark's default mode is an error if the target exists, and Spark refuses that mode for every data source written in Python,
before it asks the source. The refusal comes before anything is planned or written, so the same write can be tried again
with the mode that is meant. That is done on the driver, where no code of a data source runs otherwise: by whoever imports
`pyspark_trunkline` there, or takes a session from `trunkline.pipeline.session`.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql.readwriter import DataFrameWriter

_FORMAT = "trunkline"
_REFUSED = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
_DEFAULT_MODE = "errorifexists"

_saved_by_spark = DataFrameWriter.save


def _save(
    self: DataFrameWriter,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,  # noqa: N803 (Spark's name)
    **options: str | None,
) -> None:
    try:
        _saved_by_spark(self, path, format, mode, partitionBy, **options)
    except AnalysisException as error:
        if not _is_for_want_of_a_mode(error):
            raise
        _saved_by_spark(self, path, format, "append", partitionBy, **options)


def _is_for_want_of_a_mode(error: AnalysisException) -> bool:
    said = error.getMessageParameters() or {}
    asked = said.get("createMode", "").strip('"').lower()
    return error.getCondition() == _REFUSED and said.get("source") == _FORMAT and asked == _DEFAULT_MODE


def append_by_default() -> None:
    _save.__doc__ = _saved_by_spark.__doc__
    DataFrameWriter.save = _save  # type: ignore[method-assign, assignment]
