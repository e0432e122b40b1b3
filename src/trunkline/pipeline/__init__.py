"""The log as a table of Apache Spark, read and written with plain PySpark.

    datasource   what `format("trunkline")` is: schema, readers, writers
    options      the options of source and sink, checked
    positions    where partitions begin and end, and what the options ask for
    planning     offsets as text, admission control, division into Spark partitions
    source       the batch and the streaming reader
    ranges       the records of one offset range, through the Kafka listener
    segments     the same from segment files, where they are on this machine
    columns      record batches -> Arrow buffers (compiled)
    arrow        Arrow buffers -> Arrow batches, and back
    encoding     Arrow buffers -> record batches (compiled)
    sink         the batch and the streaming writer
    save_mode    writes without a mode append
    ledger       which batch of which query was written: exactly once
    session      a local Spark session, and what to do without Java

Pipelines are built on it:

    definition   sources, transformations and sinks as data, from TOML or Python (`application`)
    parsing      rows that fit a schema, and malformed records with the reason: `json_schema`, `csv_schema`, `avro`
    dead_letters malformed records on their way to their topic
    views        the data frames of a definition
    sinks        a streaming query per sink: `file_sink`, `lake`, `postgresql`, `jdbc`
    runner       queries started, watched, started again; `progress` folds what Spark reports
    causes       one line of what Spark says of an error; `spark_log` has the rest
    patience     attempts where Spark's Python workers come late
    home         state on disk: versions, locks, checkpoints
    archive      a topic kept as a lake table

Of the first list only `datasource`, `source`, `sink`, `save_mode` and `session` import PySpark; the rest is for whoever has records and
wants columns.
"""
