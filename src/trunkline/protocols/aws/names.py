"""What queues and topics are called: names, URLs and ARNs.

A queue's URL is `http://host:port/000000000000/name`, host and port as the client itself calls this server. The last part of a
path is the name; so the older shapes (`/queue/name`, `sqs.eu-west-1.localhost…/000000000000/name`, `eu-west-1.queue…/…`) are
understood, too. Account and region are echoed from the request and separate nothing: there is one broker.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from trunkline.protocols.aws.call import Call
from trunkline.protocols.aws.errors import AwsError, invalid

ACCOUNT: Final = "000000000000"
FIFO: Final = ".fifo"
_NEW_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_MAX_NAME_CHARS: Final = 80


def check_new_queue(name: str) -> None:
    """What SQS may create. Other protocols' names may be longer and have other characters."""
    plain = name.removesuffix(FIFO)
    if _NEW_NAME.fullmatch(plain) is None or len(name) > _MAX_NAME_CHARS:
        raise invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")


def queue_url(call: Call, name: str) -> str:
    return f"{call.scheme}://{call.host}/{ACCOUNT}/{name}"


def name_in_url(url: str) -> str:
    path = url if url.startswith("/") else urlsplit(url).path
    name = unquote(path.rstrip("/").rpartition("/")[2])
    if not name:
        raise AwsError("InvalidAddress", f"The address {url[:200]} is not valid for this endpoint.")
    return name


def queue_arn(call: Call, name: str) -> str:
    return f"arn:aws:sqs:{call.region}:{ACCOUNT}:{name}"


def topic_arn(call: Call, name: str) -> str:
    return f"arn:aws:sns:{call.region}:{ACCOUNT}:{name}"


def name_in_arn(arn: str, service: str) -> str | None:
    """The name in a queue's or topic's ARN; None for what is none."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != service or not parts[5]:
        return None
    return parts[5]
