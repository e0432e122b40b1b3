"""`python -m tests.late_serve`: the broker of `trunkline serve` over a store that answers late, for `--store late`."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.late_log import LateLog
from tests.stores import late, seed
from trunkline import app
from trunkline.config import Config, load
from trunkline.log.limits import StoreLimits


def late_store(config: Config, limits: StoreLimits) -> LateLog:
    return late(app.embedded_store(config, limits))


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--data", "--host", "--kafka-port", "--ready-file"):
        parser.add_argument(flag)
    config = load(vars(parser.parse_args()))
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger(__name__).warning("the store answers late, seed %d", seed())
    return app.serve(config, store=late_store)


if __name__ == "__main__":
    sys.exit(main())
