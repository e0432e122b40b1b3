"""What a subscription asks for: one of four kinds of filter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """Events of topics that match a pattern of levels: `+` is one level, a last `#` is any number of them."""

    pattern: str

    def __post_init__(self) -> None:
        levels = self.pattern.split("/")
        if not self.pattern or "#" in levels[:-1] or any(len(each) > 1 and set(each) & {"+", "#"} for each in levels):
            raise ValueError(f"{self.pattern!r} is no pattern: + stands for a level, # for all the last ones")


@dataclass(frozen=True, slots=True)
class Channel:
    """Everything in a channel: the events of the topic of this name and of all topics below it."""

    name: str

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & {"+", "#"}:
            raise ValueError(f"{self.name!r} is no name of a channel")


@dataclass(frozen=True, slots=True)
class Content:
    """Events whose fields or headers make an expression true: `company = 'Telco' and price < 100`."""

    expression: str


@dataclass(frozen=True, slots=True)
class Type:
    """Events that are of this class, or of one derived from it."""

    of: type


Filter = Topic | Channel | Content | Type


def routing_key(topic: str) -> str:
    """A topic, or a pattern of topics, as exchanges write it."""
    return topic.replace(".", "\u00b7").replace("/", ".").replace("+", "*")


def topic_of(key: str) -> str:
    return key.replace(".", "/").replace("\u00b7", ".")
