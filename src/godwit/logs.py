"""Log lines: JSON to stderr, one a line. Prompts and outputs are never in them."""

import logging
import sys

import structlog

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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
