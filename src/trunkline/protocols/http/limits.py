"""The named limits of HTTP, with their defaults."""

from __future__ import annotations

from typing import NamedTuple


class HttpLimits(NamedTuple):
    max_connections: int = 20_000
    max_header_bytes: int = 64 * 1024  # of a request's target and header fields together
    max_header_fields: int = 100
    max_body_bytes: int = 16 * 1024 * 1024
    max_request_ms: int = 60_000  # from a request's first byte to its last
    max_idle_ms: int = 120_000  # between requests
    max_unsent_ms: int = 60_000  # that a client takes nothing of what is sent to it
    max_waiting_requests: int = 64  # that a client has sent ahead of the answers
    high_water_bytes: int = 256 * 1024
