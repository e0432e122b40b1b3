"""What the pages of other sites can make a browser ask for, and what is told to whoever asks."""

from __future__ import annotations

import pytest

from tests.integration.management.api import Api
from tests.integration.server import ServerProcess


@pytest.fixture
def browser(managed: ServerProcess) -> Api:
    return Api(managed.port_of("http"), user=None)


def test_on_this_machine_nobody_need_log_in(browser: Api) -> None:
    assert browser.get("/api/v1/whoami")["administrator"] is True


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:15672"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
def test_requests_that_another_site_makes_are_refused(browser: Api, headers: dict[str, str]) -> None:
    answer = browser.ask("PUT", "/api/queues/%2F/evil", {}, headers)
    assert answer.status in (401, 403)
    assert browser.ask("GET", "/api/queues/%2F/evil").status == 404
    assert browser.ask("GET", "/api/v1/overview", headers=headers).status in (401, 403)


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(browser: Api) -> None:
    assert browser.ask("POST", "/login", {"user": "guest", "password": "no"}).status == 401
    answer = browser.ask("POST", "/login", {"user": "guest", "password": "guest"})
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = {"Cookie": cookie.partition(";")[0]}
    assert browser.ask("GET", "/api/v1/whoami", headers=token).body["name"] == "guest"
    assert browser.ask("PUT", "/api/queues/%2F/evil", {}, {**token, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert browser.ask("POST", "/logout", {}, token).status == 204
    assert browser.ask("GET", "/api/v1/whoami", headers=token).body["name"] == "ANONYMOUS"


@pytest.mark.parametrize("path", ["/", "/api/overview", "/api/nowhere", "/metrics", "/assets/app.js"])
def test_every_answer_forbids_frames_and_foreign_scripts(browser: Api, path: str) -> None:
    headers = browser.ask("GET", path).headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path",
    ["/assets/../config.py", "/assets/%2e%2e/config.py", "/assets/..%2Fserver.py", "/assets/__init__.py", "/assets/"],
)
def test_only_the_page_is_served_as_files(browser: Api, path: str) -> None:
    assert browser.ask("GET", path).status == 404


def test_files_are_sent_once(browser: Api) -> None:
    first = browser.ask("GET", "/assets/app.js")
    assert first.status == 200
    assert browser.ask("GET", "/assets/app.js", headers={"If-None-Match": first.headers["etag"]}).status == 304


def test_who_is_asked_elsewhere_must_log_in(tmp_path: object, managed: ServerProcess) -> None:
    outsider = Api(managed.port_of("http"), "guest", "wrong").ask("GET", "/api/overview")
    assert outsider.status == 401
    assert "www-authenticate" in outsider.headers
