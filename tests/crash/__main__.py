"""The long form of the crash tests: `python -m tests.crash --cycles 300 [--protocol amqp|kafka-java|mqtt|share|sqs|mixed]`, or `make crash`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.crash.amqp_campaign import AmqpCampaign
from tests.crash.java_campaign import JavaCampaign
from tests.crash.kafka_campaign import KafkaCampaign
from tests.crash.kills import Campaign, Kills
from tests.crash.mqtt_campaign import MqttCampaign
from tests.crash.share_campaign import ShareCampaign
from tests.crash.sqs_campaign import SqsCampaign

CAMPAIGNS: dict[str, tuple[type[Campaign], ...]] = {
    "amqp": (AmqpCampaign,),
    "kafka": (KafkaCampaign,),
    "kafka-java": (JavaCampaign,),
    "mqtt": (MqttCampaign,),
    "share": (ShareCampaign,),
    "sqs": (SqsCampaign,),
    "mixed": (KafkaCampaign, AmqpCampaign, MqttCampaign),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--cycles", type=int, default=300, help="how often the broker is killed (default 300)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the schedule of an earlier run")
    parser.add_argument("--directory", type=Path, default=None, help="keep the broker's data and log here")
    parser.add_argument("--protocol", choices=sorted(CAMPAIGNS), default="kafka", help="whose clients are at work")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    console = Console(stderr=True)
    console.print(f"Killing a working broker {options.cycles} times; repeat with --seed {seed}.")
    with tempfile.TemporaryDirectory(prefix="trunkline-crash-") as scratch:
        directory = options.directory or Path(scratch)
        kills = Kills(directory, seed)
        for campaign in CAMPAIGNS[options.protocol]:
            campaign(kills)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("crash cycles", total=options.cycles)
            summary = kills.run(options.cycles, lambda done: progress.update(task, completed=done))
    print(summary)
    return 1 if summary.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
