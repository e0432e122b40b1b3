"""Health: whether the broker lives, whether it can take work, and RabbitMQ's health checks.

`/health/live` and `/health/ready` are for machines (systemd, Kubernetes) and need no login. A check that fails answers 503 and says
why.
"""

from __future__ import annotations

from trunkline.protocols.http.message import HttpError, Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.management.codec import json_response
from trunkline.protocols.management.documents import PROTOCOLS, listener_documents
from trunkline.protocols.management.service import NODE_NAME, Service

# What a check asks after that cannot go wrong here: no quorum, no mirrors, no virtual hosts that are down, no expiring flags.
_ALWAYS_WELL = (
    "virtual-hosts", "node-is-mirror-sync-critical", "node-is-quorum-critical", "quorum-queues-without-elected-leaders/all-vhosts",
    "quorum-queues-without-elected-leaders/vhost/{vhost}", "certificate-expiration/{within}/{unit}", "metadata-store/initialized",
    "metadata-store/initialized/with-data", "is-in-service", "below-node-connection-limit", "ready-to-serve-clients",
)  # fmt: skip


def add_routes(router: Router, service: Service) -> None:
    checks = _Checks(service)
    router.add("GET", "/health/live", checks.live)
    router.add("GET", "/health/ready", checks.ready)
    for prefix in ("/api/health/checks", "/api/healthchecks"):
        router.add("GET", f"{prefix}/alarms", checks.alarms)
        router.add("GET", f"{prefix}/local-alarms", checks.alarms)
        router.add("GET", f"{prefix}/port-listener/{{port}}", checks.port)
        router.add("GET", f"{prefix}/protocol-listener/{{protocol}}", checks.protocol)
        for name in _ALWAYS_WELL:
            router.add("GET", f"{prefix}/{name}", checks.well)
    router.add("GET", "/api/healthchecks/node", checks.alarms)
    router.add("GET", "/api/healthchecks/node/{name}", checks.alarms)


class _Checks:
    def __init__(self, service: Service) -> None:
        self._service = service

    def live(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    def ready(self, request: Request) -> Response:
        blocked = self._service.broker.space.blocked
        if blocked is not None:
            return json_response({"status": "failed", "reason": f"publications wait: {blocked}"}, 503)
        return json_response({"status": "ok"})

    def well(self, request: Request) -> Response:
        self._service.check_looker(request)
        return json_response({"status": "ok"})

    def alarms(self, request: Request) -> Response:
        self._service.check_looker(request)
        blocked = self._service.broker.space.blocked
        if blocked is None:
            return json_response({"status": "ok"})
        alarm = {"node": NODE_NAME, "resource": "disk"}
        return json_response({"status": "failed", "reason": blocked, "alarms": [alarm]}, 503)

    def port(self, request: Request) -> Response:
        self._service.check_looker(request)
        if not request.parameters["port"].isdigit():
            raise HttpError(400, "a port is a number")
        port = int(request.parameters["port"])
        ports = [each["port"] for each in listener_documents(self._service)]
        if port in ports:
            return json_response({"status": "ok", "port": port})
        return json_response({"status": "failed", "reason": "No active listener", "missing": port, "ports": ports}, 503)

    def protocol(self, request: Request) -> Response:
        self._service.check_looker(request)
        wanted = request.parameters["protocol"].lower()
        active = sorted({PROTOCOLS.get(name, name) for name in self._service.broker.listeners})
        if wanted in {*active, *self._service.broker.listeners} or wanted.replace("amqp091", "amqp") in active:
            return json_response({"status": "ok", "protocol": wanted})
        return json_response(
            {"status": "failed", "reason": "No active listener", "missing": [wanted], "protocols": active}, 503
        )
