"""How much to draw: less where kernels run as plain Python, to be seen by the coverage count."""

import numba

COMPILED = not numba.config.DISABLE_JIT


def draws(count):
    """``count``, or a small part of it without compiled kernels; statistical tests hold for any."""
    return count if COMPILED else max(count // 50, 20)
