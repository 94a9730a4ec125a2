"""Numbers of claims as text with their units: 1.175 x, 4.3 %, 23.0 cycles."""

from typing import Literal

Unit = Literal["x", "%", "% more", "cycles"]
"""A ratio, a share, a ratio of two times (printed as the percentage by which the first is longer), or cycles."""


def measured(value: float, unit: Unit) -> str:
    """A measured number, a ratio with four significant digits: 1.175 x, 1,793 x, 4.3 %, 23.0 cycles."""
    return f"{_rounded(value, unit)} {_symbol(unit)}"


def between(low: float, high: float, unit: Unit) -> str:
    """An interval of measured numbers: 1.165 to 1.185 x."""
    return f"{_rounded(low, unit)} to {measured(high, unit)}"


def stated(value: float, unit: Unit) -> str:
    """A number of `claims.toml` with all its digits: 1.241 x, 1,000 x, 8.2 %."""
    return f"{_in_unit(value, unit):,g} {_symbol(unit)}"


def _rounded(value: float, unit: Unit) -> str:
    number = _in_unit(value, unit)
    decimals = max(4 - len(str(int(number))), 0) if unit == "x" else 1
    return f"{number:,.{decimals}f}"


def _in_unit(value: float, unit: Unit) -> float:
    if unit == "% more":
        return 100 * (value - 1)
    return 100 * value if unit == "%" else value


def _symbol(unit: Unit) -> str:
    return "%" if unit == "% more" else unit
