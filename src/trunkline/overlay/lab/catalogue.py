"""The experiments by name, and one run of one of them: what every worker does."""

from __future__ import annotations

from trunkline.overlay.lab.experiment import Experiment, Outcome, Task
from trunkline.overlay.lab.experiments import (
    anti_entropy,
    averaging,
    bimodal,
    blind_counter,
    rendezvous,
    rumor,
    search,
    swim,
)

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (rumor, blind_counter, anti_entropy, averaging, bimodal, swim, search, rendezvous)
}


def simulate(task: Task) -> Outcome:
    return EXPERIMENTS[task.experiment].simulate(task.parameters, task.seed)
