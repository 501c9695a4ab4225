"""Every setting of a hub: one documented field, one flag, one `HUB_…` variable, one key of a TOML file.

    HUB_DATA=/srv/hub HUB_PORT=8080 python -m hub_server serve --workers 4

A flag wins over its variable, that over the file that `--config` or `HUB_CONFIG` names, that over the default. What no
setting is called, and a value that a setting can not have, is a ConfigError that says where it stands.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from verifiers.errors import ConfigError

MIB = 1024 * 1024
PREFIX = "HUB_"
CONFIG = "HUB_CONFIG"


class Settings(BaseSettings):
    """The settings of one hub."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid")

    data: Path = Field(Path("hub-data"), description="Folder of the database, the blobs, and uploads on their way in.")
    database_url: str | None = Field(None, description="SQLAlchemy URL, as in postgresql+psycopg://user@host/hub.")
    storage: str | None = Field(None, description="URL of the blob store, as in s3://bucket/prefix.")
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it.")
    workers: int = Field(1, ge=1, le=256, description="Server processes.")
    public_url: str | None = Field(
        None, pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$",
        description="URL that clients see, where a reverse proxy stands in front.",
    )  # fmt: skip
    upstream_index: str | None = Field(
        None, pattern=r"^https?://[^?#\s]+$",
        description="Simple index to which OWNER/NAME/full/simple/ sends for names that are not the hub's.",
    )  # fmt: skip
    forwarded_allow_ips: str = Field(
        "127.0.0.1", description="Addresses of proxies whose X-Forwarded-For and -Proto are believed; * for all."
    )
    read_only: bool = Field(False, description="Serve, but refuse every change with 503: for upkeep of the storage.")
    shutdown_seconds: int = Field(
        30, ge=0, description="Seconds that requests in flight may still take after the hub was told to stop."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged, and above.")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Form of the log: auto is text on a terminal, JSON lines elsewhere."
    )
    metrics: bool = Field(True, description="Answer GET /metrics, for Prometheus.")
    min_free_space: int = Field(
        1024 * MIB, ge=0, description="Bytes free on the volume of the data folder, below which /readyz answers 503."
    )
    database_connections: int = Field(10, ge=1, description="Connections to the database that each process keeps.")
    max_file_size: int = Field(100 * MIB, ge=1, description="Bytes that one file may have.")
    max_project_size: int = Field(10240 * MIB, ge=1, description="Bytes that all files of a project may have together.")
    strict_record: bool = Field(True, description="Refuse a wheel whose RECORD does not match; else warn on its page.")
    rate_limits: bool = Field(False, description="Limit uploads, new names, yanks and failed logins.")
    inspectors: int = Field(2, ge=1, description="Processes that inspect uploads, for each server process.")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """What was given, then variables. A file's values are put in by `load_settings`."""
        return init_settings, env_settings

    @property
    def database(self) -> str:
        """The URL of the database: SQLite in the data folder by default."""
        return self.database_url or f"sqlite:///{(self.data / 'hub.sqlite3').absolute()}"


def load_settings(config: Path | None = None, **given: Any) -> Settings:
    """The settings, with what was given on the command line (None is not given). ConfigError if one is wrong."""
    flags = {name: value for name, value in given.items() if value is not None}
    path = config or (Path(found) if (found := os.environ.get(CONFIG)) else None)
    written = _read(path) if path is not None else {}
    from_file = {name: value for name, value in written.items() if variable_of(name) not in os.environ}
    try:
        return Settings(**{**from_file, **flags})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        place = flag_of(name) if name in flags else f"{name} in {path}" if name in from_file else variable_of(name)
        reason = first["msg"].replace("Input should", "it should").replace("String should", "it should")
        raise ConfigError(
            f"{place}: {reason}, not {first['input']!r}",
            hint="docs/reference/settings.md has every setting with its meaning and its default.",
        ) from None


def unknown_variables() -> list[str]:
    """A sentence for each `HUB_…` variable that is nearly a setting's: it would be passed over in silence."""
    known = {variable_of(name) for name in Settings.model_fields} | {CONFIG}
    strange = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    near = {name: difflib.get_close_matches(name, known, 1, 0.85) for name in strange}
    return [f"{name} is no setting; is it {found[0]}?" for name, found in near.items() if found]


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _read(path: Path) -> dict[str, Any]:
    """The file's keys and values."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can not read {path}: {error.strerror}", hint=f"--config and {CONFIG} name it.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}", hint="Correct the place that the message names.") from error
    for name in values:
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name.replace("-", "_"), Settings.model_fields, 1)
            hint = f"Is it {near[0]}?" if near else "docs/reference/settings.md has every setting."
            raise ConfigError(f"{path}: there is no setting {name}", hint=hint)
    return values
