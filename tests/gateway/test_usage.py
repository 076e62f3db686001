import pytest

from runtime_jobs.gateway.anthropic import AnthropicMessages
from runtime_jobs.gateway.openai_compatible import OpenAiCompatible
from runtime_jobs.gateway.usage import numbers_only, tokens
from runtime_jobs.model_call import TokenUsage
from tests.gateway.conftest import a_target


def openai_usage(usage, provider="openai"):
    return OpenAiCompatible().usage(a_target("https://x.test", provider=provider), usage)


def anthropic_usage(usage):
    return AnthropicMessages().usage(a_target("https://x.test", provider="anthropic"), usage)


def test_both_conventions_give_the_same_meaning():
    """Scenario 16: input includes what was cached, whoever reports it."""
    assert anthropic_usage(
        {"input_tokens": 3, "cache_creation_input_tokens": 12304, "cache_read_input_tokens": 0, "output_tokens": 550}
    ) == TokenUsage(12307, 550, 0, None)
    assert anthropic_usage({"input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 5}) == TokenUsage(103, 5, 100)
    assert openai_usage(
        {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 5}}
    ) == TokenUsage(11, 7, 5)


def test_reasoning_inside_the_completion_is_not_added_twice():
    usage = {"prompt_tokens": 10, "completion_tokens": 60, "total_tokens": 70, "completion_tokens_details": {"reasoning_tokens": 50}}
    assert openai_usage(usage) == TokenUsage(10, 60, None, 50)


def test_reasoning_that_gemini_counts_only_in_the_total_is_output():
    assert openai_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 45}, "gemini") == TokenUsage(10, 35, None, 30)
    assert openai_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, "gemini") == TokenUsage(10, 5)


def test_deepseek_names_its_cache_otherwise():
    assert openai_usage({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 8}, "deepseek").cached_input_tokens == 8


def test_what_is_not_reported_is_none_and_never_zero():
    assert openai_usage({}) == anthropic_usage({}) == TokenUsage()
    assert openai_usage({"prompt_tokens": 0}).input_tokens == 0


@pytest.mark.parametrize("value", ["11", -3, True, None, 1.5, float("nan"), float("inf"), 10**12, 10**400, [], {}])
def test_a_value_that_is_no_sensible_number_is_none(value):
    assert tokens({"n": value}, "n") is None


def test_only_the_numbers_of_a_usage_are_kept():
    usage = {
        "prompt_tokens": 11,
        "cost": 0.5,
        "details": {"cached": 5, "note": "secret", "deep": {"deeper": {"n": 1}}},
        "text": "secret",
        "flag": True,
        "huge": 10**400,
        "odd name with secret": 1,
    }
    assert numbers_only(usage) == {"prompt_tokens": 11, "cost": 0.5, "details": {"cached": 5}}
    assert numbers_only("x") == {}
    assert len(numbers_only({f"n{i}": i for i in range(1000)})) == 64
