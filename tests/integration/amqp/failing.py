"""Expecting the broker to refuse: the reply code, the text, and how far the damage goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika.exceptions
import pytest


def channel_error(attempt: Callable[[], object]) -> tuple[int, str]:
    """The reply with which the broker closed the channel."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        attempt()
    return caught.value.reply_code, caught.value.reply_text


def connection_error(attempt: Callable[[], object]) -> tuple[int, str]:
    """The reply with which the broker closed the connection."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        attempt()
    return caught.value.reply_code, caught.value.reply_text


def exists(connection: Any, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return False
    channel.close()
    return True
