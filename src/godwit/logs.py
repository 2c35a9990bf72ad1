"""Log lines: JSON to stderr, one a line. Prompts and outputs are never in them."""

import contextlib
import logging
import sys

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from godwit.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")


def configure_logs(level: str) -> None:
    """Write log lines of `level` and above; ConfigError for an unknown level."""
    if level not in LEVELS:
        raise ConfigError(f"GODWIT_LOG: {level!r} is no level; allowed: {', '.join(LEVELS)}")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: Lines(sys.stderr),
    )
    logging.basicConfig(handlers=[LibraryLog()])


class Lines(structlog.PrintLogger):
    """Writes log lines. A full disk, or a reader that has left, must not stop what is logged."""

    def msg(self, message: str) -> None:
        """Write one line, or lose it."""
        with contextlib.suppress(OSError):
            super().msg(message)

    debug = info = warning = error = critical = msg


class LibraryLog(logging.Handler):
    """What libraries warn of, as log lines like ours. What is no HTTP is not quoted: it may be a key."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        log = structlog.get_logger(record.name).bind(logger=record.name)
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.info(record.getMessage(), reason=type(error).__name__)
        else:
            log.log(record.levelno, record.getMessage(), exc_info=error)
