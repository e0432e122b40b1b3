"""One broker that asks everybody who they are, for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.security.secured import Secured, secured_broker


@pytest.fixture(scope="session")
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if request.config.getoption("--against") != "trunkline":
        pytest.skip("the users and certificates are of our own broker")
    broker = secured_broker(tmp_path_factory.mktemp("secured"))
    broker.server.start()
    yield broker
    assert broker.server.stop() == 0, broker.server.log_tail()
