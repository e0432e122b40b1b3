"""What all handlers share: the broker's administration, who may ask for what, and figures of the process.

Who may, as in RabbitMQ: the tags `management`, `policymaker`, `monitoring` and `administrator` open the door; the first two
let a user work in the virtual hosts that it has permissions for; the third shows everything; the last may change everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from trunkline.broker.administration.log_view import LogView
from trunkline.broker.administration.messages import MessagesByHand
from trunkline.broker.administration.node import Node, look_at_node
from trunkline.broker.administration.rates import Rates
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.log.capabilities import LogDirectory
from trunkline.protocols.http.message import HttpError, Request
from trunkline.security.principal import Principal
from trunkline.security.rules import Kind, Operation
from trunkline.security.users import Access

NODE_NAME: Final = "trunkline@localhost"
_NODE_AGE_MS: Final = 1_000.0


class Service:
    def __init__(self, broker: BrokerCore) -> None:
        self.broker = broker
        self.clock = broker.clock
        self.administration = broker.administration
        self.messaging = broker.messaging
        self.topology = broker.messaging.topology
        self.accounts = broker.accounts
        self.log = LogView(broker)
        self.messages = MessagesByHand(broker.messaging, broker.clock)
        self.rates = Rates(broker.clock)
        self.started_ms = broker.clock.wall_ms()
        self._node: tuple[float, Node] | None = None
        self._directories: Sequence[LogDirectory] = ()

    # -- who may -------------------------------------------------------------------------------------------------------

    def check_looker(self, request: Request) -> Principal:
        principal = request.principal
        if not self.broker.access.may_manage(principal, change=False):
            raise HttpError(401, "Not management user")
        return principal

    def check_administrator(self, request: Request) -> Principal:
        principal = self.check_looker(request)
        if not self.broker.access.may_manage(principal, change=True):
            raise HttpError(401, "User not authorised to perform this action: it needs the tag administrator")
        return principal

    def sees(self, principal: Principal, vhost: str) -> bool:
        return self.broker.access.may_manage(principal, change=False, vhost=vhost)

    def check_vhost(self, request: Request) -> VirtualHost:
        """The virtual host that the path names, if the one who asks may work there."""
        principal = self.check_looker(request)
        name = request.parameters["vhost"]
        vhost = self.topology.vhosts.get(name)
        if vhost is None:
            raise HttpError(404, "Not Found")
        if not self.sees(principal, name):
            raise HttpError(401, f"User not authorised to access virtual host '{name}'")
        return vhost

    def check_access(
        self, request: Request, vhost: VirtualHost, access: Access, name: str, kind: str = "queue"
    ) -> None:
        """As AMQP would, for what a protocol's client could do as well."""
        rights = self.broker.access
        if not rights.may_manage(request.principal, change=True):
            rights.check_vhost(request.principal, vhost.name, access, name, kind, protocol="http")

    def check_readable(self, request: Request, topic: str) -> None:
        """Records are shown to who could read them as a Kafka client."""
        rights = self.broker.access
        if not rights.may_manage(request.principal, change=True):
            rights.check(request.principal, Operation.READ, Kind.TOPIC, topic, protocol="http")

    # -- what there is -------------------------------------------------------------------------------------------------

    def vhosts(self, principal: Principal) -> list[VirtualHost]:
        return [each for each in self.topology.vhosts.values() if self.sees(principal, each.name)]

    def queues(self, principal: Principal) -> list[Queue]:
        return [queue for vhost in self.vhosts(principal) for queue in vhost.queues.values()]

    async def node(self) -> Node:
        now_ms = self.clock.monotonic_ms()
        if self._node is None or now_ms - self._node[0] > _NODE_AGE_MS:
            self._directories = await self.broker.directories()
            self._node = (now_ms, look_at_node(self._directories))
        return self._node[1]

    async def directories(self) -> Sequence[LogDirectory]:
        await self.node()
        return self._directories

    async def settled(self, recorded: Awaitable[object] | None) -> None:
        if recorded is not None:
            await recorded
