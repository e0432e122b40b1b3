"""What the documents say that the code can check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
