"""Rates: how fast numbers that only grow have grown lately.

Nothing is counted here, and nothing on the way of a message: whoever asks gives the number as it is now, under a name, and is
told how it grew since it was last asked for (`of`). A number that nobody asks for costs nothing. Samples are kept for
`_KEPT_S`, one each `_STEP_S` at the most, and for `_MAX_NAMES` names, of which the one asked for longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import pairwise
from typing import Final

from trunkline.clock import Clock

_STEP_S: Final = 1.0
_LATELY_S: Final = 10.0
_KEPT_S: Final = 600.0
_KEPT_SAMPLES: Final = 120
_MAX_NAMES: Final = 5_000

Name = tuple[str, ...]


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: OrderedDict[Name, deque[tuple[float, float]]] = OrderedDict()

    def of(self, name: Name, value: float) -> float:
        """How much the number has grown per second lately; 0 when it was never asked for before."""
        now_s = self._clock.monotonic_ms() / 1000
        samples = self._samples.get(name)
        if samples is None:
            if len(self._samples) >= _MAX_NAMES:
                self._samples.popitem(last=False)
            samples = self._samples[name] = deque(maxlen=_KEPT_SAMPLES)
        else:
            self._samples.move_to_end(name)
        if samples and value < samples[-1][1]:
            samples.clear()  # what was counted has begun anew
        if not samples or now_s - samples[-1][0] >= _STEP_S:
            samples.append((now_s, value))
        while samples and now_s - samples[0][0] > _KEPT_S:
            samples.popleft()
        since = next(((at, was) for at, was in samples if now_s - at <= _LATELY_S), None)
        if since is None or now_s - since[0] < _STEP_S / 2:
            since = samples[-2] if len(samples) > 1 else None
        if since is None or now_s <= since[0]:
            return 0.0
        return max(0.0, (value - since[1]) / (now_s - since[0]))

    def history(self, name: Name) -> list[tuple[float, float]]:
        """Seconds ago and the rate then, oldest first."""
        now_s = self._clock.monotonic_ms() / 1000
        samples = list(self._samples.get(name, ()))
        return [
            (round(now_s - at, 1), max(0.0, (value - was) / (at - before)))
            for (before, was), (at, value) in pairwise(samples)
            if at > before
        ]
