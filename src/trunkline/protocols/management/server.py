"""The management server: HTTP for people and their tools.

RabbitMQ's API under `/api`, ours under `/api/v1`, the page under `/`, metrics and health checks. Each is a table of routes.
"""

from __future__ import annotations

from collections.abc import Awaitable

from trunkline.broker.access import AccessDenied
from trunkline.broker.audit import CHANGE
from trunkline.broker.core import BrokerCore
from trunkline.broker.logins import LoginRefused
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.cursors.queue.errors import QueueError
from trunkline.cursors.stream.errors import GroupError
from trunkline.log.errors import LogError, TopicExists, UnknownTopicOrPartition
from trunkline.protocols.http.message import HttpError, Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.http.server import HttpServer
from trunkline.protocols.management import health, metrics, own, page, rabbitmq
from trunkline.protocols.management.codec import error_response
from trunkline.protocols.management.service import Service
from trunkline.protocols.management.session import Gate, secured
from trunkline.security.principal import Principal

_STATUS = {
    Reason.NOT_FOUND: 404,
    Reason.ACCESS_REFUSED: 401,
    Reason.PRECONDITION_FAILED: 400,
    Reason.RESOURCE_LOCKED: 400,
    Reason.NOT_ALLOWED: 400,
    Reason.COMMAND_INVALID: 400,
    Reason.RESOURCE_ERROR: 503,
}
# Who watches over a broker asks these without a login, as with RabbitMQ's exporter and its health checks for machines.
_PAGE = frozenset({"/", "/index.html", "/login", "/logout"})
_OF_MESSAGES = ("/get", "/publish", "/records")
_FOR_EVERYBODY = ("/metrics", "/health/", "/assets/")


class ManagementServer(HttpServer):
    def __init__(self, broker: BrokerCore, *, open_to_loopback: bool = True) -> None:
        self.service = Service(broker)
        self.gate = Gate(broker.clock, self._log_in, open_to_loopback=open_to_loopback)
        self._router = Router()
        for part in (rabbitmq, own, metrics, health):
            part.add_routes(self._router, self.service)
        page.add_routes(self._router, self.gate)
        super().__init__(broker, self._answer)

    async def _log_in(self, user: str, password: bytes, host: str) -> Principal | None:
        try:
            return await self.broker.logins.by_password(user, password, host, "http")
        except LoginRefused:
            return None

    def _note(self, request: Request, response: Response) -> None:
        """Administrative changes are in the audit trail; messages that are published or taken by hand are none."""
        changes = request.method not in ("GET", "HEAD") and request.path.startswith("/api/")
        if changes and response.status < 300 and not request.path.endswith(_OF_MESSAGES):
            what = f"{request.method} {request.path}"
            self.broker.audit.add(CHANGE, request.principal, protocol="http", target=what)

    async def _answer(self, request: Request) -> Response:
        try:
            if request.path not in _PAGE and not request.path.startswith(_FOR_EVERYBODY):
                request.principal = await self.gate.admit(request)
            found = self._router(request)
            response = await found if isinstance(found, Awaitable) else found
            self._note(request, response)
        except HttpError as error:
            response = error_response(error.status, str(error), error.headers)
        except Refused as refused:
            response = error_response(_STATUS[refused.reason], refused.text)
        except AccessDenied as error:
            response = error_response(401, str(error))
        except UnknownTopicOrPartition as error:
            response = error_response(404, str(error))
        except TopicExists as error:
            response = error_response(409, str(error))
        except (LogError, QueueError, GroupError, ValueError) as error:
            response = error_response(400, str(error))
        return secured(response)
