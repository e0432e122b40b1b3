"""The notation in which messages are declared."""

from __future__ import annotations

import pytest

from trunkline.protocols.kafka.schema.declaration import NEVER, NO_VERSION, DeclarationError, Versions, parse

HEAD = "api Sample 7 versions 0-5 flexible 3\n"


def test_a_declaration_is_read() -> None:
    (sample,) = parse(
        HEAD
        + "request\n"
        + "  name string?2+ 1-4 = null  # with a remark\n"
        + "  parts [Part] 2+\n"
        + "    size int32 = -1\n"
        + "response\n"
        + "  leader Part 3+ tag 0\n"
    )
    assert (sample.name, sample.key, sample.versions, sample.flexible_from) == ("Sample", 7, Versions(0, 5), 3)
    request, response = sample.messages
    assert [struct.name for struct in sample.structs] == ["Part", "SampleRequest", "SampleResponse"]
    name, parts = request.fields
    assert (name.versions, name.nullable, name.default) == (Versions(1, 4), Versions(2, 4), "null")
    assert (parts.is_array, parts.versions, parts.nullable) == (True, Versions(2, NO_VERSION), NEVER)
    assert parts.struct is response.fields[0].struct
    assert parts.struct is not None
    assert parts.struct.used == Versions(2, 5)
    assert response.fields[0].tag == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("request\n  name\n", "line 3: not a field"),
        ("request\n  names [string\n", "line 3: not a field"),
        ("request\n  name string\n  name int32\n", "line 4: SampleRequest.name is declared twice"),
        ("request\n  part Part\n", "Part has no fields"),
        ("request\n  parts [Part]\n    size int32 2+\n", "Part is empty in version 0"),
        ("  name string\n", "line 2"),
    ],
)
def test_a_declaration_that_breaks_the_notation_is_refused(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse(HEAD + text)
