"""What all examples share: where the broker is, and how a receiver runs."""

from __future__ import annotations

import os
import sys
from typing import Any

import pika

DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


def connect() -> Any:
    return pika.BlockingConnection(pika.URLParameters(os.environ.get("AMQP_URL", DEFAULT_URL)))


def take_count(arguments: list[str]) -> int | None:
    """Remove `--count N` from the arguments and return N."""
    if "--count" not in arguments:
        return None
    position = arguments.index("--count")
    count = int(arguments[position + 1])
    del arguments[position : position + 2]
    return count


def say(text: str) -> None:
    print(text, flush=True)


def receive(channel: Any, count: int | None) -> None:
    """Serve the consumers of the channel until Ctrl-C, or until `count` messages were handled.

    Consumers call `channel.handled()` after each message.
    """
    left = sys.maxsize if count is None else count

    def handled() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            channel.stop_consuming()

    channel.handled = handled
    say("ready")
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        channel.stop_consuming()
    channel.connection.close()
