"""Reading settings from the environment: a value that cannot be used stops the start with a sentence that says what to set."""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, default).strip()


def flag(name: str, default: bool) -> bool:
    value = text(name).lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    if value:
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
    return default


def number(name: str, default: float, *, least: float, most: float) -> float:
    raw = text(name)
    try:
        value = float(raw) if raw else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not {raw!r}.") from None
    if not least <= value <= most:
        raise ImproperlyConfigured(f"{name} must lie between {least:g} and {most:g}, not {value:g}.")
    return value


def whole(name: str, default: int, *, least: int, most: int) -> int:
    value = number(name, default, least=least, most=most)
    if value != int(value):
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value:g}.")
    return int(value)


def choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, in whatever case it is written."""
    value = text(name) or default
    for one in choices:
        if value.lower() == one.lower():
            return one
    raise ImproperlyConfigured(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")


def words(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """A comma-separated list; empty parts are dropped."""
    raw = os.environ.get(name)
    return list(default) if raw is None else [part.strip() for part in raw.split(",") if part.strip()]


def folder(name: str, default: Path) -> Path:
    return Path(text(name) or default).resolve()
