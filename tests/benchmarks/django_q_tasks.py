"""What django-q2 executes."""

from tests.benchmarks.app import work


def noop() -> None:
    pass


def stamp(key: str) -> None:
    work.stamp(key)
