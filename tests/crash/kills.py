"""A broker that is killed again and again, and the campaigns that hold it to its promises.

A cycle lets the clients work for a random moment, kills the broker with SIGKILL, and starts it on the same ports and data.
Now and then it is killed again while it is still recovering. After the last cycle the clients finish what they have begun,
the broker is killed once more, and everything that was promised is compared with what is there.

A campaign is the clients of one kind, and the ledger of what they were promised. Several can share one broker: then all of
them see each kill.

The moments come from one seeded random source, so a seed repeats the schedule; what the clients had in flight at a kill
depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

LIFE_SECONDS = (0.05, 1.5)  # how long a broker lives after it is ready
RECOVERY_SECONDS = (0.0, 0.4)  # when in its start a broker is killed
KILLED_WHILE_STARTING = 0.2  # share of the starts that end so
LAUNCH_SECONDS = 30.0


@dataclass(frozen=True)
class Summary:
    seed: int
    kills: int
    kills_while_starting: int
    checked: Mapping[str, int]  # what, and how many of it
    complaints: Sequence[str]

    def __str__(self) -> str:
        checked = ", ".join(f"{count} {what}" for what, count in self.checked.items())
        lines = [f"  broken promise: {complaint}" for complaint in self.complaints] or ["  every promise was kept"]
        head = f"seed {self.seed}: {self.kills} kills, {self.kills_while_starting} of them during recovery; {checked} checked"
        return "\n".join([head, *lines])


class Kills:
    """The broker, and every way in which it dies."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.server = ServerProcess(directory)
        self.campaigns: list[Campaign] = []
        self.count = 0
        self.while_starting = 0

    def run(self, cycles: int, on_cycle: Callable[[int], None] = lambda done: None) -> Summary:
        """Hold the broker to what its campaigns were promised, through so many kills and some more."""
        self.server.start()
        try:
            for campaign in self.campaigns:
                campaign.begin()
            for cycle in range(cycles):
                time.sleep(self.random.uniform(*LIFE_SECONDS))
                self.strike()
                on_cycle(cycle + 1)
                if self._complaints():
                    break
            for campaign in self.campaigns:
                campaign.stop_sending()
            for campaign in self.campaigns:
                campaign.finish()
            self.strike()
            for campaign in self.campaigns:
                campaign.verify()
        finally:
            for campaign in self.campaigns:
                campaign.end()
            self.server.close()
        checked = {what: count for campaign in self.campaigns for what, count in campaign.checked().items()}
        return Summary(self.seed, self.count, self.while_starting, checked, self._complaints())

    def strike(self) -> None:
        """Kill the broker, perhaps some of its successors too, and start one that lives."""
        self.server.kill()
        self._was_killed()
        while self.random.random() < KILLED_WHILE_STARTING:
            survived = start_and_kill(self.server, self.random.uniform(*RECOVERY_SECONDS))
            self.while_starting += not survived
            self._was_killed()
        self.server.start()
        for campaign in self.campaigns:
            campaign.restarted()

    def _was_killed(self) -> None:
        self.count += 1
        for campaign in self.campaigns:
            campaign.killed()

    def _complaints(self) -> list[str]:
        return [complaint for campaign in self.campaigns for complaint in campaign.complaints]


class Campaign(ABC):
    """Clients of one kind at work on a broker that is killed, and what they were promised."""

    def __init__(self, kills: Kills) -> None:
        self.kills = kills
        self.server = kills.server
        self.random = kills.random
        kills.campaigns.append(self)

    @property
    @abstractmethod
    def complaints(self) -> list[str]:
        """Promises that were broken."""

    @abstractmethod
    def begin(self) -> None:
        """Make what the clients need, and start them."""

    def killed(self) -> None:  # noqa: B027 (not every campaign has something to do)
        """The broker is dead: what was promised until now must hold for the next one."""

    def restarted(self) -> None:  # noqa: B027
        """The next one is up."""

    @abstractmethod
    def stop_sending(self) -> None:
        """Nothing new is begun: called for all campaigns before the first must finish."""

    @abstractmethod
    def finish(self) -> None:
        """Let the clients complete what they have begun."""

    @abstractmethod
    def verify(self) -> None:
        """Compare all that was promised with what the broker holds."""

    @abstractmethod
    def end(self) -> None:
        """Stop the clients, whatever they do."""

    @abstractmethod
    def checked(self) -> Mapping[str, int]:
        """What was compared, and how many of it."""

    def new_seed(self) -> int:
        return self.random.randrange(1 << 30)


def start_and_kill(server: ServerProcess, delay: float) -> bool:
    """Launch the broker and kill it `delay` seconds later; true when it was ready before that."""

    def kill_launched() -> None:
        pid = wait_until(lambda: launched_pid(server), LAUNCH_SECONDS, "the launch")
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_launched)
    killer.start()
    try:
        server.start()
        ready = True
    except AssertionError as error:
        if "exited with -9" not in str(error):
            raise
        ready = False
    killer.join()
    if ready:
        server.kill()
    return ready


def launched_pid(server: ServerProcess) -> int:
    try:
        return server.pid
    except AssertionError:
        return 0
