"""Pieces of Triton kernels that several of them share: sums and products of numbers or logarithms.

As on the CPU (`softq.kernels.semiring`), a recursion runs on numbers and, for examples whose
numbers leave the range in which products exist, once more on logarithms; ``LOG`` says which. With
``BEST`` in its place it runs on logarithms, and the largest term of a sum stands for the sum.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

PLAIN, LOG, BEST = 0, 1, 2

# Arguments that take any value: without this a kernel would be compiled again for 1 of them, and
# for multiples of 16.
SIZES = ("batch", "size", "longest", "labels", "nodes", "refs", "stretch")


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
    return tl.maximum(a, b) if LOG == 2 else _log_add(a, b) if LOG else a + b


@triton.jit
def _log_add(a, b):
    high = tl.maximum(a, b)
    top = finite(high)
    more = top + tl.log(1.0 + tl.exp(tl.minimum(a, b) - top))
    return tl.where(high == float("-inf"), high, more)


@triton.jit
def total(x, AXIS: tl.constexpr, LOG: tl.constexpr):  # noqa: N803
    """Sum a tile over an axis."""
    return tl.max(x, axis=AXIS) if LOG == 2 else log_sum(x, AXIS) if LOG else tl.sum(x, axis=AXIS)


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


@triton.jit
def next_random(state):
    """Advance a state of 64 bits; returns it and a number in [0, 1), the CPU's (`random`)."""
    state += 0x9E3779B97F4A7C15
    value = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    value = value ^ (value >> 31)
    return state, (value >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def load_seed(seeds):
    """Load the state that a sample begins with."""
    return tl.load(seeds).to(tl.uint64, bitcast=True)


@triton.jit
def pick(possible, at, first):
    """Find the least choice that is possible; the first one where none is, as with NaN."""
    found = tl.min(tl.where(possible, at, 2147483647), axis=0)
    return tl.where(found == 2147483647, first, found)


@triton.jit
def choose(log_weight, at, first, state, SAMPLE: tl.constexpr):  # noqa: N803
    """Choose the best of the choices ``at``, or one with probability ∝ exp(log_weight).

    Returns it and the state of the random numbers.
    """
    top = tl.max(log_weight, axis=0)
    if SAMPLE:
        found, state = choose_mass(tl.exp(log_weight - finite(top)), at, first, state)
    else:
        found = pick(log_weight == top, at, first)
    return found, state


@triton.jit
def choose_mass(mass, at, first, state):
    """Choose one of ``at`` with probability in proportion to its mass."""
    reached = tl.cumsum(mass, axis=0)
    state, share = next_random(state)
    # rounding may leave the threshold above the last sum: keep the last that is possible
    last = tl.max(tl.where(mass > 0.0, at, first), axis=0)
    beyond = (reached > share * tl.max(reached, axis=0)) & (mass > 0.0)
    return pick(beyond | (at == last), at, first), state
