"""The rules of the store's door, and of who stands beside the broker, that can be read off the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.source import SOURCE, parsed
from trunkline.log.names import RESERVED_TOPICS

# What runs in a client's process: the client and the pipelines. They speak to a broker and have none in them.
THE_BROKERS = ("trunkline.broker", "trunkline.cursors", "trunkline.routing", "trunkline.security", "trunkline.app")
# How values are kept in record headers: a format, which a client encodes, too.
A_FORMAT = "trunkline.broker.messaging.typed_values"
STORES = ("trunkline.log.embedded", "trunkline.log.memory")
SEGMENT_FILES = "trunkline.log.embedded.segment_files"
# Who may name a store: the program that makes one, and the commands that look into its directory.
NAMING_A_STORE = {"app.py", "cli/log.py"}
# Where places in the log are worked with, and are told by tickets.
PLACES = ("broker", "cursors", "protocols")


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module of ours that is imported; what is taken out of a package counts as a module of it, too."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{name.name}" for name in node.names)
    return frozenset(name for name in found if name.split(".")[0] == "trunkline")


def modules_of(room: str) -> list[Path]:
    found = sorted((SOURCE / room).rglob("*.py"))
    assert found
    return found


def modules_with(*texts: str) -> list[Path]:
    """Every module with one of these texts: most are generated messages, which would take long to parse."""
    return [path for path in SOURCE.rglob("*.py") if any(text in path.read_text() for text in texts)]


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("room", ["client", "pipeline"])
def test_what_runs_beside_the_broker_has_nothing_of_it(room: str) -> None:
    for path in modules_of(room):
        for name in imports_of(path):
            assert not within(name, THE_BROKERS) or within(name, (A_FORMAT,)), f"{shown(path)} imports {name}"


def test_the_client_does_not_know_who_uses_it() -> None:
    for path in modules_of("client"):
        for name in imports_of(path):
            assert not within(name, ("trunkline.pipeline", "trunkline.cli")), f"{shown(path)} imports {name}"


def test_nobody_imports_pipelines_but_their_commands() -> None:
    for path in modules_with("trunkline.pipeline"):
        if path.relative_to(SOURCE).parts[0] not in ("pipeline", "cli", "bench"):
            assert not any(within(name, ("trunkline.pipeline",)) for name in imports_of(path)), shown(path)


def test_only_one_module_of_the_pipelines_reads_files_and_only_through_their_door() -> None:
    for path in modules_of("pipeline"):
        stores = {name for name in imports_of(path) if within(name, STORES)} - {"trunkline.log.embedded"}
        if shown(path) == "pipeline/segments.py":
            assert all(within(name, (SEGMENT_FILES,)) for name in stores)
        else:
            assert not stores, shown(path)


def test_only_the_program_names_a_store() -> None:
    for path in modules_with("log.embedded", "log.memory", "trunkline.log import"):
        if path.relative_to(SOURCE).parts[0] in ("log", "pipeline") or shown(path) in NAMING_A_STORE:
            continue
        assert not any(within(name, STORES) for name in imports_of(path)), shown(path)


def test_what_all_stores_share_knows_none_of_them() -> None:
    for path in (SOURCE / "log").glob("*.py"):
        assert not any(within(name, STORES) for name in imports_of(path)), shown(path)


def test_neither_store_knows_the_other() -> None:
    for store in STORES:
        for path in modules_of(f"log/{store.rpartition('.')[2]}"):
            others = tuple(other for other in STORES if other != store)
            assert not any(within(name, others) for name in imports_of(path)), shown(path)


def calls(tree: ast.AST, method: str, least_arguments: int) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and len(node.args) + len(node.keywords) >= least_arguments
        for node in ast.walk(tree)
    )


def test_internal_topics_are_replayed_in_one_place() -> None:
    """Who names one of them, or folds one, leaves the reading to `log/state_topic`."""
    named = 0
    for room in ("cursors", "broker"):
        for path in modules_of(room):
            assert "trunkline.log.batch.iter_batches" not in imports_of(path), f"{shown(path)} reads batches itself"
            names = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
            if RESERVED_TOPICS & {name for name in names if isinstance(name, str)} or any(
                within(name, ("trunkline.log.state_topic", "trunkline.log.names.TOPOLOGY_TOPIC"))
                for name in imports_of(path)
            ):
                named += 1
                assert not calls(parsed(path), "read", 3), f"{shown(path)} reads the log itself"
    assert named > 5


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("room", PLACES)
def test_nobody_computes_a_place_from_the_bounds_around_an_append(room: str) -> None:
    """A list's `append` has one argument, a store's has more."""
    for path in modules_of(room):
        for function in functions_of(path):
            if calls(function, "append", 2) or calls(function, "append_marker", 2):
                assert not calls(function, "bounds", 0), f"{shown(path)}: {function.name}"
