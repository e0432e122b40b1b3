"""A private PostgreSQL for the tests that need one: `from tests.spark.postgres import postgres`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from private_postgres import PrivatePostgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server
