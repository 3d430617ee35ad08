"""Colours of weight versions, in the terminal and in pictures: Okabe and Ito's, told apart by the colour-blind too.

A forward has a light tint of its version's colour, a backward the colour itself.
"""

from __future__ import annotations

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
NUM_COLOURS = len(_COLOURS)
_TINT = 0.6  # share of white in a forward
_MIDDLE_LUMINANCE = 0.179  # black and white text stand out equally from it (WCAG 2 contrast)


def colours(version: int, is_forward: bool) -> tuple[str, str]:
    """Background and text, as #rrggbb. They come round after six versions."""
    colour = _COLOURS[version % NUM_COLOURS]
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    if is_forward:
        red, green, blue = (value + (1 - value) * _TINT for value in (red, green, blue))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    background = "#" + "".join(f"{round(value * 255):02x}" for value in (red, green, blue))
    return background, "#000000" if luminance > _MIDDLE_LUMINANCE else "#ffffff"
