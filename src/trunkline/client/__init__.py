"""A small synchronous Kafka client on our own codec: what the command line speaks with.

    errors       what a broker or the network refused, and what to do
    connection   one socket: negotiated versions, one request at a time
    client       which broker to ask: metadata, leaders, coordinators, retries
    topics       create, describe, alter, delete; offsets by time
    producer     batches, partitioner, idempotent sequence numbers
    sending      batches on their way: several requests in flight, sent again after a lost connection
    transaction  batches and offsets that count together or not at all
    reader       records of partitions, from offsets on; read_committed
    groups       list, describe, offsets, reset, delete
    member       a member of a consumer group (KIP-848)

It speaks to Trunkline and to Apache Kafka alike. It is not tuned for load: applications use a Kafka client library.
"""

from __future__ import annotations

from trunkline.client.client import Client
from trunkline.client.errors import ClientError

__all__ = ["Client", "ClientError"]
