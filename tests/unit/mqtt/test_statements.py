"""Every normative statement of both standards has a test that names it, or a reason why it does not apply."""

from __future__ import annotations

import pytest

from tools.mqtt_statements import (
    DOCUMENT,
    MISSING,
    NOT_APPLICABLE,
    STATEMENTS,
    all_statements,
    named_by_tests,
    rendered,
    tables,
)

# As many as appendix B of each standard lists.
COUNTS = {"3.1.1": 141, "5.0": 251}


@pytest.mark.parametrize("version", STATEMENTS)
def test_every_statement_is_in_the_table(version: str) -> None:
    statements = all_statements(version)
    assert len(statements) == COUNTS[version]
    assert list(tables(DOCUMENT.read_text())[version]) == statements


@pytest.mark.parametrize("version", STATEMENTS)
def test_every_statement_is_tested_or_said_not_to_apply(version: str) -> None:
    tested = named_by_tests()[version]
    for statement, said in tables(DOCUMENT.read_text())[version].items():
        assert said != MISSING
        assert (statement in tested) != said.startswith(NOT_APPLICABLE), f"{statement}: {said}"
        assert said != NOT_APPLICABLE.strip(), f"{statement} has no reason"


@pytest.mark.parametrize("version", STATEMENTS)
def test_tests_name_statements_that_exist(version: str) -> None:
    assert named_by_tests()[version].keys() <= set(all_statements(version))


def test_the_table_is_what_the_tests_say() -> None:
    document = DOCUMENT.read_text()
    assert rendered(document) == document, "run `python tools/mqtt_statements.py`"
