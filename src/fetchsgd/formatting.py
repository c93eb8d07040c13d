"""Numbers as people read them: bytes, times, seconds, ratios and metrics.

The command line, the federation's demo and the report all use these; nothing here needs torch.
"""

from __future__ import annotations

UNKNOWN = "–"


def format_ratio(ratio: float | None) -> str:
    """A compression, to three digits: 1×, 3.74×, 1,240×."""
    return UNKNOWN if ratio is None else f"{_three_digits(ratio)}×"


def format_bytes(count: float | None) -> str:
    """Bytes in powers of a thousand, to three digits: 999 B, 1.2 kB, 16.2 GB."""
    if count is None:
        return UNKNOWN
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5:  # from there on it would round to 1,000
            return f"{_three_digits(amount)} {unit}"
        amount /= 1000
    return f"{_three_digits(amount)} PB"


def format_duration(seconds: float) -> str:
    """For a table: 4.25 s, 10 min, 2 h 05 min."""
    if seconds < 60:
        return f"{_three_digits(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_clock(seconds: float) -> str:
    """For a display that counts: 0:04, 10:12, 2:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_metric(value: float | None, metric: str) -> str:
    """Accuracy in percent, and any other metric to four significant digits."""
    if value is None:
        return UNKNOWN
    return f"{100 * value:.2f} %" if metric == "accuracy" else _four_digits(value)


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs, 1,000 runs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    decimals = 1 if number >= 9.995 else 2
    text = f"{number:.{decimals}f}" if number >= 0.01 or number == 0 else f"{number:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _four_digits(number: float) -> str:
    """Zeros at the end stay, so that the numbers of a column have the same number of digits."""
    if number == 0:
        return "0"
    if 999.95 <= abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:#.4g}"
