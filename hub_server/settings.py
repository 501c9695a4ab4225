"""Every setting of a hub: one documented field, one `HUB_…` variable, one key of a TOML file.

    HUB_DATA=/srv/hub HUB_PORT=8080 python -m hub_server serve

A value given on the command line wins over its variable, that over the file that `HUB_CONFIG` names, that over the
default. An unknown key of the file is an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

MIB = 1024 * 1024


class Settings(BaseSettings):
    """The settings of one hub."""

    model_config = SettingsConfigDict(env_prefix="HUB_", extra="forbid")

    data: Path = Field(Path("hub-data"), description="Folder of the database and the blobs.")
    database_url: str | None = Field(None, description="SQLAlchemy URL, as in postgresql+psycopg://user@host/hub.")
    storage: str | None = Field(None, description="URL of the blob store, as in s3://bucket/prefix.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it.")
    workers: int = Field(1, ge=1, description="Server processes.")
    public_url: str | None = Field(None, description="URL that clients see, where a reverse proxy stands in front.")
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
        """Command line, then variables, then the file."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if path := os.environ.get("HUB_CONFIG"):
            sources.append(TomlConfigSettingsSource(settings_cls, Path(path)))
        return tuple(sources)

    @property
    def database(self) -> str:
        """The URL of the database: SQLite in the data folder by default."""
        return self.database_url or f"sqlite:///{(self.data / 'hub.sqlite3').absolute()}"


def load_settings(**given: Any) -> Settings:
    """The settings, with what was given on the command line (None is not given)."""
    return Settings(**{name: value for name, value in given.items() if value is not None})
