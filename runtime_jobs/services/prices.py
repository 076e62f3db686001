"""What a call cost: as the provider says, else by the price list of genai-prices (extra `prices`) where that knows the model.

NULL is "unknown", never 0. The list lies in the package; nothing is fetched.
"""

from decimal import Decimal
from functools import lru_cache
from typing import Any

from runtime_jobs.model_call import CallReport, TokenUsage

_EXACT = Decimal("0.00000001")  # what the column holds


def cost_usd(provider: str, model: str, report: CallReport) -> Decimal | None:
    """US dollars of one call to `model` (as requested, or as the provider names what it used)."""
    stated = report.usage_raw.get("cost")  # OpenRouter's, in dollars
    if isinstance(stated, int | float) and not isinstance(stated, bool) and stated >= 0:
        return Decimal(str(stated)).quantize(_EXACT)
    if report.usage.input_tokens is None or report.usage.output_tokens is None:
        return None
    for name in dict.fromkeys((report.model_used, model)):
        if name and _is_listed(provider, name):
            return _listed(provider, name, report.usage)
    return None


def _listed(provider: str, model: str, usage: TokenUsage) -> Decimal | None:
    genai_prices = _library()
    tokens = genai_prices.Usage(
        input_tokens=usage.input_tokens, cache_read_tokens=usage.cached_input_tokens, output_tokens=usage.output_tokens
    )
    try:
        price: Decimal = genai_prices.calc_price(tokens, model_ref=model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None
    return price.quantize(_EXACT)


@lru_cache(maxsize=1_000)
def _is_listed(provider: str, model: str) -> bool:
    genai_prices = _library()
    if genai_prices is None:
        return False
    try:
        genai_prices.calc_price(genai_prices.Usage(input_tokens=1, output_tokens=1), model_ref=model, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices
