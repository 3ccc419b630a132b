"""Spanning trees on the GPU: the best one, and samples; one program for each tree.

The algorithms are those of the CPU (see `arborescence`, and `cpu.sample`), which go from word to
word. A program treats all heads of a word at once, and holds what it knows of words and groups of
words as vectors in registers, from which an entry is taken out by a masked sum.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.operator import Expected
from softq.kernels.random import seed_tensor
from softq.kernels.semiring import LOW
from softq.kernels.spanning.cpu import PATIENCE
from softq.kernels.spanning.gpu import infer
from softq.kernels.trees import possible_arcs
from softq.kernels.triton_math import SIZES, choose_mass, load_seed, pick


def mode(lengths: Tensor, arcs: Tensor, multiroot: bool) -> Tensor:
    """Best trees, heads ``[B,n]``, as on the CPU."""
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(batch, nodes - 1, dtype=torch.int64, device=arcs.device)
    if heads.numel() == 0:
        return heads
    # Of the arcs into a group from each head: the best one's weight, and the word that it ends in.
    weights = torch.empty(batch, 2, 2 * nodes, nodes, dtype=torch.float64, device=arcs.device)
    words = torch.empty(batch, 2 * nodes, nodes, dtype=torch.int32, device=arcs.device)
    block = triton.next_power_of_2(nodes)
    _best_trees[(batch,)](
        arcs, *arcs.stride(), lengths, heads, weights, words, nodes,
        MULTIROOT=multiroot, NODES=block, GROUPS=2 * block, num_warps=_warps(block),
    )  # fmt: skip
    return heads


def sample(
    lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None
) -> Tensor:
    """``count`` exact samples per sentence, heads ``[count,B,n]``.

    They are those of the CPU for the same seeds, but where a walk is given up.
    """
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(count, batch, nodes - 1, dtype=torch.int64, device=arcs.device)
    if heads.numel() == 0:
        return heads
    given = arcs.double().masked_fill(~possible_arcs(lengths, nodes), -math.inf)
    peak = given.amax(1, keepdim=True)
    mass = (given - peak.masked_fill(peak == -math.inf, 0.0)).exp()
    exact = ~((mass < LOW) & (given > -math.inf)).flatten(1).any(1)  # a lost one is never drawn
    under_root = mass if multiroot else infer(given, lengths, Expected(), multiroot, True)[1]
    seeds = seed_tensor(count * batch, generator).reshape(count, batch).to(arcs.device)
    given_up = torch.empty_like(seeds)
    block = triton.next_power_of_2(nodes)
    _walk[(batch, count)](
        mass.mT.contiguous(), under_root, exact, lengths, seeds, heads, given_up, nodes, batch,
        PATIENCE=PATIENCE, MULTIROOT=multiroot, NODES=block, num_warps=_warps(block),
    )  # fmt: skip
    row, b = (given_up >= 0).nonzero(as_tuple=True)
    if len(b):
        top = given_up[row, b]
        heads[row, b] = _draw_heads_in_turn(given[b], lengths[b], top, multiroot, generator)
    return heads


def _warps(block: int) -> int:
    return min(max(block // 64, 1), 8)


def _draw_heads_in_turn(
    given: Tensor,
    lengths: Tensor,
    top: Tensor,
    multiroot: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Heads ``[B,n]``, each from its marginal given those before it and the word under the root."""
    node = torch.arange(given.shape[1], device=given.device)
    if not multiroot:
        other = (node.unsqueeze(-1) == 0) & (node != top.reshape(-1, 1, 1))
        given = given.masked_fill(other, -math.inf)
    device = given.device if generator is None else generator.device
    heads = []
    for d in range(1, len(node)):
        mass = infer(given, lengths, Expected(), multiroot, True)[1][:, :, d]
        mass = mass + ((node == 0) & (lengths < d).unsqueeze(-1))  # 0 on padding
        head = torch.multinomial(mass.to(device), 1, generator=generator).to(given.device)
        heads.append(head)
        others = (node == d) & (node.unsqueeze(-1) != head.unsqueeze(-1))
        given = given.masked_fill(others, -math.inf)
    return torch.cat(heads, 1)


@triton.jit
def _entry(values, at, index):
    """Take an entry out of a vector."""
    return tl.sum(tl.where(at == index, values, 0), axis=0)


@triton.jit
def _best_head(penalty, score, node, outside):
    """Find where the best arc into a group from outside comes from."""
    possible = outside & (penalty == tl.max(tl.where(outside, penalty, float("-inf")), axis=0))
    best = tl.max(tl.where(possible, score, float("-inf")), axis=0)
    return pick(possible & (score == best), node, 0)


@triton.jit(do_not_specialize=SIZES)
def _best_trees(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    heads,
    weights,
    words,
    nodes,
    MULTIROOT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    GROUPS: tl.constexpr,  # noqa: N803
):
    """Contract cycles, and write the best heads; `weights` and `words` are scratch."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    node = tl.arange(0, NODES)
    at = tl.arange(0, GROUPS)
    real = node <= n
    arc = arcs + b * arc_batch + node * arc_head
    scores = weights + b * 4 * nodes * nodes + node  # a row for each group, by head
    penalties = scores + 2 * nodes * nodes
    words += b * 2 * nodes * nodes
    group = node  # the outermost group that holds each word; the root stays alone
    source = tl.zeros([GROUPS], dtype=tl.int32)  # the best head of a group
    parent = tl.zeros([GROUPS], dtype=tl.int32)  # the group that a group has become part of
    reached_by = tl.zeros([GROUPS], dtype=tl.int32)
    for d in range(1, n + 1):
        score = tl.load(arc + d * arc_dependent, mask=real, other=float("-inf")).to(tl.float64)
        barred = score == float("-inf")
        score = tl.where(barred, 0.0, score)
        cost = tl.where(node == 0, 0.0 if MULTIROOT else -1.0, 0.0)
        penalty = tl.where(barred, -1.0 - n, cost).to(tl.float64)
        tl.store(scores + d * nodes, score, mask=real)
        tl.store(penalties + d * nodes, penalty, mask=real)
        tl.store(words + d * nodes + node, tl.zeros([NODES], dtype=tl.int32) + d, mask=real)
        best = _best_head(penalty, score, node, real & (node != d))
        source = tl.where(at == d, best, source)
    tl.debug_barrier()  # what follows reads what other threads wrote

    groups = n + 1
    for start in range(1, n + 1):  # walk up until the root or a group known to reach it
        g = _entry(group, node, start)
        while (g > 0) & (_entry(reached_by, at, g) == 0):
            reached_by = tl.where(at == g, start, reached_by)
            g = _entry(group, node, _entry(source, at, g))
            if (g > 0) & (_entry(reached_by, at, g) == start):  # a cycle
                best_penalty = tl.full([NODES], float("-inf"), dtype=tl.float64)
                best_score = tl.zeros([NODES], dtype=tl.float64)
                best_word = tl.zeros([NODES], dtype=tl.int32)
                while g != groups:
                    # An arc into the cycle replaces the cycle's own arc at the same group.
                    own = _entry(source, at, g)
                    parent = tl.where(at == g, groups, parent)
                    group = tl.where(group == g, groups, group)
                    penalty = tl.load(penalties + g * nodes, mask=real, other=0.0)
                    score = tl.load(scores + g * nodes, mask=real, other=0.0)
                    word = tl.load(words + g * nodes + node, mask=real, other=0)
                    penalty -= _entry(penalty, node, own)
                    score -= _entry(score, node, own)
                    higher = (penalty > best_penalty) | (
                        (penalty == best_penalty) & (score > best_score)
                    )
                    best_penalty = tl.where(higher, penalty, best_penalty)
                    best_score = tl.where(higher, score, best_score)
                    best_word = tl.where(higher, word, best_word)
                    g = _entry(group, node, own)
                tl.store(scores + g * nodes, best_score, mask=real)
                tl.store(penalties + g * nodes, best_penalty, mask=real)
                tl.store(words + g * nodes + node, best_word, mask=real)
                tl.debug_barrier()
                best = _best_head(best_penalty, best_score, node, real & (group != g))
                source = tl.where(at == g, best, source)
                groups += 1

    settled = tl.zeros([GROUPS], dtype=tl.int32)
    head = tl.zeros([NODES], dtype=tl.int32)
    for back in range(1, groups):  # outermost first
        g = groups - back
        if _entry(settled, at, g) == 0:
            own = _entry(source, at, g)
            d = tl.load(words + g * nodes + own)
            head = tl.where(node == d, own, head)
            while d != g:  # the groups inside g that hold the word are entered by this arc as well
                settled = tl.where(at == d, 1, settled)
                d = _entry(parent, at, d)
    tl.store(heads + b * (nodes - 1) + node - 1, head, mask=real & (node > 0))


@triton.jit(do_not_specialize=SIZES)
def _walk(
    mass,
    under_root,
    exact,
    lengths,
    seeds,
    heads,
    given_up,
    nodes,
    batch,
    PATIENCE: tl.constexpr,  # noqa: N803
    MULTIROOT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
):
    """Sample a tree by loop-erased random walks, of arc weights ``mass [B, dependent, head]``.

    A walk that takes too long is given up: then `given_up` is the word under the root, else -1.
    """
    b = tl.program_id(0).to(tl.int64)
    tree = tl.program_id(1).to(tl.int64) * batch + b
    n = tl.load(lengths + b).to(tl.int32)
    low: tl.constexpr = 0 if MULTIROOT else 1
    node = tl.arange(0, NODES)
    is_head = (node >= low) & (node <= n)
    mass += b * nodes * nodes + node
    random = load_seed(seeds + tree)
    steps_left = tl.where(tl.load(exact + b), PATIENCE * n * n, 0)
    done = tl.where(node == 0, 1, 0)
    head = tl.zeros([NODES], dtype=tl.int32)
    top = 0  # the word under the root; 0 if there may be several
    if not MULTIROOT:
        expected = tl.load(under_root + b * nodes * nodes + node, mask=is_head, other=0.0)
        top, random = choose_mass(expected, node, 1, random)
        done = tl.where(node == top, 1, done)  # its head is 0 as it stands
    for start in range(1, n + 1):
        word = start
        while (steps_left > 0) & (_entry(done, node, word) == 0):
            row = tl.load(mass + word * nodes, mask=is_head, other=0.0)
            chosen, random = choose_mass(row, node, low, random)
            head = tl.where(node == word, chosen, head)
            word = chosen
            steps_left -= 1
        word = start
        while (steps_left > 0) & (_entry(done, node, word) == 0):
            done = tl.where(node == word, 1, done)
            word = _entry(head, node, word)
    tl.store(heads + tree * (nodes - 1) + node - 1, head, mask=(node > 0) & (node <= n))
    tl.store(given_up + tree, tl.where((steps_left == 0) & (n > 0), top, -1))
