"""The suite judges by the second try of what failed at the first, and says so."""

import contextlib

import pytest

from tests.conformance.scenarios import Suite, check, table


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_fails_is_tried_once_more(at_once):
    suite, tries = Suite(), []

    @suite.scenario("A", "fails always")
    def always(on):
        tries.append("A")
        check(False, f"try {tries.count('A')}")

    @suite.scenario("B", "fails at first")
    def at_first(on):
        tries.append("B")
        check(tries.count("B") > 1, "stalled")

    @suite.scenario("C", "passes")
    def never(on):
        tries.append("C")

    outcomes = suite.run(contextlib.nullcontext, at_once=at_once)
    assert [(one.scenario.number, one.verdict, one.why) for one in outcomes] == [
        ("A", "FAIL", "AssertionError: try 2; before: AssertionError: try 1"),
        ("B", "pass", "at the second try; before: AssertionError: stalled"),
        ("C", "pass", ""),
    ]
    assert sorted(tries) == ["A", "A", "B", "B", "C"]
    assert table(outcomes).endswith("2 passed, 1 failed, 0 skipped")
