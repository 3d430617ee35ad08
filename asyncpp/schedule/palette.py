"""Colours of weight versions, in the terminal and in pictures: Okabe and Ito's, told apart by the colour-blind too.

A forward has a light tint of its version's colour, a backward the colour itself.
"""

from __future__ import annotations

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
NUM_COLOURS = len(_COLOURS)
_TINT = 0.6  # share of white in a forward


def colours(version: int, is_forward: bool) -> tuple[str, str]:
    """Background and text, as #rrggbb. They come round after six versions."""
    red, green, blue = (int(_COLOURS[version % NUM_COLOURS][i : i + 2], 16) for i in (1, 3, 5))
    if is_forward:
        red, green, blue = (round(value + (255 - value) * _TINT) for value in (red, green, blue))
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    return f"#{red:02x}{green:02x}{blue:02x}", "#000000" if luminance > 110 else "#ffffff"
