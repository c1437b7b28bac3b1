"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from ragbias.display import shown
from ragbias.errors import ArgumentError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
MOST = 10**18


def size_of(name: str, given: str | int) -> int:
    """Bytes of ``"4GB"``, ``"512 MiB"`` or a number.

    Raises:
        ArgumentError: it is no amount, or not above zero.
    """
    match = AMOUNT.fullmatch(given) if isinstance(given, str) else None
    if match and match[2].upper() in UNITS:
        size = int(min(float(match[1]) * UNITS[match[2].upper()], 2 * MOST))  # of very many digits a float is infinite
    elif isinstance(given, int) and not isinstance(given, bool):
        size = given
    else:
        raise ArgumentError(f"{name}={shown(given)}; expected a number of bytes, or text such as '500MB' or '4GiB'")
    if not 1 <= size <= MOST:
        raise ArgumentError(f"{name}={shown(given)}; expected more than zero bytes, and at most {MOST:,}")
    return size


def size_text(size: float) -> str:
    """An amount of bytes to read: ``"1.5 MB"``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1000
    return f"{size:,.3g} TB"
