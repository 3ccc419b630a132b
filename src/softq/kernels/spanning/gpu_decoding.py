"""Spanning trees on the GPU: the best one, and samples; one program for each tree.

The algorithms are those of the CPU (see `arborescence`, and `cpu.sample`), which go from word to
word. A program treats all heads of a word at once, and holds what it knows of words and groups of
words as vectors in registers, from which an entry is taken out by a masked sum.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.jit import as_array
from softq.kernels.operator import Expected
from softq.kernels.spanning import cpu
from softq.kernels.spanning.gpu import infer
from softq.kernels.triton_math import SIZES, choose, choose_mass, load_seed, pick


def decode(
    found: Tensor, seeds: Tensor, lengths: Tensor, arcs: Tensor, multiroot: bool, sample: bool
) -> None:
    """See `softq.kernels.operator.Decoder`."""
    batch, nodes = arcs.shape[:2]
    block = triton.next_power_of_2(nodes)
    options = {"MULTIROOT": multiroot, "NODES": block, "num_warps": min(max(block // 64, 1), 8)}
    if not sample:
        # Of the arcs into a group from each head: the best one's weight, and the word it ends in.
        weights = torch.empty(batch, 2, 2 * nodes, nodes, dtype=torch.float64, device=arcs.device)
        words = torch.empty(batch, 2 * nodes, nodes, dtype=torch.int32, device=arcs.device)
        _best_trees[(batch,)](
            arcs, *arcs.stride(), lengths, found, weights, words, nodes, GROUPS=2 * block, **options
        )
        return
    under_root = arcs if multiroot else infer(arcs.double(), lengths, Expected(), False, True)[1]
    given_up = torch.empty_like(seeds)
    _walk[(seeds.numel(),)](
        arcs, *arcs.stride(), under_root, lengths, seeds, found, given_up, nodes, batch,
        PATIENCE=cpu.PATIENCE, **options,
    )  # fmt: skip
    # With the word under the root as it was drawn, the others follow on the CPU, which is rare.
    row, b = (given_up >= 0).nonzero(as_tuple=True)
    node = torch.arange(nodes, device=arcs.device)
    other = (node.unsqueeze(-1) == 0) & (node != given_up[row, b].reshape(-1, 1, 1))
    given = arcs[b].masked_fill(other & (not multiroot), -math.inf)
    again = as_array(~seeds[row, b]).view(np.uint64).reshape(1, -1)
    found[row, b] = cpu.sample_by(again, lengths[b], given, multiroot, 0)[0]


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
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    under_root,
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
    """Sample a tree by loop-erased random walks.

    If they take too long they are given up: then `given_up` is the word under the root, else -1.
    """
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    n = tl.load(lengths + b).to(tl.int32)
    low: tl.constexpr = 0 if MULTIROOT else 1
    node = tl.arange(0, NODES)
    is_head = (node >= low) & (node <= n)
    arc = arcs + b * arc_batch + node * arc_head
    random = load_seed(seeds + tree)
    steps_left = PATIENCE * n * n
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
            possible = is_head & (node != word)
            score = tl.load(arc + word * arc_dependent, mask=possible, other=float("-inf"))
            chosen, random = choose(score.to(tl.float64), node, low, random, True)
            head = tl.where(node == word, chosen, head)
            word = chosen
            steps_left -= 1
        word = start
        while (steps_left > 0) & (_entry(done, node, word) == 0):
            done = tl.where(node == word, 1, done)
            word = _entry(head, node, word)
    tl.store(heads + tree * (nodes - 1) + node - 1, head, mask=(node > 0) & (node <= n))
    tl.store(given_up + tree, tl.where((steps_left == 0) & (n > 0), top, -1))
