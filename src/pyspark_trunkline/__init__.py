"""What PySpark looks for: every package on the path whose name begins with `pyspark_` and that has a `DefaultSource`.

`import pyspark_trunkline` in a program or notebook lets `frame.write.format("trunkline").save()` do without a mode.
"""

from __future__ import annotations

from trunkline.pipeline.datasource import TrunklineDataSource as DefaultSource
from trunkline.pipeline.save_mode import append_by_default

append_by_default()

__all__ = ["DefaultSource"]
