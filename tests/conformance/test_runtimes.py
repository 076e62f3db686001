"""The conformance suite over the two runtimes of this repository, and over one that is none."""

import pytest

from tests.conformance import of_runtime
from tests.conformance.__main__ import REFERENCE, main
from tests.conformance.scenarios import Outcome, table
from tests.conformance.stage import TOKEN, leaks, stage
from tests.support import rust


def run(command: str, **more) -> list[Outcome]:
    return of_runtime.suite.run(lambda: stage(command), at_once=6, **more)


def conforms(command: str) -> bool:
    """All of it, with nothing left out."""
    outcomes = run(command)
    print(table(outcomes))
    return all(one.verdict == "pass" for one in outcomes)


def test_the_reference_runtime_conforms():
    assert conforms(REFERENCE)


@pytest.mark.timeout(900)  # the first one builds the crate
@pytest.mark.parametrize("claim", ["auto", "offer"])
def test_the_rust_example_conforms(claim):
    assert conforms(f"{rust.example()} {{base_url}} --token-file {{token_file}} --instance {{instance}} --spool {{spool}} --claim {claim}")


def test_a_program_that_does_nothing_does_not_pass(monkeypatch, capsys):
    monkeypatch.setattr(of_runtime, "SOON", 1.0)
    assert main(["--runtime", "sleep 60", "--only", "S39", "--only", "S42"]) == 1
    printed = capsys.readouterr().out
    assert "S39    FAIL" in printed
    assert "0 passed, 2 failed, 0 skipped" in printed


def test_what_a_runtime_prints_is_searched_for_secrets(monkeypatch):
    monkeypatch.setattr(of_runtime, "SOON", 1.0)
    printing = "sh -c 'echo $RUNTIME_TOKEN | base64; sleep 60'"
    [outcome] = run(printing, only=["S47"])
    assert outcome.verdict == "FAIL"
    assert leaks(TOKEN, []) == ["the service token"]
    assert leaks("sk-canary%2Bkey%2Fof%3Dthe%3Fprovider%260123456789", []) == ["the API key"]
    assert leaks("all is well, abc", ["abc"]) == ["lockToken 0"]


@pytest.mark.parametrize("arguments", [[], ["--runtime", "true", "--base-url", "http://127.0.0.1:9"], ["--base-url", "http://127.0.0.1:9"]])
def test_what_to_test_has_to_be_said(arguments, monkeypatch, capsys):
    monkeypatch.delenv("RUNTIME_TOKEN", raising=False)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error:" in capsys.readouterr().err
