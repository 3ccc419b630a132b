"""Models of sentences given an input, word by word.

P(y|x) = Π_t P(y_t | y_<t, x) (paper, Appendix D.2.4).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from softq.decode import beam_search, greedy, sample
from softq.errors import ModelError
from softq.formats.vocabulary import END, PAD, START
from softq.kernels.decoder.log_softmax_gather import log_softmax_gather
from softq.numerics import length_mask
from softq.sentences import Sentences
from softq.spaces import Candidates

Inputs: TypeAlias = tuple[Tensor, ...]
"""What models are given: `Sentences`, or vectors ``[B, D]`` alone.

Each part has the inputs as its first dimension.
"""
Memory: TypeAlias = tuple[Tensor, ...]
"""What is kept of encoded inputs; each part has the inputs as its first dimension."""
State: TypeAlias = tuple[Tensor, ...]
"""Of unfinished sentences, K of each input.

Each part has a first dimension of B·K, where row b·K + k is of input b.
"""
Method = Literal["beam", "greedy", "sample"]

_LONGEST = 50  # words of a sentence whose input has no length, unless told


class OutputLayer(nn.Module):
    """From vectors ``[M, D]`` to words.

    A linear layer and a softmax over all words but PAD and START, which are never said.

    Args:
        vocab: number of words V.
        size: D.
        tied: a weight ``[V, D]`` to share, such as that of an embedding; None: one of its own.

    """

    def __init__(self, vocab: int, size: int, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        if tied is not None and tied.shape != (vocab, size):
            raise ModelError(
                f"to tie the output to embeddings they must have the shape {[vocab, size]}, got"
                f" {list(tied.shape)}"
            )
        self.weight = nn.Parameter(torch.empty(vocab, size)) if tied is None else tied
        self.bias = nn.Parameter(torch.empty(vocab))
        self.coarse = False  # on a GPU: factors of products in bfloat16

    def scores(self, vectors: Tensor) -> Tensor:
        """Scores of all words, ``[M, V]``."""
        return torch.addmm(self._possible(), vectors, self.weight.T)

    def log_prob(self, vectors: Tensor, words: Tensor, smoothing: float = 0.0) -> Tensor:
        """Log-probabilities of one word each, ``[M]``.

        See `softq.kernels.decoder.log_softmax_gather.log_softmax_gather`.
        """
        return log_softmax_gather(
            vectors, self.weight, self._possible(), words, smoothing, coarse=self.coarse
        )

    def _possible(self) -> Tensor:
        # PAD and START are the numbers before END
        return torch.cat([self.bias.new_full((END,), -math.inf), self.bias[END:]])


class SequenceModel(nn.Module):
    """What all such models share: log-probabilities of candidates, and decoding.

    An input is encoded once, however many candidates it has. Sentences hold neither START nor END:
    models add them. Subclasses have an `OutputLayer` and define how to encode, to read given
    sentences and to continue unfinished hypotheses.
    """

    output: OutputLayer
    start_token, end_token, pad_token = START, END, PAD

    @property
    def vocab(self) -> int:
        """Number of words of sentences, specials among them."""
        return len(self.output.weight)

    def encode(self, inputs: Inputs) -> Memory:
        """Encode B inputs; of sentences, what stands behind a length never matters."""
        raise NotImplementedError

    def hidden(self, memory: Memory, read: Tensor) -> Tensor:
        """Vectors ``[B, K, T, D]`` from which the word after each of ``read [B, K, T]`` is predicted; the first of these is START."""
        raise NotImplementedError

    def start(self, memory: Memory, copies: int) -> State:
        """``copies`` sentences of each input before their first word."""
        raise NotImplementedError

    def step(self, memory: Memory, state: State, words: Tensor) -> tuple[Tensor, State]:
        """Vectors ``[B·K, D]`` from which the word after ``words [B·K]`` is predicted, and the state after them."""
        raise NotImplementedError

    def log_prob(
        self, inputs: Inputs, candidates: Candidates | Sentences, *, smoothing: float = 0.0
    ) -> Tensor:
        """Log P(y_s|x) of candidates ``[B, K, L]``, ends of sentences included, ``[B, K]``.

        0 for one that is missing.

        ``smoothing`` is that of label smoothing, after which these are no log-probabilities any
        more but minus a loss.
        """
        read, wanted, real = teacher_forcing(candidates.tokens, candidates.lengths)
        vectors = self.hidden(self.encode(inputs), read)
        each = self.output.log_prob(vectors.flatten(0, 2), wanted.flatten(), smoothing)
        return (each.view_as(wanted) * real).sum(2)

    def next_log_probs(self, memory: Memory, state: State, words: Tensor) -> tuple[Tensor, State]:
        """Log-probabilities ``[B·K, V]`` of the next word, which is never PAD or START, and the state after ``words``."""
        vectors, state = self.step(memory, state, words)
        return self.output.scores(vectors).log_softmax(1), state

    @torch.no_grad()
    def generate(
        self,
        inputs: Inputs,
        *,
        method: Method = "beam",
        size: int = 5,
        max_length: int | Tensor | None = None,
        length_penalty: float = 1.0,
        **sampling: Any,
    ) -> Candidates:
        """Sentences for B inputs.

        The best that a beam of ``size`` finds, the greedy one, or ``size`` samples, for which
        ``sampling`` are ``temperature``, ``top_p`` and ``generator`` of `softq.decode.sample`.
        Without ``max_length`` a sentence is at most twice as long as its input and ten words, or
        fifty words where inputs have no length.
        """
        memory = self.encode(inputs)
        if max_length is None:
            max_length = 2 * inputs.lengths + 10 if isinstance(inputs, Sentences) else _LONGEST
        if method == "beam":
            return beam_search(
                self, memory, size=size, max_length=max_length, length_penalty=length_penalty
            )
        if method == "greedy":
            return greedy(self, memory, max_length=max_length)
        if method == "sample":
            return sample(self, memory, size=size, max_length=max_length, **sampling)
        raise ModelError(f"method must be beam, greedy or sample, got {method!r}")


def teacher_forcing(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a model reads, what it should say next, and which of these count, each ``[B, K, L + 1]``, of sentences ``[B, K, L]``.

    >>> inputs, wanted, real = teacher_forcing(torch.tensor([[[7, 8], [9, 0]]]), torch.tensor([[2, 1]]))
    >>> inputs.tolist(), wanted.tolist()  # behind the end anything will do that has a log-probability
    ([[[1, 7, 8], [1, 9, 0]]], [[[7, 8, 2], [9, 2, 2]]])
    """
    words, real = tokens.long(), length_mask(lengths, tokens.shape[-1])
    inputs = nn.functional.pad(words.masked_fill(~real, PAD), (1, 0), value=START)
    wanted = nn.functional.pad(words.masked_fill(~real, END), (0, 1), value=END)
    return inputs, wanted, length_mask(lengths + 1, tokens.shape[-1] + 1)


def uniform_parameters(model: nn.Module, bound: float, seed: int) -> None:
    """Every parameter uniform in ±bound, as in the paper's experiments."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.rand(parameter.shape, generator=generator).mul_(2 * bound).sub_(bound)
            )
