"""The page in a real browser: every view, the actions, on a telephone, as a user with few rights, with script in messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.by import By

from tests.integration.management.api import Api
from tests.integration.management.browser import Browser, chromium
from tests.integration.server import ServerProcess

pytestmark = pytest.mark.xdist_group("browser")
SCRIPT = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def browser(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(api.port, tmp_path_factory.mktemp("chromium")) as found:
        yield found


VIEWS = {
    "#/": "Records appended to the log/s",
    "#/topics": "Partitions",
    "#/groups": "Behind",
    "#/queues": "Unacked",
    "#/exchanges": "amq.topic",
    "#/mqtt": "Retained messages",
    "#/connections": "Listener",
    "#/users": "guest",
    "#/events": "Logins, refusals and changes",
}


@pytest.mark.parametrize("address", VIEWS)
def test_every_view_opens_without_complaints(browser: Browser, address: str) -> None:
    browser.complaints()
    browser.open(address)
    browser.wait_for(VIEWS[address])
    assert browser.complaints() == []
    assert browser.overflow() == 0
    assert browser.colours() > 10_000


def test_a_telephone_sees_all_of_it(api: Api, tmp_path_factory: pytest.TempPathFactory) -> None:
    with chromium(api.port, tmp_path_factory.mktemp("phone"), (390, 800)) as phone:
        for address, text in VIEWS.items():
            phone.open(address)
            phone.wait_for(text)
            assert phone.overflow() == 0, address


def test_a_topic_is_made_written_searched_and_deleted(browser: Browser, unique: Unique) -> None:
    topic = unique("t")
    browser.open("#/topics")
    browser.unfold("New topic")
    browser.fill("Create", name=topic, partitions="2")
    browser.wait_for("Append a record")
    browser.unfold("Append a record")
    browser.fill("Append", key="k", value=json.dumps({"hello": SCRIPT}), headers=json.dumps({"h": SCRIPT}))
    browser.wait_for("Offset 0.")
    browser.press("Newest")
    browser.wait_for('"hello"')
    assert SCRIPT in browser.text()
    assert browser.driver.execute_script("return window.harmed") is None
    browser.unfold("Settings")
    browser.press_twice("Delete this topic")
    browser.wait(lambda: browser.driver.current_url.endswith("#/topics"), "the list of topics")


def test_records_are_followed_live(browser: Browser, managed: ServerProcess, unique: Unique) -> None:
    topic = unique("t")
    producer = Producer({"bootstrap.servers": managed.bootstrap})
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    browser.open(f"#/topics/{topic}")
    browser.wait_for("before")
    browser.press("Follow live")
    browser.wait_for("Waiting for records")
    producer.produce(topic, b"while watching")
    assert producer.flush(30) == 0
    browser.wait_for("while watching")
    browser.press("Stop")


def test_a_queue_is_made_bound_published_to_and_purged(browser: Browser, unique: Unique) -> None:
    name, exchange = unique(f"q {SCRIPT}"[:60]), unique("x")
    browser.open("#/exchanges")
    browser.unfold("New exchange")
    browser.fill("Create", name=exchange)
    browser.wait_for("Nothing is bound.")
    browser.open("#/queues")
    browser.unfold("New queue")
    browser.fill("Create", name=name)
    browser.wait_for("The queue is empty.")
    browser.unfold("Publish")
    browser.fill("Publish", payload=SCRIPT)
    browser.wait_for("Published.")
    browser.wait(lambda: SCRIPT in browser.text(), "the message")
    browser.open(f"#/exchanges/%2F/{exchange}")
    browser.unfold("Bind")
    browser.fill("Bind", destination=name, routing_key="a.#")
    browser.wait_for("a.#")
    browser.open("#/exchanges")
    browser.wait(lambda: browser.driver.find_elements(By.CSS_SELECTOR, "svg.graph path"), "the drawing of exchanges")
    browser.open(f"#/queues/%2F/{quote(name, safe='')}")
    browser.wait_for("Next messages")
    browser.press_twice("Purge")
    browser.wait_for("The queue is empty.")
    browser.press_twice("Delete this queue")
    browser.wait(lambda: browser.driver.current_url.endswith("#/queues"), "the list of queues")
    assert browser.driver.execute_script("return window.harmed") is None


def test_who_may_only_look_is_offered_nothing_else(managed: ServerProcess, api: Api, unique: Unique) -> None:
    name, topic = unique("looker"), unique("t")
    api.ask("PUT", f"/api/users/{name}", {"password": "secret", "tags": "monitoring"})
    api.ask("POST", "/api/v1/topics", {"name": topic})
    theirs = Api(api.port, name, "secret")
    assert theirs.get("/api/v1/whoami")["administrator"] is False
    assert theirs.ask("DELETE", f"/api/v1/topics/{topic}").status == 401
    assert theirs.ask("POST", "/api/v1/topics", {"name": "x"}).status == 401
    assert theirs.ask("GET", "/api/v1/audit").status == 401
    assert theirs.ask("GET", "/api/v1/topics/__topology/records").status == 401


def test_keys_go_from_view_to_view(browser: Browser) -> None:
    browser.open("#/")
    browser.wait_for("Records appended to the log/s")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys("g", "q")
    browser.wait_for("Unacked")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys("/")
    assert "filter" in browser.driver.switch_to.active_element.get_attribute("class")
