"""What the broker's management is asked for: see protocols/amqp/management."""

from __future__ import annotations

import json

from trunkline.api.errors import Refused
from trunkline.api.outgoing import Letter, Outgoing
from trunkline.api.requests import REPLY_TO, Requests
from trunkline.api.wire import Wire
from trunkline.protocols.amqp.codec import Properties, encode_properties
from trunkline.protocols.amqp.management import ADDRESS


class Management:
    def __init__(self, wire: Wire, outgoing: Outgoing, requests: Requests) -> None:
        self._wire = wire
        self._outgoing = outgoing
        self._requests = requests

    async def ask(self, do: str, timeout: float | None = None, **arguments: object) -> object:
        """Refused with the broker's reason."""
        deadline = self._wire.deadline(timeout)
        channel = await self._requests.channel(deadline)
        number = self._outgoing.new_id()
        properties = encode_properties(
            Properties(content_type="application/json", correlation_id=number, reply_to=REPLY_TO)
        )
        body = json.dumps({"do": do, **arguments}).encode()
        letter = Letter("", ADDRESS, properties, body, number, mandatory=True)
        reply = json.loads((await self._requests.ask(channel, letter, number, deadline)).body)
        if "error" in reply:
            raise Refused(str(reply["error"]).upper().replace(" ", "_"), str(reply["text"]))
        answer: object = reply["ok"]
        return answer
