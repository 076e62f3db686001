"""Numbers as the dashboard says them: short, and never more than is so."""

from decimal import Decimal

from django.utils.formats import number_format

_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def whole(number: int) -> str:
    return number_format(number, use_l10n=True, force_grouping=True)


def capped(number: int, cap: int) -> str:
    """10,000+ where the count ended at its cap."""
    return f"{whole(cap)}+" if number > cap else whole(number)


def short(number: float) -> str:
    """1,234 as it is; from ten thousand on 12.3k, 4.5M."""
    if number >= 10_000:
        for unit, letter in _UNITS:
            if number >= unit:
                scaled = number / unit
                return f"{scaled:.0f}{letter}" if scaled >= 100 else f"{scaled:.1f}{letter}"
    return whole(round(number))


def money(usd: Decimal | float) -> str:
    """In US dollars: cents from one dollar on, below that two digits that mean something."""
    amount = Decimal(usd)
    if not amount:
        return "$0"
    if amount >= 10_000:
        return f"${short(float(amount))}"
    if amount >= 1:
        return f"${number_format(amount.quantize(Decimal('0.01')), 2, use_l10n=True, force_grouping=True)}"
    digits = min(8, 1 - amount.adjusted())
    return f"${amount:.{digits}f}"


def percent(rate: float | None) -> str:
    """Never rounded to a 100 % that it is not."""
    if rate is None:
        return "–"
    shown = f"{rate:.1%}"
    if shown == "100.0%":
        return "100 %" if rate == 1 else "99.9 %"
    return shown.replace("%", " %")
