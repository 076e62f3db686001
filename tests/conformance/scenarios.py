"""What a scenario is, how a set of them is run, and the table that comes of it."""

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class Skip(Exception):
    """The scenario cannot be tried here; the text says what it would need."""


@dataclass(frozen=True)
class Scenario:
    """`number` is that of the protocol's list of scenarios, or a word where it has none."""

    number: str
    title: str
    check: Callable[[Any], None]


@dataclass(frozen=True)
class Outcome:
    scenario: Scenario
    verdict: str  # pass, FAIL or skip
    seconds: float
    why: str = ""


class Suite:
    """Scenarios in the order in which they are declared."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def scenario(self, number: str, title: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        def declare(check: Callable[[Any], None]) -> Callable[[Any], None]:
            self.scenarios.append(Scenario(number, title, check))
            return check

        return declare

    def run(self, context: Callable[[], Any], *, only: Sequence[str] = (), at_once: int = 1) -> list[Outcome]:
        """Each scenario with a context of its own, `at_once` of them at a time. A context is a context manager.

        What fails is tried once more at the end, with nothing beside it, and that counts: leases of seconds do not survive a machine that
        stands still, a fault that no scenario asks for. `why` then tells of the first try as well.
        """
        chosen = [one for one in self.scenarios if not only or one.number in only]
        if at_once == 1:  # in this thread, which may have connections
            outcomes = [_run(one, context) for one in chosen]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                outcomes = list(pool.map(lambda one: _run(one, context), chosen))
        return [_run_again(one, context) if one.verdict == "FAIL" else one for one in outcomes]


def _run(scenario: Scenario, context: Callable[[], Any]) -> Outcome:
    began = time.monotonic()
    verdict, why = "pass", ""
    try:
        with context() as given:
            scenario.check(given)
    except Skip as skip:
        verdict, why = "skip", str(skip)
    except Exception as error:  # one scenario that breaks must not hide the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        verdict, why = "FAIL", f"{type(error).__name__}: {error or place.line}"
    return Outcome(scenario, verdict, time.monotonic() - began, why)


def _run_again(first: Outcome, context: Callable[[], Any]) -> Outcome:
    second = _run(first.scenario, context)
    return replace(second, why=f"{second.why or 'at the second try'}; before: {first.why}")


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a scenario, and a sum."""
    lines = [
        f"{one.scenario.number:<6} {one.verdict:<5} {one.seconds:6.1f} s  {one.scenario.title}" + (f"\n       {one.why}" if one.why else "")
        for one in outcomes
    ]
    counts = {verdict: sum(one.verdict == verdict for one in outcomes) for verdict in ("pass", "FAIL", "skip")}
    return "\n".join([*lines, f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['skip']} skipped"])


def wait_for(condition: Callable[[], T | Literal[False] | None], seconds: float, what: str) -> T:
    """The condition's first true value; AssertionError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return value


def check(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)
