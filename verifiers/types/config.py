"""Settings that cross a boundary: which endpoint to call, and one resolved evaluation.

These are the only validated (pydantic) records among the types, because their values come from flags, files and
environment variables. Unknown keys are errors. Resolution of the values and their order of precedence is the job of
`verifiers.evals.config`; a client is built from a `ClientConfig` by `verifiers.clients.client.as_client`.

    config = ClientConfig(api_base_url="http://localhost:8000/v1")
    config.is_loopback     # True: no key is needed
"""

from __future__ import annotations

import math
import os
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from verifiers.scopes import Limit

ClientType = Literal[
    "openai_chat_completions",
    "openai_chat_completions_token",
    "openai_completions",
    "openai_responses",
    "anthropic_messages",
    "renderer",
    "nemorl_chat_completions",
]
"""The dialect of an endpoint. The names are those that published configurations use."""

OnRewardError = Literal["unscored", "zero", "raise"]
"""What a raising reward function does to its rollout: no reward, reward 0, or the end of the run."""

PROTOCOL_HOME = "https://api.openai.com/v1"
"""Where the OpenAI protocol is at home. `OPENAI_BASE_URL` replaces it, as in every client of that protocol."""


def default_base_url() -> str:
    """The base URL used when nothing names one: `OPENAI_BASE_URL`, otherwise the protocol's home."""
    return os.environ.get("OPENAI_BASE_URL") or PROTOCOL_HOME


def is_loopback_url(url: str) -> bool:
    """Whether `url` points at this machine, by name or by address."""
    host = (urlsplit(url).hostname or "").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


class Price(BaseModel):
    """US dollars for a million tokens. `cached_input` is the price of input that the provider had cached, that of
    other input unless given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """US dollars for one call; `cached_tokens` of the input tokens were cached."""
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = input_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached_price + output_tokens * self.output) / 1e6


class ClientConfig(BaseModel):
    """How to reach a model endpoint.

    Times are seconds. The key itself is never stored, only the name of the environment variable that holds it.
    `endpoint_configs` are replicas, used in turn; a replica inherits every value that it does not set.
    `extra_headers_from_state` maps a header name to the state key whose value is sent with each request.
    `price` is what the model costs, for limits and figures; an endpoint that reports costs itself needs none.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    client_type: ClientType = "openai_chat_completions"
    api_key_var: str = "OPENAI_API_KEY"
    api_base_url: str = Field(default_factory=default_base_url)
    endpoint_configs: list[ClientConfig] = Field(default_factory=list)
    timeout: float = Field(default=3600.0, gt=0)
    connect_timeout: float = Field(default=5.0, gt=0)
    max_connections: int = Field(default=28_000, ge=1)
    max_keepalive_connections: int = Field(default=28_000, ge=0)
    max_retries: int = Field(default=10, ge=0)
    extra_headers: dict[str, str] = Field(default_factory=dict)
    extra_headers_from_state: dict[str, str] = Field(
        default_factory=lambda: {"X-Session-ID": "trajectory_id"}
    )
    price: Price | None = None

    @field_validator("api_base_url")
    @classmethod
    def _base_url_is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) URL, such as http://localhost:8000/v1")
        return url.rstrip("/")

    @field_validator("endpoint_configs")
    @classmethod
    def _replicas_are_flat(cls, replicas: list[ClientConfig]) -> list[ClientConfig]:
        if any(replica.endpoint_configs for replica in replicas):
            raise ValueError("a replica can not have replicas of its own")
        return replicas

    @property
    def is_loopback(self) -> bool:
        """Whether every endpoint is on this machine; such endpoints need no key."""
        return all(is_loopback_url(config.api_base_url) for config in self.expanded())

    def api_key(self) -> str | None:
        """The key from the environment, or None if the variable is unset or empty."""
        return os.environ.get(self.api_key_var) or None

    def expanded(self) -> list[ClientConfig]:
        """The replicas, each complete by itself; a configuration without replicas is its only one."""
        if not self.endpoint_configs:
            return [self]
        shared = self.model_dump(exclude={"endpoint_configs"}, exclude_unset=True)
        return [
            ClientConfig(**{**shared, **replica.model_dump(exclude_unset=True)})
            for replica in self.endpoint_configs
        ]

    def missing_key_vars(self) -> list[str]:
        """The variables of remote endpoints that hold no key, each once."""
        missing = [
            config.api_key_var
            for config in self.expanded()
            if not is_loopback_url(config.api_base_url) and config.api_key() is None
        ]
        return list(dict.fromkeys(missing))


class EndpointConfig(BaseModel):
    """One row of the endpoint registry: a model behind a URL. Rows with the same id are replicas."""

    model_config = ConfigDict(extra="forbid")

    model: str
    base_url: str
    api_key_var: str = "OPENAI_API_KEY"
    api_client_type: ClientType | None = None
    extra_headers: dict[str, str] = Field(default_factory=dict)
    price: Price | None = None


Endpoints = dict[str, list[EndpointConfig]]
"""The registry: endpoint id to its replicas, which all serve one model."""


class HubWheel(BaseModel):
    """A wheel of a hub, on this machine. `url` is its address there, `sha256` its digest, in hexadecimal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    path: str
    url: str
    sha256: str


class EvalConfig(BaseModel):
    """One resolved evaluation: everything that decides what is played and where it is saved.

    `num_examples` counts tasks (-1 = all), `max_concurrent` rollouts in flight. `seed` None sends no sampling seed.
    `num_workers` processes load the environment and play, "auto" plays in this one; `isolated` gives the environment a
    virtual environment of its own, and at least one worker in it. `ray` is the address of a Ray cluster whose machines
    run the workers, `ray_options` what each gets there (`verifiers.rollouts.workers.cluster.RayOptions`).
    `on_reward_error` None leaves the choice to the environment. `rollout_limit` truncates a rollout that has spent so
    much, `run_limit` keeps further rollouts from being started. `run_path` names the run directory exactly;
    otherwise `verifiers.evals.store.run_directory` makes a new one. `resume_path` continues a saved run and `force`
    overrides its refusal to continue under other settings. With `max_retries` 0 nothing is tried again, requests
    included. `cache` keeps the model's replies, in the folder `cache_dir` if one is given. `hub_wheels` are those of an
    environment of a hub and of what it needs from there, for a virtual environment of its own. `origins` says, for
    people, where each value came from.
    """

    model_config = ConfigDict(extra="forbid")

    env_id: str
    name: str | None = None
    env_args: dict[str, Any] = Field(default_factory=dict)
    env_dir_path: str = "./environments"
    extra_env_kwargs: dict[str, Any] = Field(default_factory=dict)
    endpoint_id: str | None = None
    model: str
    client_config: ClientConfig = Field(default_factory=ClientConfig)
    sampling_args: dict[str, Any] = Field(default_factory=dict)
    num_examples: int = Field(default=5, ge=-1)
    rollouts_per_example: int = Field(default=3, ge=1)
    shuffle: bool = False
    shuffle_seed: int | None = Field(default=None, ge=0)
    max_concurrent: int = Field(default=32, ge=-1)
    num_workers: int | Literal["auto"] = "auto"
    isolated: bool = False
    ray: str | None = None
    ray_options: dict[str, Any] = Field(default_factory=dict)
    independent_scoring: bool = False
    max_retries: int = Field(default=3, ge=0)
    on_reward_error: OnRewardError | None = None
    rollout_limit: Limit | None = None
    run_limit: Limit | None = None
    pass_threshold: float = 0.5
    state_columns: list[str] = Field(default_factory=list)
    save_results: bool = True
    output_dir: str | None = None
    run_path: str | None = None
    resume_path: str | None = None
    force: bool = False
    seed: int | None = None
    cache: bool = False
    cache_dir: str | None = None
    save_to_hf_hub: bool = False
    hf_hub_dataset_name: str = ""
    verbose: bool = False
    hub_wheels: list[HubWheel] = Field(default_factory=list)
    origins: dict[str, str] = Field(default_factory=dict)

    @property
    def workers(self) -> int:
        """How many worker processes were asked for; 0 plays in this process."""
        return max(0, self.num_workers) if isinstance(self.num_workers, int) else 0

    @property
    def model_is_embedded(self) -> bool:
        """Whether the embedded model serves: the endpoint id is then `local` or `local:PATH`."""
        return self.endpoint_id is not None and self.endpoint_id.partition(":")[0] == "local"

    @property
    def label(self) -> str:
        """The name on screen and in the folder: `name` if given, otherwise the environment's id."""
        return self.name or self.env_id

    @field_validator("num_examples")
    @classmethod
    def _some_tasks(cls, number: int) -> int:
        if number == 0:  # v0 played all of them, which is seldom meant and may be dear
            raise ValueError("0 would play nothing; -1 plays all tasks")
        return number

    @field_validator("sampling_args")
    @classmethod
    def _numbers_of_json(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        for name, value in sampling.items():
            if isinstance(value, float) and not math.isfinite(value):  # would be sent as null, that is, not at all
                raise ValueError(f"{name} is {value}, which no endpoint can be sent")
        return sampling

    @field_validator("extra_env_kwargs")
    @classmethod
    def _time_to_play(cls, extra: dict[str, Any]) -> dict[str, Any]:
        seconds = extra.get("timeout_seconds")
        if isinstance(seconds, int | float) and not seconds > 0:  # NaN, too
            raise ValueError(f"a rollout that may take {seconds} seconds can not be played")
        return extra

    @model_validator(mode="after")
    def _no_retries_are_none_at_all(self) -> EvalConfig:
        if self.max_retries == 0:  # who asks for none wants to see the first failure, not the eleventh
            self.client_config = self.client_config.model_copy(update={"max_retries": 0})
        return self

    @model_validator(mode="after")
    def _shuffling_has_a_seed(self) -> EvalConfig:
        if self.shuffle and self.shuffle_seed is None:
            self.shuffle_seed = 0
        return self
