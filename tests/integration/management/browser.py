"""A real Chromium, without a window, for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_SECONDS = 60
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
)  # fmt: skip


class Browser:
    def __init__(self, driver: Any, port: int) -> None:
        self.driver = driver
        self.base = f"http://127.0.0.1:{port}/"

    def open(self, address: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(self.base + address)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        WebDriverWait(self.driver, PATIENCE_SECONDS, 0.1).until(lambda _: condition(), f"{what}\n{self.text()[:2000]}")

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def wait_for(self, text: str) -> None:
        self.wait(lambda: text in self.text(), f"{text!r} on the page")

    def unfold(self, title: str) -> None:
        script = "for (const s of document.querySelectorAll('summary')) if (s.textContent === arguments[0]) s.parentElement.open = true"
        self.wait(lambda: title in self.text(), title)
        self.driver.execute_script(script, title)

    def fill(self, action: str, **values: str) -> None:
        """Fill in the form with this button, and press it."""
        form = self.driver.find_element(By.XPATH, f"//form[.//button[text()='{action}']]")
        for name, value in values.items():
            field = form.find_element(By.NAME, name)
            field.clear()
            field.send_keys(value)
        form.find_element(By.XPATH, f".//button[text()='{action}']").click()

    def press(self, text: str) -> None:
        self.driver.find_element(By.XPATH, f"//main//button[normalize-space(text())='{text}']").click()

    def press_twice(self, text: str) -> None:
        """Something that cannot be undone is asked for twice."""
        self.press(text)
        self.press("Really?")

    def complaints(self) -> list[str]:
        """What the console says is wrong."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(
            self.driver.execute_script(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def colours(self) -> int:
        """How many different bytes a screenshot has: an empty page has few."""
        return len(self.driver.get_screenshot_as_png())


@contextmanager
def chromium(port: int, directory: Path, size: tuple[int, int] = (1300, 1000)) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, f"--user-data-dir={directory}", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver") or "chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    config: ClientConfig = driver.command_executor._client_config
    config.timeout = PATIENCE_SECONDS
    try:
        yield Browser(driver, port)
    finally:
        driver.quit()
