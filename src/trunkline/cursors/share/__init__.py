"""The share cursor: the records of a partition, given out to the members of a share group (KIP-932).

`SharePartitions` is the way in: what each share group has of each partition. See `partition` for one of them, `in_flight` for
what is between given out and done with, `reading` for how records are found.
"""

from trunkline.cursors.share.errors import InvalidAcknowledgement, RecordNotHeld
from trunkline.cursors.share.partition import Acknowledgement, AcknowledgeType, Acquired
from trunkline.cursors.share.partitions import ShareOffset, SharePartitions
from trunkline.cursors.share.reading import Taken, Wanted

__all__ = [
    "AcknowledgeType",
    "Acknowledgement",
    "Acquired",
    "InvalidAcknowledgement",
    "RecordNotHeld",
    "ShareOffset",
    "SharePartitions",
    "Taken",
    "Wanted",
]
