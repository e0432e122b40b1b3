"""Names of certificates, the rules that make users' names of them, and contexts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from trunkline.security.certificates import (
    Certificates,
    InvalidCertificates,
    NameRules,
    TlsSettings,
    distinguished_name,
)
from trunkline.security.self_signed import FilesExist, make

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


def test_a_name_is_written_most_specific_part_first() -> None:
    subject = (
        (("countryName", "US"),),
        (("organizationName", "Org, Inc. <x>"),),
        (("organizationalUnitName", "a+b"), ("userId", "7")),
        (("commonName", "#Duke "),),
    )
    assert distinguished_name(subject) == r"CN=\#Duke\ ,OU=a\+b+UID=7,O=Org\, Inc. \<x\>,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", DUKE, DUKE),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", DUKE, "Duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", DUKE, "duke"),
        (r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U , DEFAULT", DUKE, "DUKE@SERVICEUSERS"),
        (r"RULE:^CN=(.*?),OU=Other.*$/$1/,RULE:^.*O=(\w+),.*$/$1/L", DUKE, "org"),
        (r"RULE:^CN=(.*?),OU=Other.*$/$1/", DUKE, None),
        (r"RULE:.*/all/", DUKE, "all"),
        (r"RULE:.*//", DUKE, None),
        ("RULE:^CN=([^,]+)$/$1/,DEFAULT", "CN=alice", "alice"),
        ("", "CN=alice", None),
    ],
)
def test_rules_make_a_name_as_kafkas_do(rules: str, name: str, user: str | None) -> None:
    assert NameRules(rules).name_of(name) == user


@pytest.mark.parametrize(
    "rules", ["default", "RULE:x", "RULE:(/x/", "RULE:x/$1/", "DEFAULT DEFAULT", "RULE:x/y/Q", "x" * 20_000]
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidCertificates):
        NameRules(rules)


def test_contexts_are_made_anew_of_what_is_in_the_files(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b")
    with pytest.raises(FilesExist):
        make(tmp_path / "a")
    here = tmp_path / "here.pem"

    def put(which: str) -> None:
        here.write_bytes(
            (tmp_path / which / "server.pem").read_bytes() + (tmp_path / which / "server.key").read_bytes()
        )

    put("a")
    certificates = Certificates(TlsSettings(here, client_ca=tmp_path / "a" / "ca.pem", client_auth="required"))
    first = certificates.context
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert first.minimum_version == ssl.TLSVersion.TLSv1_2
    assert not certificates.reload_if_changed()
    here.write_text("nonsense")
    with pytest.raises(InvalidCertificates, match="not a certificate"):
        certificates.reload_if_changed()
    assert certificates.context is first
    assert not certificates.reload_if_changed(), "what is no good is complained about once"
    put("b")
    assert certificates.reload_if_changed()
    assert certificates.context is not first


def test_what_tls_cannot_be_done_with_is_said(tmp_path: Path) -> None:
    make(tmp_path)
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    for settings, said in (
        (TlsSettings(tmp_path / "absent.pem"), "No such file"),
        (TlsSettings(certificate, tmp_path / "client.key"), "not a certificate and its key"),
        (TlsSettings(certificate, key, client_auth="required"), "tls_client_ca"),
        (TlsSettings(certificate, key, client_ca=tmp_path / "absent"), "absent"),
        (TlsSettings(certificate, key, key_password_file=tmp_path / "absent"), "absent"),
    ):
        with pytest.raises(InvalidCertificates, match=said):
            Certificates(settings)
