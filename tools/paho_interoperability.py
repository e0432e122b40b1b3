"""Run the Eclipse Paho interoperability suite, for MQTT 3.1.1 and 5.0, against a broker.

    git clone https://github.com/eclipse/paho.mqtt.testing /somewhere/else
    python tools/paho_interoperability.py /somewhere/else                  # a broker of its own
    python tools/paho_interoperability.py /somewhere/else --mosquitto      # the same on Mosquitto
    python tools/paho_interoperability.py /somewhere/else -k retained

The suite is not part of this repository and is not copied into it. Its modules expect their settings as globals of a main
program; this sets them and runs the tests with unittest, each module in a process of its own. The exit code is that of
the worst.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import subprocess
import sys
import unittest
from pathlib import Path

MODULES = ("client_test", "client_test5")
TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
WILD_TOPICS = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
MODULE_TIMEOUT_S = 600.0


def run_module(suite: Path, name: str, address: str, pattern: str | None) -> int:
    sys.path.insert(0, str(suite / "interoperability"))
    module = importlib.import_module(name)
    host, _, port = address.rpartition(":")
    for setting, value in {
        "host": host,
        "port": int(port),
        "topics": TOPICS,
        "wildtopics": WILD_TOPICS,
        "nosubscribe_topics": ("test/nosubscribe",),
        "topic_prefix": "client_test5/",
    }.items():
        setattr(module, setting, value)
    logging.getLogger().setLevel(logging.ERROR)
    loader = unittest.TestLoader()
    if pattern is not None:
        loader.testNamePatterns = [f"*{pattern}*"]
    result = unittest.TextTestRunner(verbosity=2).run(loader.loadTestsFromModule(module))
    passed = result.testsRun - len(result.failures) - len(result.errors) - len(result.skipped)
    print(f"{name}: {passed} of {result.testsRun} passed, {len(result.skipped)} skipped")
    return 0 if result.wasSuccessful() else 1


def run_all(arguments: argparse.Namespace) -> int:
    from trunkline.bench.mosquitto import Mosquitto
    from trunkline.bench.trunkline_process import TrunklineProcess

    # What the suite expects of the broker that it is run against, beside the standard.
    os.environ["TRUNKLINE_MQTT_MAX_KEEP_ALIVE_S"] = "60"
    os.environ["TRUNKLINE_MQTT_REFUSED_FILTERS"] = "test/nosubscribe"
    worst = 0
    with Mosquitto() if arguments.mosquitto else TrunklineProcess("mqtt") as broker:
        for name in MODULES:
            command = [sys.executable, __file__, str(arguments.suite), "--module", name, "--address", broker.address]
            command += ["-k", arguments.k] if arguments.k else []
            worst = max(worst, subprocess.run(command, timeout=MODULE_TIMEOUT_S, check=False).returncode)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Paho interoperability suite.")
    parser.add_argument("suite", type=Path, help="a checkout of eclipse/paho.mqtt.testing")
    parser.add_argument("--mosquitto", action="store_true", help="against Mosquitto instead of us")
    parser.add_argument("-k", metavar="PATTERN", help="only tests whose name contains this")
    parser.add_argument("--module", choices=MODULES, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.module is not None:
        return run_module(arguments.suite, arguments.module, arguments.address, arguments.k)
    return run_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
