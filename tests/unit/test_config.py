"""Settings: what each source may say, which one wins, and what a person is told about a mistake."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config import SETTINGS, Config, ConfigError, example, load, topic_env
from trunkline.log.config import SETTINGS as TOPIC_SETTINGS
from trunkline.version import VERSION

SOURCES = ("default", "file", "env", "flag")


def write(directory: Path, text: str) -> Path:
    path = directory / "trunkline.toml"
    path.write_text(text)
    return path


def test_without_any_source_every_setting_has_its_default(tmp_path: Path) -> None:
    config = load(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    assert config == Config()
    assert set(config.origins) == set(SETTINGS)
    assert set(config.origins.values()) == {"default"}


@given(given_by=st.sets(st.sampled_from(SOURCES[1:])), ports=st.tuples(*[st.integers(0, 65535)] * 3))
def test_the_later_source_wins(
    tmp_path_factory: pytest.TempPathFactory, given_by: set[str], ports: tuple[int, int, int]
) -> None:
    directory = tmp_path_factory.mktemp("config")
    values = dict(zip(SOURCES[1:], ports, strict=True))
    path = write(directory, f"kafka_port = {values['file']}" if "file" in given_by else "")
    environ = {"HOME": str(directory)}
    if "env" in given_by:
        environ["TRUNKLINE_KAFKA_PORT"] = str(values["env"])
    flags = {"kafka_port": str(values["flag"]) if "flag" in given_by else None}
    config = load(flags, environ=environ, directory=directory)
    winner = max(given_by, key=SOURCES.index, default="default")
    origins = {"default": "default", "file": f"file {path}", "env": "env TRUNKLINE_KAFKA_PORT", "flag": "flag"}
    assert config.kafka_port == {**values, "default": 9092}[winner]
    assert config.origins["kafka_port"] == origins[winner]
    assert config.origins["host"] == "default"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "data": st.just("somewhere"),
            "kafka_port": st.one_of(st.integers(0, 65535), st.just("off")),
            "auto_create_topics": st.booleans(),
            "num_partitions": st.integers(1, 100),
            "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
            "max_connections": st.integers(1, 10**6),
        },
    )
)
def test_a_value_reads_the_same_from_file_environment_and_flag(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    directory = tmp_path_factory.mktemp("config")
    quoted = {name: f'"{value}"' if isinstance(value, str) else str(value).lower() for name, value in values.items()}
    write(directory, "\n".join(f"{name} = {value}" for name, value in quoted.items()))
    empty = tmp_path_factory.mktemp("empty")
    home = {"HOME": str(empty)}
    from_file = load(environ=home, directory=directory)
    env = {SETTINGS[name].env: str(value) for name, value in values.items()}
    assert load(environ=home | env, directory=empty) == from_file
    assert load(values, environ=home, directory=empty) == from_file


def test_the_named_file_replaces_the_local_one_and_the_local_one_that_of_the_user(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("node_id = 1")
    user = tmp_path / "xdg" / "trunkline" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("node_id = 3")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    write(here, "node_id = 2")
    assert load(environ=environ, directory=here, config_file=named).node_id == 1
    assert load(environ=environ | {"TRUNKLINE_CONFIG": str(named)}, directory=here).node_id == 1
    assert load(environ=environ, directory=here).node_id == 2
    assert load(environ=environ, directory=elsewhere).node_id == 3


def test_topic_defaults_come_from_every_source_by_kafkas_names(tmp_path: Path) -> None:
    path = write(
        tmp_path, '[topic]\n"retention.ms" = 1000\nsegment.bytes = 2048\nflush = "commit"\npreallocate = false\n'
    )
    config = load(
        environ={"HOME": str(tmp_path), topic_env("segment.bytes"): "4096"},
        directory=tmp_path,
        topic_flags={"flush": "os"},
    )
    assert dict(config.topic) == {
        "retention.ms": "1000",
        "segment.bytes": "4096",
        "flush": "os",
        "preallocate": "false",
    }
    assert config.origins["topic.retention.ms"] == f"file {path}"
    assert config.origins["topic.segment.bytes"] == "env TRUNKLINE_TOPIC_SEGMENT_BYTES"
    assert config.origins["topic.flush"] == "flag"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kafka_prot = 1", ["kafka_prot", "did you mean kafka_port?", "trunkline.toml"]),
        ("[topic]\nretention.sm = 1", ["retention.sm", "did you mean retention.ms?"]),
        ("kafka_port = 70000", ["kafka_port", "65535", "70000"]),
        ('auto_create_topics = "perhaps"', ["auto_create_topics", "true or false"]),
        ("num_partitions = 0", ["num_partitions", "from 1"]),
        ("num_partitions = true", ["num_partitions", "whole number"]),
        ('log_level = "loud"', ["debug, info, warning, error"]),
        ("topic = 1", ["table of topic settings"]),
        ('[topic]\nflush = "never"', ["flush", "acks"]),
        ("host = ", ["not valid TOML"]),
        ("[host]\nname = 1", ["host", "must be text"]),
        ("group_min_session_timeout_ms = 9000000", ["group_max_session_timeout_ms"]),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_value_names_the_variable_or_the_flag(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="env TRUNKLINE_NODE_ID: node_id must be a whole number"):
        load(environ=home | {"TRUNKLINE_NODE_ID": "one"}, directory=tmp_path)
    with pytest.raises(ConfigError, match="--node-id must be a whole number") as caught:
        load({"node_id": "one"}, environ=home, directory=tmp_path)
    assert caught.value.from_flag


def test_what_container_platforms_say_of_a_service_of_our_name_is_left_alone(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "TRUNKLINE_SERVICE_HOST": "10.0.0.1",
        "TRUNKLINE_SERVICE_PORT": "9092",
        "TRUNKLINE_SERVICE_PORT_KAFKA": "9092",
        "TRUNKLINE_PORT": "tcp://10.0.0.1:9092",
        "TRUNKLINE_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "TRUNKLINE_PORT_9092_TCP_ADDR": "10.0.0.1",
        "TRUNKLINE_PURE": "1",
    }
    found = load(environ=environ, directory=tmp_path)
    assert found == Config()
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRUNKLINE_KAFKA_PROT", "did you mean TRUNKLINE_KAFKA_PORT?"),
        ("TRUNKLINE_TOPIC_RETENTION_MSS", "did you mean TRUNKLINE_TOPIC_RETENTION_MS?"),
        ("TRUNKLINE_ZZZZ", "`trunkline config example` lists them all"),
    ],
)
def test_a_variable_that_is_no_setting_is_a_warning(tmp_path: Path, name: str, meant: str) -> None:
    found = load(environ={"HOME": str(tmp_path), name: "1"}, directory=tmp_path)
    assert found == Config()
    assert found.warnings == (f"{name} in the environment is not a setting; {meant}",)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load(config_file=tmp_path / "absent.toml", environ={}, directory=tmp_path)


def test_the_example_with_its_comments_removed_is_the_default(tmp_path: Path) -> None:
    bare = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in example().splitlines()
    )
    table = tomllib.loads(bare)
    assert set(table) == {*SETTINGS, "topic", "mqtt"}
    assert set(table["topic"]) == set(TOPIC_SETTINGS)
    write(tmp_path, bare)
    config = load(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    assert {name: getattr(config, name) for name in SETTINGS} == {name: getattr(Config(), name) for name in SETTINGS}
    assert dict(config.topic) == {name: setting.default for name, setting in TOPIC_SETTINGS.items()}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Config(), "127.0.0.1:9092"),
        (Config(host="0.0.0.0", kafka_port=19092), "127.0.0.1:19092"),
        (Config(host="::"), "[::1]:9092"),
        (Config(host="fe80::1"), "[fe80::1]:9092"),
        (Config(bootstrap="a:1,b:2"), "a:1,b:2"),
    ],
)
def test_the_command_line_finds_the_broker_that_is_configured(config: Config, expected: str) -> None:
    assert config.client_bootstrap() == expected


def test_the_version_is_that_of_the_package() -> None:
    assert version("trunkline") == VERSION
