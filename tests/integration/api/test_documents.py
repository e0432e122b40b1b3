"""docs/api.md and README: what they show is run. And what a user's type checker makes of it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trunkline

ROOT = Path(__file__).parents[3]


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run_snippet(text: str, names: dict[str, object]) -> None:
    code = compile(text, "docs/api.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_every_snippet_of_the_page_runs() -> None:
    found = snippets("docs/api.md")
    assert len(found) > 12
    with trunkline.connect("memory:", timeout=30) as t:
        names: dict[str, object] = {"__name__": "page"}
        for text in found:
            names["t"] = t
            run_snippet(text, names)
            tests = [each for name, each in names.items() if name.startswith("test_") and callable(each)]
            for each in tests:
                with trunkline.connect("memory:", timeout=30) as fresh:
                    each(fresh)


def test_the_first_code_of_the_readme_runs() -> None:
    first = snippets("README.md")[0]
    assert "trunkline.connect" in first
    run_snippet(first.replace('"trunkline://127.0.0.1"', '"memory:"'), {"__name__": "readme"})


USER_CODE = """
from dataclasses import dataclass
import trunkline
from trunkline import Content, Retry, Topic, aio

@dataclass
class Job:
    number: int

def work(job: Job) -> None: ...

def sync() -> int:
    with trunkline.connect("memory:", timeout=5) as t:
        queue = t.queue("jobs", Job, retry=Retry(5, backoff=2), dead_letter="dead", lease=30, delivery="timeout")
        identity: trunkline.MessageId = queue.put(Job(1), key="k", headers={"a": "b"}, delay=1, priority=1, expires=3)
        queue.cancel(identity)
        found = queue.poll()
        with queue.notify(work, concurrency=2) as handle:
            print(handle.handled)
        with t.transaction() as x:
            x.put("out", 1)
            if found is not None:
                x.ack(found)
        for record in t.stream("orders", Job, group="g", start="earliest"):
            reveal_type(record.value)
            record.commit()
            break
        message = queue.get(timeout=1, where="number < 3")
        reveal_type(message.value)
        t.subscribe(Topic("a/+"), work, expiry=60)
        t.publish(Job(1), topic="a/b")
        return message.value.number

async def asynchronous() -> int:
    async with aio.connect("memory:") as t:
        handle = await t.subscribe(Content("price < 100"), work)
        await handle.stop()
        message = await t.queue("jobs", Job).get()
        await message.ack()
        reply = await t.request("service", 1, timeout=2)
        async for record in t.stream("orders", Job):
            await record.commit()
        return message.value.number

@trunkline.connect("memory:").worker("jobs")
def decorated(job: Job) -> int:
    return job.number

number: int = decorated(Job(1))
"""


def test_users_code_is_typed_strictly(tmp_path: Path) -> None:
    assert checked(tmp_path, "user", USER_CODE) == ['Revealed type is "user.Job"'] * 2
    mistaken = USER_CODE.replace('t.queue("jobs", Job).get()', 't.queue("jobs", str).get()')
    assert any('"str" has no attribute "number"' in line for line in checked(tmp_path, "mistaken", mistaken))


def checked(directory: Path, name: str, code: str) -> list[str]:
    """What mypy says of a program, without where."""
    program = directory / f"{name}.py"
    program.write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(directory / "cache"), "--config-file", ""]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--follow-imports", "silent", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=environment,
    )
    found = re.findall(rf"^{name}\.py:\d+: \w+: (.*)$", done.stdout, re.MULTILINE)
    assert found or not done.returncode, done.stdout + done.stderr
    return found


def test_work_runs_decorated_functions_until_it_is_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import os, trunkline\n"
        "t = trunkline.connect('memory:')\n"
        "t.queue('jobs').put_all(range(5))\n"
        "@t.worker('jobs', concurrency=2)\n"
        "def work(number: int) -> None:\n"
        "    os.write(1, f'did {number}\\n'.encode())\n"
    )
    command = [sys.executable, "-m", "trunkline", "work", "app:t", "--directory", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    did = sorted(process.stdout.readline().strip() for _ in range(5))
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert did == [f"did {number}" for number in range(5)]
    assert process.returncode == 0
    assert "stopped: 5 handled, 0 failed" in said


@pytest.mark.parametrize("wrong", ["app", "nowhere:t", "json:dumps", "json:nothing"])
def test_work_says_what_is_wrong_with_its_argument(wrong: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trunkline", "work", wrong, "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
