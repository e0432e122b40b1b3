"""What every group needs from its surroundings: time, timers, the journal, limits, settings, a source of ids and the
budget for what its members say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from trunkline.budget import Budget
from trunkline.clock import Clock
from trunkline.cursors.stream.group_settings import GroupSettings
from trunkline.cursors.stream.journal import Journal
from trunkline.cursors.stream.limits import GroupLimits
from trunkline.cursors.stream.statement import Statement
from trunkline.cursors.stream.timers import Timers


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class GroupRuntime(NamedTuple):
    clock: Clock
    timers: Timers
    journal: Journal
    limits: GroupLimits
    settings: GroupSettings
    new_id: Callable[[], str]
    held: Budget

    def statement(self, group_id: str, host: str, expel: Callable[[], None]) -> Statement:
        return Statement(self.held, self.timers, group_id=group_id, host=host, expel=expel)
