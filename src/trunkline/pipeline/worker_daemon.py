"""The process that Spark forks its Python workers from, with what they need already imported.

    python -m trunkline.pipeline.worker_daemon MODULE        as Spark calls it, see `spark.python.daemon.module`

Spark's own daemon forks first and lets each worker import for itself, because a library may start threads when it is
imported. That costs each worker most of a second, and a query uses half a dozen. What is imported here starts no thread that
a fork could break: numpy's are switched off, and the one of Arrow's allocator is started again by itself.
"""

from __future__ import annotations

import importlib
import os
import sys

from trunkline.pipeline.garbage import freeze_once

_IMPORTED = ("pyarrow", "trunkline.pipeline.datasource", "trunkline.pipeline.source", "trunkline.pipeline.sink")


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (*sys.argv[1:2], *_IMPORTED):
        importlib.import_module(name)
    from pyspark.daemon import manager

    freeze_once()
    manager()


if __name__ == "__main__":
    main()
