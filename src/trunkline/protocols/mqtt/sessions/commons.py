"""What all sessions and groups have in common: the log, the routes, where their changes go, and what is counted."""

from __future__ import annotations

from trunkline.broker.access import AccessControl
from trunkline.broker.counters import MqttCounters
from trunkline.clock import Clock
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.retention import Retention
from trunkline.protocols.mqtt.routes import Routes
from trunkline.protocols.mqtt.sessions.journal import SessionJournal
from trunkline.protocols.mqtt.sources import Sources


class Commons:
    def __init__(
        self,
        clock: Clock,
        limits: MqttLimits,
        counters: MqttCounters,
        control: AccessControl,
        routes: Routes,
        sources: Sources,
        retention: Retention,
        journal: SessionJournal,
        agenda: Agenda,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.counters = counters
        self.control = control
        self.routes = routes
        self.sources = sources
        self.retention = retention
        self.journal = journal
        self.agenda = agenda
        self.queued_bytes = 0  # messages in no log that wait for room in a window
