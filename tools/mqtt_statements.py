"""Write the table of normative statements in docs/protocols/mqtt.md from the tests that name them.

    python tools/mqtt_statements.py            # rewrite the table
    python tools/mqtt_statements.py --check    # only say whether it is up to date

A test names statements with `@mqtt311("MQTT-3.1.0-1", …)` and `@mqtt5(…)`. A statement that no test names must say in the
table why it does not apply; such reasons are kept when the table is written again. The standards number their statements
independently, so there is a table for each. `STATEMENTS` lists every number that appendix B of each standard has.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "protocols" / "mqtt.md"
TESTS = ROOT / "tests"
NOT_APPLICABLE = "not applicable: "
MISSING = "**no test**"

# Section and how many statements it has; they are numbered from 1 unless a first number is given.
STATEMENTS: Mapping[str, str] = {
    "3.1.1": (
        "1.5.3:3 2.2.2:2 2.3.1:7 3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3 3.3.4:1 3.3.5:2 "
        "3.6.1:1 3.8.1:1 3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1 3.14.1:1 3.14.4:3 4.1.0:2 4.3.1:1 "
        "4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1 4.7.3:4 4.8.0:2 6.0.0:4 7.0.0:2 7.1.1:1 7.1.2:1"
    ),
    "5.0": (
        "1.5.4:3 1.5.5:1 1.5.7:1 2.1.3:1 2.2.1:2-6 2.2.2:1 3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2 3.2.2:22 3.3.1:13 "
        "3.3.2:20 3.3.4:10 3.4.2:3 3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5 3.8.4:8 3.9.2:2 3.9.3:2 3.10.1:1 "
        "3.10.3:2 3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1 3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3 4.1.0:2 "
        "4.2.0:1 4.3.1:1 4.3.2:5 4.3.3:13 4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4 4.8.2:6 4.9.0:3 "
        "4.12.0:7 4.12.1:2 4.13.1:1 4.13.2:1 6.0.0:4"
    ),
}
MARKERS: Mapping[str, str] = {"mqtt311": "3.1.1", "mqtt5": "5.0"}


def all_statements(version: str) -> list[str]:
    """Every statement of a version of the standard, in its order."""
    found: list[str] = []
    for item in STATEMENTS[version].split():
        section, _, numbers = item.partition(":")
        first, _, last = numbers.rpartition("-")
        found += [f"MQTT-{section}-{number}" for number in range(int(first or 1), int(last) + 1)]
    return found


def named_by_tests() -> dict[str, dict[str, list[str]]]:
    """Version -> statement -> names of the tests that check it."""
    found: dict[str, dict[str, list[str]]] = {version: {} for version in STATEMENTS}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if not any(f"{marker}(" in text for marker in MARKERS):
            continue
        for test, version, statement in _marks(ast.parse(text)):
            tests = found[version].setdefault(statement, [])
            name = f"{path.relative_to(TESTS).with_suffix('').as_posix()}::{test}"
            if name not in tests:
                tests.append(name)
    return found


def _marks(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name):
                version = MARKERS.get(decorator.func.id)
                if version is not None:
                    for argument in decorator.args:
                        assert isinstance(argument, ast.Constant)
                        yield node.name, version, str(argument.value)


def tables(document: str) -> dict[str, dict[str, str]]:
    """Version -> statement -> what the document says of it."""
    found: dict[str, dict[str, str]] = {}
    for version in STATEMENTS:
        section = re.search(rf"^### Statements of MQTT {re.escape(version)}\n(.*?)(?=^##|\Z)", document, re.M | re.S)
        rows = re.findall(r"^\| (MQTT-[\d.]+-\d+) \| (.*?) \|$", section.group(1) if section else "", re.M)
        found[version] = dict(rows)
    return found


def rendered(document: str) -> str:
    """The document with both tables as the tests have them now."""
    told, tested = tables(document), named_by_tests()
    for version in STATEMENTS:
        lines = [f"### Statements of MQTT {version}", "", "| statement | where it is tested |", "|---|---|"]
        for statement in all_statements(version):
            tests = tested[version].get(statement)
            said = told[version].get(statement, "")
            where = ", ".join(f"`{test}`" for test in _shortened(tests)) if tests else ""
            lines.append(f"| {statement} | {where or (said if said.startswith(NOT_APPLICABLE) else MISSING)} |")
        section = "\n".join(lines) + "\n"
        found = re.search(rf"^### Statements of MQTT {re.escape(version)}\n.*?(?=^##|\Z)", document, re.M | re.S)
        if found is None:
            document = f"{document.rstrip()}\n\n{section}"
        else:
            document = f"{document[: found.start()]}{section}\n{document[found.end() :]}"
    return document.rstrip() + "\n"


def _shortened(tests: list[str]) -> list[str]:
    return [test.removeprefix("integration/mqtt/") for test in tests]


def main() -> int:
    document = DOCUMENT.read_text()
    wanted = rendered(document)
    missing = [
        f"{version} {statement}"
        for version, rows in tables(wanted).items()
        for statement, said in rows.items()
        if said == MISSING
    ]
    for each in missing:
        print(f"no test and no reason: {each}")
    if "--check" in sys.argv:
        return 0 if wanted == document and not missing else 1
    DOCUMENT.write_text(wanted)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
