"""The rules of docs/architecture.md that can be read off the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.source import SOURCE, parsed

# A room may import itself, the rooms under it, and these modules that belong to no room.
ROOMS = ("log", "cursors", "routing", "security", "broker", "protocols")
COMMON = frozenset(
    {
        "trunkline",
        "trunkline.budget",
        "trunkline.clock",
        "trunkline.deadlines",
        "trunkline.pattern",
        "trunkline.version",
    }
)
# Rooms on one floor: neither imports the other.
SIBLINGS = ("cursors", "routing", "security")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "trunkline"}


def modules_of(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_dependencies_point_down(room: str) -> None:
    below = ROOMS[: ROOMS.index(room) + 1]
    allowed = tuple(f"trunkline.{name}" for name in below)
    for path in modules_of(room):
        for name in imports_of(path) - COMMON:
            assert name.startswith(allowed), f"{path.relative_to(SOURCE)} imports {name}, which is not below it"


def test_rooms_on_one_floor_do_not_import_each_other() -> None:
    for room in SIBLINGS:
        others = tuple(f"trunkline.{name}" for name in SIBLINGS if name != room)
        for path in modules_of(room):
            assert not any(name.startswith(others) for name in imports_of(path)), path


# What protocols may know of the broker: the façade, and what its operations take and give. The list only gets shorter.
DOORS = frozenset(
    {
        "access",
        "audit",
        "counters",
        "administration.administration",  # the façade's: asked by managements
        "administration.connections",  # what sessions say of themselves when it asks
        "administration.log_view",
        "administration.messages",
        "administration.node",
        "administration.rates",
        "administration.rules",
        "complaints",
        "core",  # the façade
        "guard",
        "keyed_state",
        "logins",
        "messaging.argument_checks",
        "messaging.confirms",
        "messaging.deduplication",  # its header, which a protocol writes, and the window that it asks
        "messaging.envelope",  # what a message is in the log, which protocols translate to and from
        "messaging.mapping",
        "messaging.messaging",
        "messaging.queue",
        "messaging.queue_arguments",
        "messaging.refusals",
        "messaging.routes",
        "messaging.selection",
        "messaging.sending",
        "messaging.settlements",
        "messaging.transaction",
        "messaging.typed_values",
        "shared.advertisements",
        "shared.shared_map",
        "shared.shared_state",
        "state.arguments",
        "state.notifications",
        "state.retained",
        "state.topology",
        "state.virtual_host",
        "transactions.errors",
        "transactions.listing",
        "transactions.state",
        "turn",
    }
)
# Who goes past the façade to the store: fetches, which read it in a loop of their own, and MQTT's places in the log.
PAST_THE_BROKER = frozenset({"kafka/handlers/fetch.py", "mqtt/hub.py", "mqtt/sources.py"})


def broker_modules_known_to(path: Path) -> set[str]:
    known: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:2] == ["trunkline", "broker"]:
            module = SOURCE.parent / Path(*str(node.module).split("."))
            names = [f"{node.module}.{name.name}" for name in node.names] if module.is_dir() else [str(node.module)]
            known.update(name.removeprefix("trunkline.broker.") for name in names)
    return known


def test_protocols_know_the_broker_by_its_doors() -> None:
    found = {name for path in modules_of("protocols") for name in broker_modules_known_to(path)}
    assert found - DOORS == set(), "protocols call the broker, and nothing behind it"
    assert DOORS - found == set(), "nobody needs these any more: take them off the list"


def test_protocols_ask_the_broker_and_not_its_store() -> None:
    found: set[str] = set()
    for path in modules_of("protocols"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr == "store" and "broker" in ast.unparse(node.value):
                found.add(str(path.relative_to(SOURCE / "protocols")))
    assert found == PAST_THE_BROKER


def test_nothing_above_the_store_knows_about_files() -> None:
    for room in ROOMS[1:]:
        for path in modules_of(room):
            assert not any(name.startswith("trunkline.log.embedded") for name in imports_of(path)), path


PROTOCOLS = sorted(path for path in (SOURCE / "protocols").iterdir() if path.is_dir() and path.name != "__pycache__")
LISTENER = SOURCE / "protocols" / "listener"
MAX_SERVER_LINES = 99


# The edges that protocols share. HTTP is one for those that are spoken inside it: it parses requests for whoever answers them.
EDGES = {
    "aws": ("listener", "http"),
    "management": ("listener", "http"),
    "mqtt": ("listener", "websocket"),
    "stomp": ("listener", "websocket"),
}
WITHOUT_SERVER = frozenset({"listener", "websocket"})


def test_no_protocol_imports_another() -> None:
    assert len(PROTOCOLS) > 3
    for protocol in PROTOCOLS:
        for path in protocol.rglob("*.py"):
            for name in imports_of(path):
                parts = name.split(".")
                if parts[:2] == ["trunkline", "protocols"] and len(parts) > 2:
                    assert parts[2] in (protocol.name, *EDGES.get(protocol.name, ("listener",))), (
                        f"{path} imports {name}"
                    )


def test_no_module_imports_itself_by_way_of_others() -> None:
    """What is imported for its type alone counts, too."""
    names = {module_name(path): path for path in SOURCE.rglob("*.py")}
    graph = {name: {found for found in modules_named_in(path, names) if found != name} for name, path in names.items()}
    found = [", ".join(sorted(cycle)) for cycle in cycles(graph)]
    assert not found, "these import each other"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_named_in(path: Path, names: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                inside = f"{node.module}.{name.name}"
                found.add(inside if inside.removeprefix("trunkline.") in names else node.module)
    return {name.removeprefix("trunkline.") for name in found} & names.keys()


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start, imported in graph.items():
        seen: set[str] = set()
        waiting = list(imported)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += graph[name]
        reached[start] = seen
    found = {frozenset({name} | {other for other in reached[name] if name in reached[other]}) for name in graph}
    return [set(each) for each in found if len(each) > 1]


def test_only_the_listener_has_sockets() -> None:
    for room in ROOMS:
        for path in modules_of(room):
            if path == LISTENER / "accepting.py":
                continue
            tree = parsed(path)
            names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
            names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            assert "socket" not in names, f"{path} imports socket"


def test_only_the_listener_has_transports() -> None:
    for room in ROOMS:
        for path in modules_of(room):
            if LISTENER not in path.parents:
                found = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
                assert not found & {"Transport", "BaseTransport", "BufferedProtocol", "Protocol"}, path


@pytest.mark.parametrize(
    "protocol", [each for each in PROTOCOLS if each.name not in WITHOUT_SERVER], ids=lambda each: each.name
)
def test_a_protocol_is_a_codec_a_session_a_small_server_and_a_page(protocol: Path) -> None:
    for name in ("codec.py", "session.py", "server.py", "README.md"):
        assert (protocol / name).is_file(), f"{protocol.name} has no {name}"
    assert len((protocol / "server.py").read_text().splitlines()) <= MAX_SERVER_LINES


def test_gossip_and_membership_know_nothing_but_the_machine_and_each_other() -> None:
    allowed = ("trunkline.overlay.machine", "trunkline.overlay.gossip", "trunkline.overlay.membership")
    for path in [*modules_of("overlay/gossip"), *modules_of("overlay/membership")]:
        for name in imports_of(path) - COMMON:
            assert name.startswith(allowed), f"{path.relative_to(SOURCE)} imports {name}"


def test_the_overlay_runs_without_sockets_threads_and_time_of_its_own() -> None:
    for path in [*modules_of("overlay/gossip"), *modules_of("overlay/membership")]:
        names = {n.name for node in ast.walk(parsed(path)) if isinstance(node, ast.Import) for n in node.names}
        assert not names & {"socket", "asyncio", "threading", "time", "random"}, path


def test_every_file_that_the_architecture_page_names_is_there() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    rooms = "|".join(ROOMS)
    named = re.findall(rf"`((?:{rooms})/[a-z_/]+\.py)`", page)
    assert len(named) > 20
    assert [name for name in named if not (SOURCE / name).is_file()] == []


def test_every_folder_has_its_line_in_the_architecture_page() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    for folder in (path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"):
        if any(child.suffix == ".py" and child.name != "__init__.py" for child in folder.iterdir()):
            assert f"src/trunkline/{folder.relative_to(SOURCE)}/" in page, folder
