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
    ledger       which batch of which query was written: exactly once
    session      a local Spark session, and what to do without Java

Only `datasource`, `source`, `sink` and `session` import PySpark; the rest is for whoever has records and wants columns.
"""
