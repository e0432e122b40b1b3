"""What PySpark looks for: every package on the path whose name begins with `pyspark_` and that has a `DefaultSource`."""

from __future__ import annotations

from trunkline.pipeline.datasource import TrunklineDataSource as DefaultSource

__all__ = ["DefaultSource"]
