"""A service: requests taken off its queue, answered with what a function returns.

Its queue is in the broker's memory and stays while the service restarts; requests expire with their askers' patience. Replies go
straight to the asker, on the channel that the requests come on. What the function raises is the reply, too: the asker gets `RequestFailed` with its text.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trunkline.api.callbacks import Callback
from trunkline.api.declarations import declare_queue
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.message import Message
from trunkline.api.outgoing import Outgoing
from trunkline.api.requests import ERROR_HEADER
from trunkline.api.wire import Wire
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel

_AHEAD = 2


async def start_service(
    wire: Wire, outgoing: Outgoing, name: str, callback: Callback, concurrency: int, deadline: float
) -> Handle:
    async def handle(message: Message[Any]) -> None:
        headers = {}
        result: object = None
        try:
            result = await callback(message)
        except Exception as error:
            headers[ERROR_HEADER] = f"{type(error).__name__}: {error}"
            raise
        finally:
            asker = message.properties.reply_to
            if asker:
                letter = outgoing.letter(
                    result,
                    "",
                    asker,
                    headers=headers,
                    persistent=False,
                    correlation_id=message.properties.correlation_id,
                )
                message.settlement.reply(letter.routing_key, letter.properties, letter.body)
            await message.ack()

    async def prepare(link: Link, channel: LinkChannel, timeout_s: float) -> str:
        await declare_queue(link, name, {}, timeout_s, durable=False)
        return name

    handling = Handle(handle, concurrency, no_ack=False)
    if not callback.awaited:
        handling.threads = callback.threads = ThreadPoolExecutor(concurrency, f"trunkline-{name}")
    intake = Intake(wire, prepare, handling.arrived, prefetch=_AHEAD * concurrency, lost=handling.lost)
    return await handling.start(intake, deadline)
