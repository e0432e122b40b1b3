"""What the documents say that the code can check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trunkline.config import SETTINGS
from trunkline.protocols.kafka import apis, handlers

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_kafka_page_lists_exactly_what_is_served() -> None:
    page = (ROOT / "docs" / "protocols" / "kafka.md").read_text()
    listed = {
        int(key): (name, int(low), int(high))
        for key, name, low, high in re.findall(r"^\| (\d+) \| (\w+) \| (\d+)–(\d+) \|$", page, re.MULTILINE)
    }
    served = {key: apis.APIS[key] for key in handlers.served()}
    assert listed == {key: (api.name, api.min_version, api.max_version) for key, api in served.items()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document}: {target}"


UNITS = {"s": 1_000, "minutes": 60_000, "days": 86_400_000, "MiB": 1 << 20}


def written(default: object, text: str) -> bool:
    """Whether a default is written like that: `100 MiB`, `10 minutes`, `1,000`, `true`, `none`."""
    if default is None:
        return text in {"none", "off"}
    if isinstance(default, bool):
        return text == str(default).lower()
    if not isinstance(default, int):
        return text == str(default)
    number, _, unit = text.replace(",", "").partition(" ")
    return int(number) * UNITS.get(unit, 1) == default


def test_the_operations_page_names_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert listed.keys() == SETTINGS.keys()
    wrong = {name: text for name, text in listed.items() if not written(SETTINGS[name].default, text)}
    assert not wrong
