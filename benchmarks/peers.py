"""Adapters for the packages softq is measured against; each is optional and named when missing."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[], Tensor]

warnings.filterwarnings("ignore", module="torchcrf|torch_struct|supar")


@functools.cache
def load_supar() -> types.ModuleType:
    """SuPar's structures alone.

    The package's own start-up imports a stack of data tools that they do not use.
    """
    spec = importlib.util.find_spec("supar")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("supar is not installed")
    root = spec.submodule_search_locations[0]
    for name, path in (("supar", root), ("supar.utils", f"{root}/utils")):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    return importlib.import_module("supar.structs")


def chain_losses(emissions: Tensor, transitions: Tensor, labels: Tensor) -> dict[str, Loss]:
    """Negative log-likelihood of a linear chain, mean over the batch, by every peer that can be imported."""
    batch, size, count = emissions.shape
    losses: dict[str, Loss] = {}
    lengths = torch.full((batch,), size, device=emissions.device)
    try:
        from torchcrf import CRF

        crf = CRF(count, batch_first=True).to(emissions.device)
        crf.transitions = torch.nn.Parameter(transitions.detach().clone())
        for border in (crf.start_transitions, crf.end_transitions):
            torch.nn.init.zeros_(border)

        def pytorch_crf() -> Tensor:
            crf.zero_grad()
            return -crf(emissions, labels, reduction="mean")

        losses["pytorch-crf"] = pytorch_crf
    except ImportError:
        pass
    try:
        import torch_struct

        parts = torch_struct.LinearChainCRF.struct.to_parts(labels, count, lengths=lengths).to(
            emissions
        )

        def struct() -> Tensor:
            # its potentials are [B, n-1, to, from]; the first position's scores join the first step
            scores = transitions.T.expand(batch, size - 1, count, count) + emissions[
                :, 1:
            ].unsqueeze(-1)
            scores = torch.cat(
                [scores[:, :1] + emissions[:, 0].reshape(batch, 1, 1, count), scores[:, 1:]], 1
            )
            dist = torch_struct.LinearChainCRF(scores, lengths=lengths)
            return -dist.log_prob(parts).mean()

        losses["torch-struct"] = struct
    except ImportError:
        pass
    try:
        structs = load_supar()

        def supar() -> Tensor:
            # it keeps one more label for the borders
            dist = structs.LinearChainCRF(
                emissions, torch.nn.functional.pad(transitions, (0, 1, 0, 1)), lengths
            )
            return -dist.log_prob(labels).mean()

        losses["SuPar"] = supar
    except ImportError:
        pass
    return losses


def segment_losses(segments: Tensor, transitions: Tensor, values: Tensor) -> dict[str, Loss]:
    """Negative log-likelihood of labelled segments, mean over the batch.

    By the recursion in plain torch, with autograd through its loop over tokens, and by
    torch-struct where its charts of (lengths · labels)² entries are small enough: its step takes
    most of a minute for 40 tokens, 9 labels and 8 lengths.
    """
    from softq.kernels.segments.reference import log_partition

    batch, size, longest, labels = segments.shape
    inside = torch.full((batch,), size, device=segments.device)
    begins = values > 0
    gold = torch.nn.functional.one_hot(values.clamp(min=labels) - labels, longest * labels)
    gold = (gold * begins.unsqueeze(-1)).reshape(segments.shape).to(segments)
    pairs = transitions.new_zeros(labels, labels)
    for row in values:
        found = row[row > 0] % labels
        pairs.index_put_((found[:-1], found[1:]), pairs.new_ones(()), accumulate=True)

    def plain() -> Tensor:
        log_z = log_partition(inside, segments, transitions.unsqueeze(0)).mean()
        return log_z - ((gold * segments).sum() + (pairs * transitions).sum()) / batch

    losses: dict[str, Loss] = {"plain torch": plain}
    if batch * size * (longest * labels) ** 3 > 1e8:
        return losses
    try:
        import torch_struct

        # Its potentials are [B, begin, length, next label, label], with lengths from 0 and one more
        # label behind the last token, which has to be 0 here.
        lengths = inside + 1
        sequence = torch.nn.functional.pad(torch.where(begins, values % labels, -1), (0, 1))
        parts = torch_struct.SemiMarkovCRF.struct.to_parts(
            sequence, (labels, longest + 1), lengths=lengths
        ).to(segments)
        ends = torch.arange(size).unsqueeze(1) + torch.arange(1, longest + 1)
        outside, final = ((ends > size)[..., None, None], (ends == size)[..., None, None])
        after = -1e9 * (torch.arange(labels) > 0).to(segments)[:, None].expand(labels, labels)

        def struct() -> Tensor:
            scores = segments.unsqueeze(-2) + torch.where(final, after, transitions.T)
            scores = torch.nn.functional.pad(
                scores.masked_fill(outside, -1e9), (0, 0, 0, 0, 1, 0), value=-1e9
            )
            return -torch_struct.SemiMarkovCRF(scores, lengths=lengths).log_prob(parts).mean()

        losses["torch-struct"] = struct
    except ImportError:
        pass
    return losses


def tree_losses(arcs: Tensor, heads: Tensor, *, projective: bool) -> dict[str, Loss]:
    """Negative log-likelihood of dependency trees, mean over the batch."""
    batch, count = arcs.shape[:2]
    size = count - 1
    losses: dict[str, Loss] = {}
    lengths = torch.full((batch,), size, device=arcs.device)
    with_root = torch.nn.functional.pad(heads, (1, 0))
    try:
        structs = load_supar()
        kind = structs.DependencyCRF if projective else structs.MatrixTree

        def supar() -> Tensor:
            # its scores are [B, dependent, head]
            return -kind(arcs.transpose(1, 2), lengths).log_prob(with_root).mean()

        losses["SuPar"] = supar
    except ImportError:
        pass
    try:
        import torch_struct

        parts = torch_struct.deptree.DepTree.to_parts(heads.cpu(), lengths=lengths.cpu()).to(arcs)

        def struct() -> Tensor:
            # root scores stand on the diagonal
            scores = arcs[:, 1:, 1:] * (1 - torch.eye(size, device=arcs.device)) + torch.diag_embed(
                arcs[:, 0, 1:]
            )
            return (
                -torch_struct.DependencyCRF(scores, lengths=lengths, multiroot=False)
                .log_prob(parts)
                .mean()
            )

        if projective:  # its non-projective class has no log_prob
            losses["torch-struct"] = struct
    except ImportError:
        pass
    return losses
