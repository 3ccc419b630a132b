"""Pieces of Triton kernels that several of them share: sums and products of numbers or logarithms.

As on the CPU (`softq.kernels.semiring`), a recursion runs on numbers and, for examples whose
numbers leave the range in which products exist, once more on logarithms; ``LOG`` says which.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# Arguments that take any value: without this a kernel would be compiled again for 1 of them, and
# for multiples of 16.
SIZES = ("batch", "size", "labels", "nodes", "refs", "stretch")


@triton.jit
def finite(peak):
    """Find what to subtract before exp: the largest entry, or 0 where every entry is -inf."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def log(total):
    """Take the logarithm with log 0 = -inf, also where log 0 is an error."""
    return tl.where(total > 0.0, tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def log_sum(x, AXIS: tl.constexpr):  # noqa: N803
    """Compute logsumexp over an axis of a tile."""
    top = finite(tl.max(x, axis=AXIS))
    return log(tl.sum(tl.exp(x - tl.expand_dims(top, AXIS)), axis=AXIS)) + top


@triton.jit
def times(a, b, LOG: tl.constexpr):  # noqa: N803
    """Compute a · b."""
    return a + b if LOG else a * b


@triton.jit
def plus(a, b, LOG: tl.constexpr):  # noqa: N803
    """Compute a + b."""
    return _log_add(a, b) if LOG else a + b


@triton.jit
def _log_add(a, b):
    high = tl.maximum(a, b)
    top = finite(high)
    more = top + tl.log(1.0 + tl.exp(tl.minimum(a, b) - top))
    return tl.where(high == float("-inf"), high, more)


@triton.jit
def total(x, AXIS: tl.constexpr, LOG: tl.constexpr):  # noqa: N803
    """Sum a tile over an axis."""
    return log_sum(x, AXIS) if LOG else tl.sum(x, axis=AXIS)


@triton.jit
def number(a, LOG: tl.constexpr):  # noqa: N803
    """Find the number that ``a`` stands for."""
    return tl.exp(a) if LOG else a


@triton.jit
def strange(x):
    """1 for a number so small or large that a product with others might not be representable."""
    return ((x != 0.0) & ((x < 1.0e-100) | (x > 1.0e100))).to(tl.int32)


@triton.jit
def share_of(mass, score):
    """Compute mass · score in float64, and 0 without mass, whatever the score."""
    return mass.to(tl.float64) * tl.where(mass != 0.0, score, 0.0).to(tl.float64)


@triton.jit
def reference_weight(weights, b, refs, r, WEIGHTED: tl.constexpr):  # noqa: N803
    """Find the weight of reference r of example b; equal ones where none are given."""
    given = weights + b * refs + r
    return tl.load(given).to(tl.float64) if WEIGHTED else 1.0 / refs.to(tl.float64)


@triton.jit
def take_heads(
    b,
    n,
    node,
    arc,
    arc_head,
    arc_dependent,
    heads,
    weights,
    refs,
    found,
    nodes,
    WEIGHTED: tl.constexpr,  # noqa: N803
):
    """Sum the scores of an example's references by weight, and take them from its gradient."""
    taken = tl.zeros([1], dtype=tl.float64)
    is_word = (node > 0) & (node <= n)
    for r in range(refs):
        tl.debug_barrier()  # what follows reads what other threads wrote
        weight = reference_weight(weights, b, refs, r, WEIGHTED)
        head = tl.load(heads + (b * refs + r) * (nodes - 1) + node - 1, mask=is_word, other=0)
        score = tl.load(arc + head * arc_head + node * arc_dependent, mask=is_word, other=0.0)
        taken += tl.sum(share_of(tl.where(is_word, weight, 0.0), score), axis=0)
        place = found + head * nodes + node
        tl.store(place, tl.load(place, mask=is_word, other=0.0) - weight, mask=is_word)
    return tl.sum(taken, axis=0)
