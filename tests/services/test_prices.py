"""Costs as the customer will see them on a bill: right to the last digit, or unknown."""

from decimal import Decimal

import pytest

from runtime_jobs.model_call import CallReport, TokenUsage
from runtime_jobs.services import prices


def cost(provider, model, usage, **report):
    return prices.cost_usd(provider, model, CallReport(usage=usage, **report))


def test_two_token_conventions_give_the_same_column_and_the_right_cost():
    """provider_calls 16: input includes what was cached, whoever reports it."""
    openai = TokenUsage(input_tokens=11, output_tokens=7, cached_input_tokens=5)
    # gpt-4o: 2.50, 1.25 and 10 dollars a million.
    assert cost("openai", "gpt-4o", openai) == Decimal("0.00009125")
    anthropic = TokenUsage(input_tokens=12_307, output_tokens=550, cached_input_tokens=12_304)
    # claude-sonnet-4-5: 3, 0.30 and 15 dollars a million.
    assert cost("anthropic", "claude-sonnet-4-5", anthropic) == Decimal("0.01195020")


def test_the_providers_own_figure_wins():
    assert cost("openrouter", "x/y", TokenUsage(1, 1), usage_raw={"cost": 0.0012}) == Decimal("0.00120000")


@pytest.mark.parametrize(
    ("provider", "model", "usage"),
    [
        ("simulator", "simulator-1", TokenUsage(10, 10)),
        ("openai", "no-such-model", TokenUsage(10, 10)),
        ("openai", "gpt-4o", TokenUsage(None, 10)),
        ("openai", "gpt-4o", TokenUsage(10, None)),
    ],
)
def test_what_is_not_known_is_unknown_and_not_nothing(provider, model, usage):
    assert cost(provider, model, usage) is None


def test_without_the_price_list_a_call_is_still_logged_with_an_unknown_cost(monkeypatch):
    monkeypatch.setattr(prices, "_library", lambda: None)
    prices._is_listed.cache_clear()
    try:
        assert cost("openai", "gpt-4o", TokenUsage(10, 10)) is None
    finally:
        prices._is_listed.cache_clear()
