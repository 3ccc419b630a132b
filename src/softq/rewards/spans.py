"""The F1 of named entities in one sentence, which does not split over its labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.formats.tags import Scheme, spans
from softq.numerics import length_mask
from softq.rewards.base import Reward, both_present
from softq.sentences import Sentences, check_tokens


class SpanF1(Reward):
    """F1 of the entities of a label sequence, 2 · right / (predicted + true), in 0..1.

    Entities are read as `softq.formats.tags.spans` reads them; one is right if type, first and last
    word are. Where neither side has any, the reward is 1. It needs candidates, such as the k best
    sequences of a model (`softq.samplers.k_best`).

    Args:
        labels: the tag that each label id stands for, such as ``["O", "B-PER", "I-PER"]``.
        scheme: of the tags.

    >>> reward = SpanF1(["O", "B-PER", "I-PER"])
    >>> candidates, lengths = Sentences.pack([[[1, 2, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 0, 1]]])
    >>> reward(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)

    One step of a chain toward it:

    >>> import softq
    >>> emissions = torch.zeros(1, 4, 3, requires_grad=True)
    >>> gold = torch.tensor([[1, 2, 0, 1]])
    >>> p = softq.Chain(emissions, torch.zeros(3, 3))
    >>> cands, refs = softq.samplers.k_best(p, gold, size=16)
    >>> target = softq.sqdml(cands, refs, tau=0.2, reward=reward)
    >>> loss = softq.cross_entropy(target, p).sum()
    >>> loss.backward()
    >>> q = softq.Chain(emissions.detach() - 0.1 * emissions.grad, p.transitions)
    >>> bool(q.log_prob(gold) > p.log_prob(gold))
    True

    """

    bound = 1.0

    def __init__(self, labels: Sequence[str], scheme: Scheme = "bio") -> None:
        self.labels, self.scheme = tuple(labels), scheme
        kinds = [{span.kind for span in spans([label], scheme)} for label in self.labels]
        names = sorted(set().union(*kinds))
        count = len(self.labels)
        # The type of a label, from 1; 0 for O, and for what stands beside the ends of a sentence.
        self._kind = torch.tensor(
            [1 + names.index(min(kind)) if kind else 0 for kind in kinds] + [0]
        )
        # Whether the second label continues the entity of the first.
        self._continues = torch.zeros(count + 1, count + 1, dtype=torch.bool)
        for i, before in enumerate(self.labels):
            for j, after in enumerate(self.labels):
                whole = [(span.start, span.end) for span in spans([before, after], scheme)]
                self._continues[i, j] = (0, 2) in whole

    @property
    def signature(self) -> str:
        digest = hashlib.sha256("\0".join(self.labels).encode()).hexdigest()[:8]
        return f"span-f1:{self.scheme}:{len(self.labels)}:{digest}"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        width = max(candidates.tokens.shape[2], references.tokens.shape[2])
        found = self._entities("candidates", candidates, width).unsqueeze(2)  # [B, S, 1, width]
        true = self._entities("references", references, width).unsqueeze(1)  # [B, 1, R, width]
        right = ((found == true) & (true > 0)).sum(-1).double()
        total = (found > 0).sum(-1) + (true > 0).sum(-1)
        f1 = torch.where(total > 0, 2.0 * right / total.clamp(min=1), 1.0)
        return f1.masked_fill(~both_present(candidates, references), 0.0)

    def _entities(self, name: str, sentences: Sentences, width: int) -> Tensor:
        """A number of type and end where an entity begins, and 0 elsewhere, ``[…, width]``."""
        check_tokens(name, sentences, len(self.labels))
        tokens, lengths = sentences
        outside = len(self.labels)
        real = length_mask(lengths, tokens.shape[-1])
        tokens = tokens.long().masked_fill(~real, outside)
        tokens = pad(tokens, (1, 1 + width - tokens.shape[-1]), value=outside)
        kind = self._kind.to(tokens.device)[tokens[..., 1:-1]]
        joined = self._continues.to(tokens.device)[tokens[..., :-1], tokens[..., 1:]]
        begins = (kind > 0) & ~joined[..., :-1]
        place = torch.arange(width, device=tokens.device)
        last = torch.where((kind > 0) & ~joined[..., 1:], place, width)
        end = last.flip(-1).cummin(-1).values.flip(-1) if width else last
        return torch.where(begins, kind * (width + 1) + end, 0)
