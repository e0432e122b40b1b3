"""The description of our API is of the API that there is."""

from __future__ import annotations

from unittest.mock import Mock

from trunkline.protocols.management.openapi import OPERATIONS, document
from trunkline.protocols.management.own import OwnApi


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    routes = {(method.lower(), f"/{path}") for method, path, _ in OwnApi(Mock()).routes()}
    described = {(method, path) for method, path, *_ in OPERATIONS}
    assert routes == described
    paths = document()["paths"]
    assert isinstance(paths, dict)
    assert sum(map(len, paths.values())) == len(OPERATIONS)
