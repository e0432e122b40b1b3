"""The load of share groups: members work off a topic that is full, in a process of its own.

`measure` starts `python -m trunkline.bench.share_load`, as `load` does. A member here is a connection that speaks the
protocol itself: it joins by heartbeats, opens a share session, asks for 500 records at a time, as consumers do, and accepts all that it
got. It looks at which offsets it was given and opens no batch, so that the broker, and not a client's decoding, is what is
measured; requests and answers are the same for every broker.

What the clock covers, from the first fetch of records until the last acceptance was answered:

- work-off: what was fetched is accepted with the next fetch, as consumers with implicit acknowledgement do.
- commit: what was fetched is accepted by a request of its own before the next fetch, as after `commitSync`.

Every record must have been accepted exactly once, and nothing may be delivered twice. The group is new for each measurement;
joining is outside. Limit: a measurement that takes longer than `MEASURE_TIMEOUT_S` fails.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trunkline.bench.librdkafka import LoadError, Sender
from trunkline.bench.load import ADMIN_TIMEOUT_S, MEASURE_TIMEOUT_S, Job, create_topic
from trunkline.client.connection import KafkaConnection, Submitted, split_addresses
from trunkline.client.errors import ClientError, check
from trunkline.client.share_member import Locked, ShareMember, accepting
from trunkline.protocols.kafka.messages import incremental_alter_configs as configs

BATCH_MESSAGES = 100  # in a batch of the topic
MAX_WAIT_MS = 5  # a member whose partitions are done does not hold up the others
_GROUP_RESOURCE, _SET = 32, 0


@dataclass(frozen=True, slots=True)
class ShareJob:
    kind: str
    bootstrap: str
    topic: str
    size_bytes: int
    partitions: int
    members: int
    messages: int


def measure(job: ShareJob) -> float:
    """Run the job in its own process."""
    result = subprocess.run(
        [sys.executable, "-m", "trunkline.bench.share_load", json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        timeout=MEASURE_TIMEOUT_S + 3 * ADMIN_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(f"{job.kind} on {job.bootstrap} failed: {reason}")
    return float(json.loads(result.stdout))


def run(job: ShareJob) -> float:
    """Do the job in this process."""
    if job.kind == "prefill":
        return _prefill(job)
    group = f"bench-{secrets.token_hex(4)}"
    members = [_Member(job, group) for _ in range(job.members)]
    try:
        _begin_at_the_beginning(members[0].connection, group)
        _join(members, job.partitions)
        return _work(members, job)
    finally:
        for member in members:
            member.connection.close()


def _prefill(job: ShareJob) -> float:
    create_topic(Job("prefill", job.bootstrap, job.topic, job.size_bytes, "1", job.partitions, job.messages))
    settings = {"bootstrap.servers": job.bootstrap, "batch.num.messages": str(BATCH_MESSAGES), "log_level": "2"}
    # The default stays with a partition for a while, and leaves some of them short.
    settings["sticky.partitioning.linger.ms"] = "0"
    with Sender(settings, job.topic, secrets.token_bytes(job.size_bytes)) as sender:
        sender.send(job.messages)
        sender.flush(MEASURE_TIMEOUT_S)
        return float(sender.end_offset(job.partitions))


def _begin_at_the_beginning(connection: KafkaConnection, group: str) -> None:
    setting = configs.AlterableConfig(name="share.auto.offset.reset", config_operation=_SET, value="earliest")
    resource = configs.AlterConfigsResource(resource_type=_GROUP_RESOURCE, resource_name=group, configs=[setting])
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    for answer in connection.request(request, configs.IncrementalAlterConfigsResponse).responses:
        check(answer.error_code, f"group {group}", answer.error_message)


def _join(members: Sequence[_Member], partitions: int) -> None:
    """Heartbeats until every partition has a member, and every member the group's epoch."""
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while time.monotonic() < deadline:
        for member in members:
            member.heartbeat()
        covered = {place for member in members for place in member.assigned}
        is_settled = all(member.assigned for member in members) and len({member.epoch for member in members}) == 1
        if len(covered) == partitions and is_settled:
            return
        time.sleep(0.1)
    raise LoadError(f"the members had not got all partitions after {ADMIN_TIMEOUT_S:g} s")


def _work(members: Sequence[_Member], job: ShareJob) -> float:
    """All members have a fetch under way; they are answered in turn. Threads would wait for each other's interpreter."""
    left = job.messages
    deadline = time.monotonic() + MEASURE_TIMEOUT_S
    started = time.perf_counter()
    for member in members:
        member.ask()
    while left > 0:
        for member in members:
            left -= member.answered(commit=job.kind == "commit")
        if time.monotonic() > deadline:
            raise LoadError(f"{job.messages - left:,} of {job.messages:,} messages were accepted")
    elapsed_s = time.perf_counter() - started
    if left:
        raise LoadError("more messages were accepted than there are")
    return job.messages / elapsed_s


class _Member(ShareMember):
    def __init__(self, job: ShareJob, group: str) -> None:
        host, port = split_addresses(job.bootstrap)[0]
        connection = KafkaConnection(host, port, client_id="trunkline-bench")
        connection.open()
        super().__init__(connection, group, [job.topic])
        self._held: list[Locked] = []
        self._asked: Submitted | None = None

    def ask(self) -> None:
        """Ask for more, and accept with it what is held."""
        self._asked = self.submit(accepting(self._held), max_wait_ms=MAX_WAIT_MS)

    def answered(self, *, commit: bool) -> int:
        """Take the answer and ask again; how many messages are accepted by now that were not before."""
        assert self._asked is not None
        accepted = self._held
        self._held = self.collect(self._asked)
        if any(each.deliveries != 1 for each in self._held):
            raise LoadError("a record was delivered more than once")
        if commit and self._held:
            self.acknowledge(accepting(self._held))
            accepted, self._held = self._held, []
        self.ask()
        return sum(each.record_count for each in accepted)


def main() -> None:
    job = ShareJob(**json.loads(sys.argv[1]))
    try:
        figure = run(job)
    except (LoadError, ClientError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    json.dump(figure, sys.stdout)


if __name__ == "__main__":
    main()
