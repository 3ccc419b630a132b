"""Candidates from similar inputs: the references of images whose features are nearest."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.checks import check_count
from softq.errors import DataError, DtypeError, SamplerError, ShapeError
from softq.neural.examples import Examples
from softq.neural.recorded_steps import matrix_precision
from softq.spaces import Candidates

_SCORES = 1 << 25  # cosines that are held at a time, whatever the number of vectors
_NOTHING = 1e-12  # a vector shorter than this has no direction: its cosine with any is 0


def nearest(vectors: Tensor, count: int, *, device: torch.device | str | None = None) -> Tensor:
    """The ``count`` other vectors with the highest cosine for each of ``vectors [N, D]``, best first, int64 ``[N, count]`` on the CPU.

    Every pair is compared, a block of rows at a time: N² · D operations, and beside the vectors themselves memory for one block of
    cosines only. Cosines are in float32, or in float64 where the vectors are; of equal ones any comes first.

    Args:
        vectors: floats, of 16 bits or more.
        count: neighbours of each; -1 stands where there are fewer.
        device: where to compute, by default where the vectors are.

    >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]])
    >>> nearest(vectors, 2).tolist()
    [[1, 2], [0, 2], [1, 0]]

    """
    check_count("count", count, SamplerError)
    if vectors.dim() != 2:
        raise ShapeError(f"vectors must have shape [N, D], got {list(vectors.shape)}")
    if not vectors.is_floating_point():
        raise DtypeError(f"vectors must hold floating-point numbers, got {vectors.dtype}")
    total = len(vectors)
    units = _directions(vectors.detach().to(vectors.device if device is None else device))
    found = torch.full((total, count), -1)
    rows = max(1, _SCORES // max(total, 1))
    with matrix_precision("float32"):
        for begin in range(0, total, rows):
            block = slice(begin, begin + rows)
            cosines = units[block] @ units.T  # [rows, N]
            cosines.diagonal(begin).fill_(-torch.inf)  # none is its own neighbour
            best = cosines.topk(min(count, total), 1)
            found[block, :total] = best.indices.masked_fill(best.values == -torch.inf, -1).cpu()
    return found


def _directions(vectors: Tensor) -> Tensor:
    """Vectors of length one, float32 or float64."""
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    if not bool(norms.isfinite().all()):
        row = int((~norms.isfinite()).nonzero()[0, 0])
        if bool(vectors[row].isfinite().all()):
            raise DataError(
                f"the features of row {row + 1} of {len(vectors)} are too large, up to"
                f" {float(vectors[row].abs().max()):g}: their length is infinite in"
                f" {str(vectors.dtype).removeprefix('torch.')}; divide the features of all images"
                " by one number"
            )
        raise DataError(
            f"vectors must be finite to have neighbours, vector {row} has length"
            f" {float(norms[row]):g}"
        )
    return vectors / norms.clamp(min=_NOTHING)


class NeighbourReferences:
    """Samples candidates from the references of similar inputs.

    Sentences that people wrote about something alike.

    They are candidates for SQDML (eq. 15) and RAML (eq. 4) beside the references of the input
    itself (`Candidates.with_references`); the reward decides which of them suit it.

    Args:
        examples: whose references are sampled.
        neighbours: for each input, examples that are near, int64 ``[N, K]`` as from `nearest`; -1:
            none. The inputs need not be the examples: with one input for each caption of an image,
            the examples may be the images.

    >>> examples = Examples([[5], [6], [7]], [[[8]], [[9, 4], [4]], [[3]]])
    >>> near = NeighbourReferences(examples, torch.tensor([[1], [0], [1]]))
    >>> cands = near(torch.tensor([1, 2]), 2, torch.Generator().manual_seed(0))
    >>> [sorted(several) for several in cands.sentences.unpack()]
    [[[8]], [[4], [9, 4]]]

    """

    def __init__(self, examples: Examples, neighbours: Tensor) -> None:
        if neighbours.dim() != 2 or neighbours.dtype != torch.int64:
            raise ShapeError(
                f"neighbours must be an int64 tensor [N, K], got {neighbours.dtype}"
                f" {list(neighbours.shape)}"
            )
        bad = ((neighbours < -1) | (neighbours >= len(examples))).nonzero().tolist()
        if bad:
            row, column = bad[0]
            raise DataError(
                f"neighbours must be indices of examples, 0..{len(examples) - 1}, or -1, got"
                f" {int(neighbours[row, column])} for input {row}"
            )
        self._references, self._neighbours = examples.references, neighbours.cpu().numpy()
        self._counts = np.append(examples.counts, 0)  # the last, which -1 finds, has no references
        self._first = np.cumsum(self._counts) - self._counts

    def __call__(
        self, index: Tensor, size: int, generator: torch.Generator | None = None
    ) -> Candidates:
        """Candidates ``[B, size, L]`` of inputs ``index [B]``, sampled without replacement.

        Missing where there are fewer references.
        """
        check_count("size", size, SamplerError)
        near = self._neighbours[index.numpy()]  # [B, K]
        counts = self._counts[near]
        places = np.arange(int(counts.max(initial=0)))
        there = torch.from_numpy(places < counts[..., None]).flatten(1)  # [B, K · R]
        rows = torch.from_numpy(self._first[near][..., None] + places).flatten(1)
        # the highest of random numbers are a sample without replacement
        rank = torch.rand(there.shape, dtype=torch.float64, generator=generator)
        rank, chosen = rank.masked_fill(~there, -1.0).topk(min(size, there.shape[1]), 1)
        sampled = rows.gather(1, chosen).masked_fill(rank < 0, -1)
        sampled = pad(sampled, (0, size - rank.shape[1]), value=-1)
        tokens, lengths = self._references.take(sampled.numpy().reshape(-1))
        shape = (*sampled.shape, tokens.shape[1])
        return Candidates(tokens.view(shape), lengths.view(sampled.shape))
