"""Retained messages, as MQTT keeps and gives them. The messages themselves are the broker's (`broker.state.retained`)."""

from __future__ import annotations

from trunkline.broker.complaints import Complaints
from trunkline.broker.counters import MqttCounters
from trunkline.broker.state.retained import RetainedFull, RetainedMessages
from trunkline.clock import Clock
from trunkline.log.store import Durability
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.message import Message, message_of
from trunkline.protocols.mqtt.promises import Promise, Promises
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.under_way import UnderWay


class Retention:
    def __init__(
        self, messages: RetainedMessages, clock: Clock, counters: MqttCounters, complaints: Complaints, agenda: Agenda
    ) -> None:
        self.messages = messages
        self.under_way = UnderWay()
        self._clock = clock
        self._counters = counters
        self._complaints = complaints
        self._agenda = agenda
        self._needs_disk = False

    def retain(self, run: Run, section: bytes) -> None:
        """Keep what asks for it. `section` is the headers of its records."""
        for payload in run.payloads:
            try:
                if payload:
                    self.messages.put(run.topic, payload, section, reserved=run.qos > 0)
                else:
                    self.messages.clear(run.topic)
            except RetainedFull as error:
                self._counters.retained_refused += 1
                self._complaints.add("retained message", "MQTT", f"a retained message was not kept: {error}")
        self._needs_disk = self._needs_disk or run.qos > 0

    def message(self, name: str) -> Message | None:
        """The retained message of a name, as it goes to a new subscription: with the retain flag [MQTT-3.3.1-8]."""
        found = self.messages.get(name)
        if found is None:
            return None
        message = message_of((-1, found.timestamp_ms, name.encode(), found.payload, found.headers), None, name)
        message.topic = name
        message.retain = True
        if message.seconds_left(self._clock) == 0:
            self.messages.clear(name)
            self._agenda.schedule()
            return None
        return message

    def write(self, promise: Promise, promises: Promises) -> None:
        """What has changed, so that the promise waits for it."""
        if self.messages.dirty:
            durability = Durability.DISK if self._needs_disk else Durability.OS
            self._needs_disk = False
            promises.write(promise, lambda: self.messages.flush(durability))
