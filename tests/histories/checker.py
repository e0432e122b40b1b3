"""Is a history linearizable? Whether there is an order of its operations, each at one moment between its call and its return, that a
sequential model allows.

The search is Wing and Gong's with Lowe's memory: take any operation that may be next (no other has returned before it was
called), ask the model, go on; never look twice at the same operations done in the same state. What was not answered may have taken effect
at any time after its call, or never: it need not be in the order.

A history of parts that do not concern each other (the keys of a map, the kinds of tuples) is linearizable if each part is; the
search is exponential in the number of operations that overlap, so whoever records a history splits it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

NEVER = float("inf")


@dataclass(eq=False, slots=True)
class Operation:
    call: float
    what: str
    given: Any = None
    answer: Any = None
    returned: float = NEVER  # NEVER: not known whether it was done

    @property
    def known(self) -> bool:
        return self.returned != NEVER


# The states in which an operation may leave the model, given its answer if that is known; none: it is not possible here.
Model = Callable[[Any, Operation], Iterable[Hashable]]


@dataclass
class History:
    """Operations by the part of the state that they concern."""

    clock: Callable[[], float]
    parts: dict[Hashable, list[Operation]] = field(default_factory=dict)

    def begin(self, part: Hashable, what: str, given: Any = None) -> Operation:
        operation = Operation(self.clock(), what, given)
        self.parts.setdefault(part, []).append(operation)
        return operation

    def end(self, operation: Operation, answer: Any = None) -> None:
        operation.answer = answer
        operation.returned = self.clock()

    def forget(self, part: Hashable, operation: Operation) -> None:
        """It is certain that it was not done."""
        self.parts[part].remove(operation)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def broken_parts(self, model: Model, initial: Hashable) -> list[Hashable]:
        return [part for part, operations in self.parts.items() if not linearizable(operations, model, initial)]


def linearizable(operations: Sequence[Operation], model: Model, initial: Hashable) -> bool:
    ordered = sorted(operations, key=lambda operation: operation.call)
    to_do = sum(1 << number for number, operation in enumerate(ordered) if operation.known)
    seen: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Hashable]] = [(0, initial)]  # what is in the order so far, and the state behind it
    while stack:
        done, state = stack.pop()
        if done & to_do == to_do:
            return True
        # Nothing may come before something that had returned when it was called.
        first_return = min(
            operation.returned for number, operation in enumerate(ordered) if operation.known and not done >> number & 1
        )
        for number, operation in enumerate(ordered):
            if operation.call > first_return:
                break
            if done >> number & 1:
                continue
            for following in model(state, operation):
                step = (done | 1 << number, following)
                if step not in seen:
                    seen.add(step)
                    stack.append(step)
    return False


# -- models ------------------------------------------------------------------------------------------------------------


def register(state: Any, operation: Operation) -> Iterable[Hashable]:
    """One key of a map: None or its value. `set` is unconditional; `swap` is given what is there and what it becomes."""
    if operation.what == "get":
        return [state] if not operation.known or operation.answer == state else []
    if operation.what == "set":
        return [operation.given]
    before, after = operation.given
    if not operation.known:
        return [after] if before == state else []
    return (
        [after] if operation.answer and before == state else [state] if not operation.answer and before != state else []
    )


def bag(state: Any, operation: Operation) -> Iterable[Hashable]:
    """The tuples of one kind that are there, each different. `take` and `read` get one of them, or None if there is none."""
    if operation.what == "write":
        return [state | {operation.given}]
    if operation.what == "read":
        if not operation.known:
            return [state]
        return [state] if (operation.answer in state if operation.answer is not None else not state) else []
    if not operation.known:
        return [state - {each} for each in state]
    if operation.answer is None:
        return [] if state else [state]
    return [state - {operation.answer}] if operation.answer in state else []
