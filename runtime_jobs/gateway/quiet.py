"""Keeping the HTTP client's own logging quiet."""

import logging

# INFO holds the whole URL, DEBUG every header of the answer; some answers echo a part of the key. A filter on each logger, not
# only a level on their parent: a level is what someone raises in a hurry.
_LOGGERS = (
    "httpx2",
    "httpcore2",
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "httpcore2.proxy",
    "httpcore2.socks",
)


def _from_warning_on(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def quiet_client_loggers() -> None:
    """Let nothing below WARNING out of the client's loggers, whatever their level. May be called any number of times."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.addFilter(_from_warning_on)
