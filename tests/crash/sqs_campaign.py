"""The campaign of SQS clients: senders and receivers of a standard and of a FIFO queue. What is promised is in `sqs_ledger`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from tests.crash.kills import Campaign, Kills
from tests.crash.sqs_ledger import SqsLedger
from trunkline.client.aws import AwsClient
from trunkline.client.errors import ClientError

STANDARD, FIFO = "work", "work.fifo"
GROUPS = 3
FINISH_SECONDS = 120.0
PAUSE_SECONDS = 0.02
VISIBILITY = {"VisibilityTimeout": "600"}


class SqsCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self.ledger = SqsLedger()
        self._sending = True
        self._receiving = True
        self._threads: list[threading.Thread] = []
        self._senders: list[threading.Thread] = []
        self._urls: dict[str, str] = {}

    @property
    def complaints(self) -> list[str]:
        return self.ledger.complaints

    def begin(self) -> None:
        client = self._client()
        for name, attributes in ((STANDARD, VISIBILITY), (FIFO, {**VISIBILITY, "FifoQueue": "true"})):
            self._urls[name] = str(client.sqs("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"])
        senders = [self._send_standard, *[lambda group=f"g{n}": self._send_fifo(group) for n in range(GROUPS)]]
        self._senders = [self._started(work) for work in senders]
        receivers = [lambda name=name: self._receive(name) for name in (STANDARD, STANDARD, FIFO, FIFO)]
        self._threads = [self._started(work) for work in receivers]

    def _started(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _client(self) -> AwsClient:
        return AwsClient(f"http://127.0.0.1:{self.server.port_of('aws')}", timeout_s=20.0)

    def _until_answered(self, client: AwsClient | None, operation: str, going: Callable[[], bool], **given: Any) -> tuple[AwsClient | None, dict[str, object] | None]:  # fmt: skip
        """Ask again and again, as SDKs do, as long as there is a reason to."""
        while going():
            try:
                client = client or self._client()
                return client, client.sqs(operation, **given)
            except ClientError:
                client = None
                time.sleep(PAUSE_SECONDS)
        return client, None

    # -- clients -------------------------------------------------------------------------------------------------------

    def _send_standard(self) -> None:
        client: AwsClient | None = None
        number = 0
        while self._sending:
            bodies = [f"s-{number + place}" for place in range(5)]
            number += 5
            entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
            try:
                client = client or self._client()
                answer = client.sqs("SendMessageBatch", QueueUrl=self._urls[STANDARD], Entries=entries)
            except ClientError:
                client = None
                time.sleep(PAUSE_SECONDS)
                continue
            if len(cast("list[object]", answer["Successful"])) == len(bodies):
                self.ledger.sent(bodies)

    def _send_fifo(self, group: str) -> None:
        """What was not answered is sent again, under the same id."""
        client: AwsClient | None = None
        number = 0
        while self._sending:
            body = f"{group}-{number}"
            given = {"MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body}
            client, answer = self._until_answered(
                client, "SendMessage", lambda: self._receiving, QueueUrl=self._urls[FIFO], **given
            )
            if answer is None:
                return
            self.ledger.sent([body])
            number += 1

    def _receive(self, name: str) -> None:
        client: AwsClient | None = None
        url = self._urls[name]
        while self._receiving:
            generation = self.ledger.generation
            try:
                client = client or self._client()
                answer = client.sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["All"])  # fmt: skip
                messages = cast("list[dict[str, Any]]", answer.get("Messages", []))
                for message in messages:
                    group = message["Attributes"]["MessageGroupId"] if name == FIFO else None
                    self.ledger.got(message["Body"], message["MessageId"], group)
                for message in messages:
                    client.sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    self.ledger.gone(message["Body"], generation)
            except ClientError:
                client = None
                time.sleep(PAUSE_SECONDS)

    # -- the campaign --------------------------------------------------------------------------------------------------

    def killed(self) -> None:
        self.ledger.generation += 1

    def stop_sending(self) -> None:
        self._sending = False

    def finish(self) -> None:
        for thread in self._senders:
            thread.join(FINISH_SECONDS)
        deadline = time.monotonic() + FINISH_SECONDS
        while self.ledger.confirmed - self.ledger.received.keys() and time.monotonic() < deadline:
            time.sleep(0.1)

    def verify(self) -> None:
        """After one more kill: what was not deleted comes again, and then there is nothing."""
        deadline = time.monotonic() + FINISH_SECONDS
        client: AwsClient | None = None
        while time.monotonic() < deadline:
            left = 0
            for url in self._urls.values():
                client, answer = self._until_answered(
                    client, "GetQueueAttributes", lambda: True, QueueUrl=url, AttributeNames=["All"]
                )
                found = cast("dict[str, dict[str, str]]", answer)["Attributes"]
                left += int(found["ApproximateNumberOfMessages"]) + int(found["ApproximateNumberOfMessagesNotVisible"])
            if not left:
                break
            time.sleep(0.2)
        else:
            self.ledger.complaints.append("the queues were not worked off")
        self.ledger.check_all_received()

    def end(self) -> None:
        self._sending = self._receiving = False
        for thread in (*self._senders, *self._threads):
            thread.join(FINISH_SECONDS)

    def checked(self) -> Mapping[str, int]:
        return {
            "messages answered with 200": len(self.ledger.confirmed),
            "deletions answered with 200": len(self.ledger.deleted),
        }
