"""The short form of the crash test with clients of all protocols on one broker."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.amqp_campaign import AmqpCampaign
from tests.crash.kafka_campaign import KafkaCampaign
from tests.crash.kills import Kills
from tests.crash.mqtt_campaign import MqttCampaign

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

CYCLES = 3


def test_every_promise_of_every_protocol_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    for campaign in (KafkaCampaign, AmqpCampaign, MqttCampaign):
        campaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert min(summary.checked.values()) > 0, summary
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()
