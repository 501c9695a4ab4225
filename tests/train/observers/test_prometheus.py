"""A run's figures over HTTP, read as Prometheus reads it."""

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


def step(number: int, **figures: float) -> StepReport:
    """A report of a batch; `__` stands for `/`."""
    named = {name.replace("__", "/"): value for name, value in figures.items()}
    return StepReport(number, number, True, 0.5, {"batch/groups": 4.0, **named})


def scraped(observer: PrometheusObserver) -> dict[str, float]:
    """What a scrape sees: each sample once, without the prefix."""
    samples = [
        sample
        for family in text_string_to_metric_families(fetched(f"{observer.url}/metrics"))
        for sample in family.samples
    ]
    assert len({sample.name for sample in samples}) == len(samples)
    return {sample.name.removeprefix("vf_train_"): sample.value for sample in samples}


def test_a_step_replaces_the_figures_of_the_one_before() -> None:
    """All of them: what it did not measure is not shown as if it had."""
    with PrometheusObserver() as observer:
        observer(step(1, reward__mean=0.25, lag__max=2, loss__entropy=1.5))
        observer(step(2, reward__mean=0.5, lag__max=0))
        seen = scraped(observer)
    assert (seen["step"], seen["reward_mean"], seen["lag_max"]) == (2, 0.5, 0)
    assert "loss_entropy" not in seen and seen["last_step_timestamp_seconds"] > 1e9


def test_counts_add_up_so_that_no_scrape_misses_one() -> None:
    """Over all steps between two scrapes; those that alerts are about are there before the first."""
    with PrometheusObserver() as observer:
        before = scraped(observer)
        observer(step(1, lag__rows__0=32, checkpoints__saved=1, groups__failed=2, errors__model=3, eval__skipped=1))
        observer(step(2, lag__rows__1=20, lag__rows__0=12, groups__in_flight=5, groups__signal=0.5, outcomes__ok=7))
        seen = scraped(observer)
    assert before["checkpoints_saved_total"] == before["checkpoints_failed_total"] == before["eval_skipped_total"] == 0
    assert before["outcomes_failed_total"] == before["outcomes_ok_total"] == 0
    assert (seen["lag_rows_0_total"], seen["lag_rows_1_total"], seen["batch_groups_total"]) == (44, 20, 8)
    assert (seen["checkpoints_saved_total"], seen["groups_failed_total"], seen["errors_model_total"]) == (1, 2, 3)
    assert (seen["eval_skipped_total"], seen["outcomes_ok_total"]) == (1, 7)
    assert (seen["groups_in_flight"], seen["groups_signal"]) == (5, 0.5), "states and shares are no counts"
    assert not {"lag_rows_0", "checkpoints_saved", "batch_groups"} & seen.keys()


def test_an_evaluation_stands_beside_the_steps() -> None:
    """It may end late, and says which step it is of: neither step, nor age, nor health of the run are its. It stays
    until the next, which replaces it whole. Validation within a step stays as well."""
    with PrometheusObserver() as observer:
        observer(step(7, reward__mean=0.5))
        before = scraped(observer)
        figures = {"eval/version": 4.0, "eval/my-env/reward": 0.75, "eval/my-env/outcomes/failed": 1.0}
        observer(StepReport(4, 4, False, 9.0, figures))
        seen = scraped(observer)
        own = {"eval_version": 4, "eval_my_env_reward": 0.75, "eval_my_env_outcomes_failed": 1, "evaluated_step": 4}
        assert seen == {**before, **own}
        assert json.loads(fetched(f"{observer.url}/health"))["step"] == 7
        observer(step(8, reward__mean=0.5))
        assert own.items() <= scraped(observer).items()
        observer(StepReport(8, 8, False, 9.0, {"eval/version": 8.0, "eval/my-env/reward": 1.0}))
        assert "eval_my_env_outcomes_failed" not in scraped(observer)
    with PrometheusObserver() as observer:
        observer(StepReport(0, 0, False, 1.0, {"validation/cross_entropy": 2.0}))
        assert scraped(observer)["validation_cross_entropy"] == 2 and "step" not in scraped(observer)
        observer(StepReport(1, 1, True, 1.0, {"sft/epoch": 0.5, "validation/cross_entropy": 1.0}))
        observer(StepReport(2, 2, True, 1.0, {"sft/epoch": 1.0}))
        assert (scraped(observer)["validation_cross_entropy"], scraped(observer)["evaluated_step"]) == (1, 1)


def test_health_says_how_far_the_run_is() -> None:
    """As JSON, before the first step too; nothing else is served."""
    with PrometheusObserver() as observer:
        assert json.loads(fetched(f"{observer.url}/health"))["step"] == 0
        observer(step(7))
        health = json.loads(fetched(f"{observer.url}/health"))
        assert (health["status"], health["step"]) == ("running", 7) and health["seconds_since_step"] >= 0
        assert httpx.get(f"{observer.url}/other").status_code == 404


def test_it_listens_on_the_address_that_it_is_given() -> None:
    """The loopback interface unless told otherwise: another address of this machine has that port, too, and all
    addresses together no longer. One of another machine is refused."""
    with PrometheusObserver() as observer:
        port = int(observer.url.rpartition(":")[2])
        with PrometheusObserver(port, "127.0.0.2") as other:
            assert other.url == f"http://127.0.0.2:{port}"
        with pytest.raises(ConfigError, match=r"that port of 0\.0\.0\.0 can not be had"):
            PrometheusObserver(port, "0.0.0.0")  # noqa: S104
    with pytest.raises(ConfigError, match=r"port of 192\.0\.2\.1 can not be had") as raised:
        PrometheusObserver(host="192.0.2.1")
    assert "log.prometheus_host" in raised.value.hint


def test_a_taken_port_is_named() -> None:
    """Before the run begins, with what to do."""
    with PrometheusObserver() as observer:
        port = int(observer.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=str(port)) as raised:
            PrometheusObserver(port)
    assert "0 takes a free one" in raised.value.hint
