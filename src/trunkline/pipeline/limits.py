"""The limits of the Spark source and sink. Those that are an option of the data source are defaults here."""

from __future__ import annotations

MAX_ROWS_PER_ARROW_BATCH = 20_000
MAX_BYTES_PER_ARROW_BATCH = 4 << 20
"""Of keys, values and headers; reached with the record batch that exceeds it."""

FETCH_BYTES = 8 << 20
"""Asked for with each fetch; one is decoded while the next is on its way."""

RECORDS_PER_SPARK_PARTITION = 2_000_000
"""Longer offset ranges are split, so that no task is much longer than the others."""
MAX_SPARK_PARTITIONS = 10_000

SAMPLE_BYTES = 4 << 20
"""Read per partition to estimate how many offsets `maxBytesPerTrigger` is."""

STALL_MS = 30_000
"""How long a task waits for records that were planned and do not come."""

DISCOVERY_INTERVAL_MS = 1_000
"""How often a stream looks for new topics and partitions."""

MAX_BATCH_BODY_BYTES = 900_000
"""Of a record batch that the sink makes: topics take 1 MiB by default."""

MAX_SINK_TASKS = 10_000
"""Of one streaming batch: the ledger has a partition for each."""

MAX_DRIVER_ROWS = 200_000
MAX_DRIVER_BYTES = 64 << 20
"""Of one batch of a sink whose rows come to the driver: Delta, Iceberg, PostgreSQL. The source's own options go first."""

SAMPLE_RECORDS = 1_000
"""Read from the beginning of a topic to infer a schema."""

STOP_TIMEOUT_MS = 60_000
"""How long a pipeline waits for a query to end when it is stopped."""
