"""Candidates from a model: its samples or its beam, for any function that scores the next word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from softq.distributions import Candidates
from softq.errors import SamplerError, ScoreError, ShapeError
from softq.samplers.words import check_count
from softq.sentences import MISSING, References, as_references

Method = Literal["ancestral", "top-p", "beam"]
NextWord = Callable[[Any, Tensor, Tensor], Tensor]


class FromModel:
    """Sentences that a model itself would say: the way to train a language model toward a reward on its own outputs.

    Args:
        next_word: ``next_word(inputs, examples[N], prefixes[N, t]) -> [N, V]`` scores (logits or log-probabilities) of the next word after
            each prefix, where prefix n belongs to example ``examples[n]`` of ``inputs``. Prefixes begin with ``start`` where it is given.
        size: candidates per example.
        end: number of the end mark. It closes a sentence and is not part of it.
        max_length: sentences are cut there.
        start: number put before every prefix; without it, the first prefixes have no word at all.
        method: ``"ancestral"``: independent draws from the model; ``"top-p"``: from the smallest set of words that holds ``top_p`` of the
            probability, renormalised; ``"beam"``: the best that a beam of ``size`` finds, best first. A beam is not drawn: it has no
            proposal, so importance weights cannot be had, and where it finds fewer sentences the rest is missing.
        top_p: for ``"top-p"``.
        temperature: divides the scores before drawing; for draws.
        references: whether to put the references of the example in front (`Candidates.with_references`).
        pad: what stands behind the end of a sentence.

    ``log_model`` holds log-probabilities under the model itself, ``log_proposal`` those under what was drawn from.

    >>> def coin(inputs, examples, prefixes):  # word 0 ends; 1 and 2 go on
    ...     return torch.tensor([0.5, 0.25, 0.25]).log().expand(len(prefixes), 3)
    >>> cands = FromModel(coin, size=4, end=0, max_length=5)([[1, 2]], generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(cands.log_proposal.exp(), 0.5 * 0.25 ** cands.lengths.double())
    True

    """

    def __init__(
        self,
        next_word: NextWord,
        *,
        size: int,
        end: int,
        max_length: int,
        start: int | None = None,
        method: Method = "ancestral",
        top_p: float | None = None,
        temperature: float = 1.0,
        references: bool = False,
        pad: int = 0,
    ) -> None:
        if method not in get_args(Method):
            raise SamplerError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
        if (method == "top-p") != (top_p is not None):
            raise SamplerError('top_p goes with method="top-p", and only with it')
        if top_p is not None and not 0.0 < top_p <= 1.0:
            raise SamplerError(f"top_p must lie in (0, 1], got {top_p}")
        if not 0.0 < temperature < math.inf or (method == "beam" and temperature != 1.0):
            raise SamplerError(f"temperature must be positive, and 1 for a beam, got {temperature} for {method!r}")
        self.next_word = next_word
        self.size = check_count("size", size)
        self.end = end
        self.max_length = check_count("max_length", max_length)
        self.start = start
        self.method = method
        self.top_p = top_p
        self.temperature = temperature
        self.references = references
        self.pad = pad

    @torch.no_grad()
    def __call__(self, refs: References, inputs: Any = None, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, L]`` for the examples of ``refs``; ``inputs`` is handed to the model as it is."""
        found = as_references(refs)
        search = self._beam if self.method == "beam" else self._draw
        made = search(len(found.tokens), inputs, found.tokens.device, generator)
        return made.with_references(found) if self.references else made

    def _scores(self, inputs: Any, examples: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of the next word, ``[N, V]`` in float64."""
        prefixes = words
        if self.start is not None:
            prefixes = torch.cat([words.new_full((len(words), 1), self.start), words], 1)
        scores = self.next_word(inputs, examples, prefixes)
        if scores.dim() != 2 or len(scores) != len(prefixes) or not 0 <= self.end < scores.shape[1]:
            raise ShapeError(
                f"next_word must return scores [{len(prefixes)}, V] with the end mark {self.end} among the words, got {list(scores.shape)}"
            )
        log_probs = scores.double().log_softmax(1)
        bad = torch.isnan(log_probs).any(1)  # NaN or +inf among the scores, or nothing but -inf
        if bool(bad.any()):
            raise ScoreError(
                f"next_word must return numbers, of which some are above -inf and none is +inf or NaN, for example {int(examples[bad][0])}"
            )
        return log_probs

    def _proposal(self, log_probs: Tensor) -> Tensor:
        """What words are drawn from, ``[N, V]``."""
        tempered = (log_probs / self.temperature).log_softmax(1)
        if self.top_p is None:
            return tempered
        ranked, order = tempered.sort(dim=1, descending=True)
        before = ranked.exp().cumsum(1) - ranked.exp()
        dropped = torch.zeros_like(order, dtype=torch.bool).scatter(1, order, before >= self.top_p)
        return tempered.masked_fill(dropped, -math.inf).log_softmax(1)

    def _draw(self, batch: int, inputs: Any, device: torch.device, generator: torch.Generator | None) -> Candidates:
        count = batch * self.size
        examples = torch.arange(batch, device=device).repeat_interleave(self.size)
        words = torch.full((count, self.max_length), self.pad, dtype=torch.int64, device=device)
        lengths = torch.full((count,), self.max_length, dtype=torch.int64, device=device)
        log_model = torch.zeros(count, dtype=torch.float64, device=device)
        log_proposal = torch.zeros_like(log_model)
        open_rows = torch.arange(count, device=device)
        for t in range(self.max_length):  # what is open at the end is cut there
            if not len(open_rows):
                break
            log_probs = self._scores(inputs, examples[open_rows], words[open_rows, :t])
            proposal = self._proposal(log_probs)
            # The largest of log-probability plus Gumbel noise is a draw; the noise comes from wherever the generator lives.
            noise = torch.rand(proposal.shape, dtype=torch.float64, generator=generator, device=generator.device if generator else None)
            word = (proposal - (-noise.to(device).log()).log()).argmax(1, keepdim=True)
            log_model[open_rows] += log_probs.gather(1, word).squeeze(1)
            log_proposal[open_rows] += proposal.gather(1, word).squeeze(1)
            ends = word.squeeze(1) == self.end
            lengths[open_rows[ends]] = t
            open_rows, word = open_rows[~ends], word[~ends]
            words[open_rows, t] = word.squeeze(1)
        width = int(lengths.max()) if count else 0
        shape = (batch, self.size)
        tokens = words[:, :width].reshape(*shape, width)
        return Candidates(tokens, lengths.reshape(shape), log_proposal.reshape(shape), log_model=log_model.reshape(shape))

    def _beam(self, batch: int, inputs: Any, device: torch.device, generator: torch.Generator | None) -> Candidates:
        """The most probable sentences that a beam finds; finished ones stay in it and are beaten only by better ones."""
        del generator  # nothing is drawn
        words = torch.full((batch, self.size, self.max_length), self.pad, dtype=torch.int64, device=device)
        lengths = torch.full((batch, self.size), MISSING, dtype=torch.int64, device=device)
        scores = torch.full((batch, self.size), -math.inf, dtype=torch.float64, device=device)
        finished = torch.zeros((batch, self.size), dtype=torch.bool, device=device)
        scores[:, 0], lengths[:, 0] = 0.0, 0
        for t in range(self.max_length):
            grows = (scores > -math.inf) & ~finished
            if not bool(grows.any()):
                break
            examples, places = grows.nonzero(as_tuple=True)
            log_probs = self._scores(inputs, examples, words[examples, places, :t])
            vocab = log_probs.shape[1]
            # What each place of the beam may become: itself if it is finished (column V), or a word longer, or ended.
            options = torch.full((batch, self.size, vocab + 1), -math.inf, dtype=torch.float64, device=device)
            options[examples, places, :vocab] = scores[examples, places].unsqueeze(1) + log_probs
            options[..., vocab] = scores.masked_fill(~finished, -math.inf)
            scores, chosen = options.flatten(1).topk(self.size, dim=1)
            parent, word = chosen // (vocab + 1), chosen % (vocab + 1)
            words = words.gather(1, parent.unsqueeze(2).expand_as(words))
            lengths = lengths.gather(1, parent)
            finished = (word == vocab) | (word == self.end)
            longer = ~finished & (scores > -math.inf)
            words[..., t] = torch.where(longer, word, words[..., t])
            lengths = torch.where(longer, t + 1, lengths).masked_fill(scores == -math.inf, MISSING)
        width = max(int(lengths.max()), 0) if lengths.numel() else 0
        return Candidates(words[..., :width].contiguous(), lengths, log_model=scores)
