"""The log: one JSON object a line on stderr, or text on a terminal.

`configure` is called once a process. What libraries log through `logging` (uvicorn's start and errors, SQLAlchemy)
comes out in the same form.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import orjson
import structlog

from hub_server.settings import Settings

_TOKEN = re.compile(r"envhub_[A-Za-z0-9]+")
_SECRET = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(@)")


def masked(text: str) -> str:
    """The text without tokens, and without passwords in URLs."""
    if "envhub_" in text:
        text = _TOKEN.sub("envhub_…", text)
    return _SECRET.sub(r"\1…\2", text) if "@" in text else text


def configure(settings: Settings) -> None:
    """Set the form and the level of the log."""
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    common: list[Any] = [
        structlog.stdlib.add_log_level if as_text else structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if not as_text else _unchanged,
        _mask,
    ]
    if as_text:
        render: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        structlog.configure(
            processors=[*common, render],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.WriteLoggerFactory(sys.stderr),
            cache_logger_on_first_use=True,
        )
    else:
        structlog.configure(
            processors=[*common, structlog.processors.JSONRenderer(serializer=_as_json)],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
            cache_logger_on_first_use=True,
        )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    # Libraries say at `info` what only their authors need; uvicorn's requests are logged by the middleware.
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("uvicorn.access").disabled = True


def _as_json(event: dict[str, Any], **_: Any) -> bytes:
    return orjson.dumps(event, default=str)


def _unchanged(_logger: Any, _name: str, event: Any) -> Any:
    return event


def _mask(_logger: Any, _name: str, event: Any) -> Any:
    """No token and no password is ever logged, wherever it stood."""
    for key, value in event.items():
        if isinstance(value, str) and ("envhub_" in value or "@" in value):
            event[key] = masked(value)
    return event


class _ToStructlog(logging.Handler):
    """Hands what libraries log to the hub's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        write = getattr(log, record.levelname.lower(), log.error)
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
