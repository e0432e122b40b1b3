"""A group of processes: every member gets the same messages and the same views of who is there, in the same order.

    g = t.group("team", order="total")
    g.on_message(lambda sender, value: ...)
    g.on_view(lambda view: ...)
    g.state(give=lambda: counters, take=counters.update)      # what a joiner gets from the others
    await g.join()
    await g.send({"n": 1})                                    # stored when it returns; delivered to all, also to the sender

What is promised (virtual synchrony): views and messages are one sequence, the same for all members, for as long as they are
members; a joiner begins with the state that the others had at its view. The sequence is the log's, so the order is total, and
with it causal and first in, first out: `order` says what a program relies on, and gets at least that.

A member that is not heard of for `lease` seconds is out with the next view. If it was only cut off, or its process was
stopped for a while, it joins again by itself, as a new member with the state of the others; `on_evicted` is told.

Callbacks are called one after the other. One that raises is logged; the group goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self, cast

from trunkline.api import team_view
from trunkline.api.asking import Asking, Json, packed, unpacked
from trunkline.api.errors import ConnectionLost, Refused, Timeout, TrunklineError
from trunkline.api.team_view import Evicted, Membership, Received, StateInstalled, StateWanted, View, ViewChanged

logger = logging.getLogger(__name__)

Order = Literal["fifo", "causal", "total"]
_AGAIN_S = 0.1
_MOST_UNDELIVERED = 10_000


class Group:
    def __init__(
        self,
        asking: Asking,
        name: str,
        *,
        order: Order = "total",
        lease: float = 5.0,
        closed: bool = True,
        of: Any = object,
    ) -> None:
        if order not in ("fifo", "causal", "total"):
            raise ValueError(f"order is fifo, causal or total, not {order!r}")
        self.name = name
        self.order = order
        self._asking = asking
        self._lease = lease
        self._closed = closed
        self._of = of
        self._on_message: list[Callable[[str, Any], object]] = []
        self._on_view: list[Callable[[View], object]] = []
        self._on_evicted: list[Callable[[], object]] = []
        self._give: Callable[[], object] | None = None
        self._install: Callable[[Any], object] | None = None
        self._sent = 0
        self._sending = asyncio.Lock()
        self._joining = asyncio.Lock()
        self._membership: Membership | None = None
        self._installed = asyncio.Event()
        self._steps: asyncio.Queue[team_view.Step] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(1, f"trunkline-group-{name}")
        self.view = View(0, ())

    def __repr__(self) -> str:
        return f"Group({self.name!r})"

    # -- what is called ----------------------------------------------------------------------------------------------

    def on_message(self, function: Callable[[str, Any], object]) -> None:
        """Call `function(sender, value)` for each message."""
        self._on_message.append(function)

    def on_view(self, function: Callable[[View], object]) -> None:
        """Call `function(view)` when somebody has come or gone."""
        self._on_view.append(function)

    def on_evicted(self, function: Callable[[], object]) -> None:
        """Call `function()` when the others went on without this member; it is joining again then."""
        self._on_evicted.append(function)

    def state(self, give: Callable[[], object], take: Callable[[Any], object]) -> None:
        """`give` returns what this member has become by all that it was called for; `take` becomes that."""
        self._give, self._install = give, take

    # -- membership --------------------------------------------------------------------------------------------------

    @property
    def me(self) -> str | None:
        """This member's name; another one after it was evicted."""
        return None if self._membership is None else self._membership.me

    async def join(self, *, timeout: float | None = None) -> Self:
        """Returns when this member is in the view, and has the state of the others."""
        async with self._joining:
            if self._membership is None:
                offset = await self._enter(timeout)
                loop = asyncio.get_running_loop()
                self._tasks = [loop.create_task(self._read(offset)), loop.create_task(self._deliver())]
        try:
            async with asyncio.timeout(timeout if timeout is not None else 2 * self._lease + 5):
                await self._installed.wait()
        except TimeoutError:
            raise Timeout("the others did not hand over their state in time") from None
        return self

    async def _enter(self, timeout: float | None) -> int:
        member = f"{self.name}-{secrets.token_hex(4)}"
        question: Json = {"member": member, "lease_ms": round(self._lease * 1000), "closed": self._closed}
        try:
            found = await self._ask("join", question, timeout)
            offset = cast(int, found["offset"])
        except Refused as error:
            if "already" not in error.text:
                raise
            offset = 0  # the answer to the first question was lost
        self._sent = 0
        self._membership = Membership(member)
        return offset

    async def leave(self) -> None:
        """The others see a view without this member."""
        membership, self._membership = self._membership, None
        for task in self._tasks:
            task.cancel()
        current = asyncio.current_task()
        await asyncio.gather(*[task for task in self._tasks if task is not current], return_exceptions=True)
        self._tasks = []
        if membership is not None:
            try:
                await self._ask("leave", {"member": membership.me}, None)
            except TrunklineError as error:
                logger.info("%s could not say that it leaves: its lease will tell: %s", membership.me, error)
        self._threads.shutdown(wait=False)

    close = leave

    async def __aenter__(self) -> Self:
        return await self.join()

    async def __aexit__(self, *exc: object) -> None:
        await self.leave()

    async def members(self) -> list[str]:
        """Who is in the group now, as the broker knows it: for who is not in it, too."""
        return list(map(str, cast("list[object]", (await self._ask("members", {}, None))["members"])))

    # -- messages ----------------------------------------------------------------------------------------------------

    async def send(self, value: object, *, timeout: float | None = None) -> None:
        """To all members; stored when it returns. Who is not a member may send to an open group."""
        body, kind = packed(value)
        async with self._sending:  # one after the other: that is what numbers are for
            while True:
                membership = self._membership
                number = 0 if membership is None else self._sent + 1
                sender = "stranger" if membership is None else membership.me
                question: Json = {"member": sender, "number": number, "value": body, "type": kind}
                try:
                    await self._ask("send", question, timeout)
                except Refused:
                    if membership is None or (self._membership is membership and not await self._rejoined(membership)):
                        raise
                    continue
                if membership is not None:
                    self._sent = number
                return

    async def _rejoined(self, membership: Membership) -> bool:
        """Wait until this member, which was refused, has found out that it was evicted and is another one."""
        try:
            async with asyncio.timeout(self._lease):
                while self._membership is membership:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False
        return True

    async def _ask(self, what: str, more: Json, timeout: float | None, *, wait: float = 0.0) -> Json:
        return await self._asking.ask({"do": f"team.{what}", "name": self.name, **more}, timeout, wait=wait)

    # -- the sequence ------------------------------------------------------------------------------------------------

    async def _read(self, following: int) -> None:
        """Follow the sequence. Every question is a sign of life; so they go on while callbacks take their time."""
        wait = self._lease / 3
        while True:
            membership = self._membership
            if membership is None:
                return
            try:
                if self._steps.qsize() > _MOST_UNDELIVERED:
                    await self._ask("members", {"member": membership.me}, None)
                    await asyncio.sleep(wait / 2)
                    continue
                question: Json = {"member": membership.me, "after": following, "wait_ms": round(wait * 1000)}
                found = await self._ask("receive", question, None, wait=wait)
                for record in cast("list[Json]", found["records"]):
                    evicted = False
                    for step in membership.take(record):
                        self._steps.put_nowait(step)
                        evicted |= isinstance(step, Evicted)
                    if evicted:
                        following = await self._enter_again()
                        break
                else:
                    following = cast(int, found["next"])
            except (ConnectionLost, Timeout):
                await asyncio.sleep(_AGAIN_S)
            except TrunklineError:
                logger.exception("group %s cannot be followed", self.name)
                await asyncio.sleep(1.0)

    async def _enter_again(self) -> int:
        while True:
            try:
                return await self._enter(None)
            except (ConnectionLost, Timeout):
                await asyncio.sleep(_AGAIN_S)

    async def _deliver(self) -> None:
        while True:
            step = await self._steps.get()
            try:
                await self._carry_out(step)
            except TrunklineError as error:
                logger.warning("group %s: %s", self.name, error)
            except Exception:
                logger.exception("a callback of group %s failed", self.name)

    async def _carry_out(self, step: team_view.Step) -> None:
        if isinstance(step, Received):
            value = unpacked(step.body, step.type, self._of)
            for told in self._on_message:
                await self._call(told, step.sender, value)
        elif isinstance(step, ViewChanged):
            self.view = step.view
            self._installed.set()
            for shown in self._on_view:
                await self._call(shown, step.view)
        elif isinstance(step, StateInstalled):
            if self._install is not None:
                await self._call(self._install, unpacked(step.body, step.type))
        elif isinstance(step, StateWanted):
            await self._hand_over(step.view)
        else:
            for regretted in self._on_evicted:
                await self._call(regretted)

    async def _hand_over(self, view: int) -> None:
        try:
            body, kind = packed(None if self._give is None else await self._call(self._give))
        except Exception:
            logger.exception("group %s: there is no state to hand over", self.name)
            body, kind = packed(None)
        membership = self._membership
        while membership is not None and membership is self._membership:
            question: Json = {"member": membership.me, "view": view, "value": body, "type": kind}
            try:
                await self._ask("state", question, None)
                return
            except (ConnectionLost, Timeout):
                await asyncio.sleep(_AGAIN_S)

    async def _call(self, function: Callable[..., object], *given: object) -> object:
        if inspect.iscoroutinefunction(function):
            return await cast("Awaitable[object]", function(*given))
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *given)
