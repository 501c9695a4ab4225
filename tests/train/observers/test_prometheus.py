"""The last report over HTTP, read as Prometheus reads it."""

from __future__ import annotations

import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from verifiers.errors import ConfigError
from verifiers.train.observers.prometheus import PrometheusObserver
from verifiers.train.report import StepReport


def fetched(url: str) -> str:
    return httpx.get(url).text


def test_figures_are_gauges() -> None:
    """By their names with underscores; the newest value of each, also of those that not every step has."""
    with PrometheusObserver() as observer:
        observer(StepReport(1, 1, True, 0.5, {"reward/mean": 0.25, "eval/my-env/reward": 0.75}))
        observer(StepReport(2, 1, False, 0.5, {"reward/mean": 0.5}))
        text = fetched(f"{observer.url}/metrics")
    values = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
    assert values["vf_train_step"] == 2 and values["vf_train_trained"] == 0
    assert values["vf_train_reward_mean"] == 0.5 and values["vf_train_eval_my_env_reward"] == 0.75
    assert values["vf_train_last_step_timestamp_seconds"] > 1e9


def test_health_says_how_far_the_run_is() -> None:
    """As JSON, before the first step too; nothing else is served."""
    with PrometheusObserver() as observer:
        assert json.loads(fetched(f"{observer.url}/health"))["step"] == 0
        observer(StepReport(7, 7, True, 0.5))
        health = json.loads(fetched(f"{observer.url}/health"))
        assert (health["status"], health["step"]) == ("running", 7) and health["seconds_since_step"] >= 0
        assert httpx.get(f"{observer.url}/other").status_code == 404


def test_a_taken_port_is_named() -> None:
    """Before the run begins, with what to do."""
    with PrometheusObserver() as observer:
        port = int(observer.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=str(port)) as raised:
            PrometheusObserver(port)
    assert "0 takes a free one" in raised.value.hint
