"""The observers that a configuration asks for, beside the file of metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from verifiers.train.config import SftConfig, TrainConfig
from verifiers.train.observers.dashboards import TensorBoardObserver, WandbObserver
from verifiers.train.observers.prometheus import PrometheusObserver
from verifiers.train.report import Observer
from verifiers.train.run_folder import RunFolder


def open_observers(
    config: TrainConfig | SftConfig,
    folder: RunFolder,
    ends: AsyncExitStack,
    note: Callable[[str], None],
    *,
    run_id: str,
    after: int,
) -> list[Observer]:
    """Open them; `ends` closes them. run_id: as `run.json` has it. after: the step that the run goes on from, -1 for
    one that begins. ConfigError or MissingExtraError for what is not installed."""
    found: list[Observer] = []
    if config.log.prometheus_port is not None:
        prometheus = ends.enter_context(PrometheusObserver(config.log.prometheus_port, config.log.prometheus_host))
        note(f"figures for Prometheus: {prometheus.url}/metrics")
        found.append(prometheus)
    if config.log.tensorboard:
        found.append(ends.enter_context(TensorBoardObserver(folder / "tensorboard", after)))
    if config.log.wandb is not None:
        settings = config.model_dump(mode="json")
        found.append(ends.enter_context(WandbObserver(config.log.wandb, folder.path, settings, run_id)))
    return found
