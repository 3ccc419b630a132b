"""The paper's translator.

A bidirectional LSTM encoder and an LSTM decoder with attention and input feeding (Appendix D.2.4).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from softq.kernels.decoder.attention import decode
from softq.kernels.decoder.reference import Attended, attend, lstm_cell
from softq.neural.modules.sequence import (
    Inputs,
    Memory,
    OutputLayer,
    SequenceModel,
    State,
    uniform_parameters,
)
from softq.numerics import length_mask


class AttentionalTranslator(SequenceModel):
    """P(y|x) by attention over a bidirectional LSTM, with the attentional vector fed to the next step (Luong et al. 2015).

    - Encoder: h_n = [→h_n : ←h_n], of ``layers`` bidirectional LSTM layers.
    - Decoder: ``layers`` LSTM layers; its cells begin as W[→h_N : ←h_1] + b, its states as their tanh.
    - Attention: bilinear, softmax_n(s_t · W_a h_n); s̃_t = tanh(W_s s_t + W_c c_t); P(y_t) = softmax(W s̃_t).
    - Dropout: of embeddings, of s̃, and between layers.

    Time O(T · (N + H + V) H) a candidate, O(N H²) an input, whatever the number of its candidates.

    Args:
        source_vocab: words of inputs.
        target_vocab: words of sentences.
        embedding: size of word vectors.
        hidden: size of states, of each direction of the encoder, and of s̃.
        layers: of encoder and decoder.
        dropout: share of what is dropped in training.
        tie: one weight for the target's embeddings and the output layer.
        init: every parameter begins uniform in ±init.
        seed: of that.

    >>> from softq.sentences import Sentences
    >>> model = AttentionalTranslator(20, 30, embedding=8, hidden=8, seed=1)
    >>> source, candidates = Sentences.pack([[5, 6, 7], [8]]), Sentences.pack([[[4, 5], [6]], [[7, 8, 9]]])
    >>> model.log_prob(source, candidates).shape
    torch.Size([2, 2])

    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        *,
        embedding: int = 256,
        hidden: int = 256,
        layers: int = 1,
        dropout: float = 0.2,
        tie: bool = False,
        init: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.layers, self.size, self.dropout = layers, hidden, dropout
        self.source = nn.Embedding(source_vocab, embedding)
        self.target = nn.Embedding(target_vocab, embedding)
        self.forwards = nn.ModuleList(
            nn.LSTM(2 * hidden if layer else embedding, hidden) for layer in range(layers)
        )
        self.backwards = nn.ModuleList(
            nn.LSTM(2 * hidden if layer else embedding, hidden) for layer in range(layers)
        )
        self.first_cell = nn.Linear(2 * hidden, layers * hidden)
        self.keys = nn.Linear(2 * hidden, hidden, bias=False)  # W_a
        self.values = nn.Linear(2 * hidden, hidden, bias=False)  # W_c
        self.words = nn.Linear(embedding, 4 * hidden)  # the words' part of the first layer's gates
        # of [s̃ or state below : own state]
        self.recurrent = nn.ParameterList(
            torch.empty(4 * hidden, 2 * hidden) for _ in range(layers)
        )
        self.biases = nn.ParameterList(torch.empty(4 * hidden) for _ in range(layers - 1))
        self.attentional = nn.Parameter(torch.empty(hidden, hidden))  # W_s
        self.output = OutputLayer(
            target_vocab, hidden, self.target.get_parameter("weight") if tie else None
        )
        uniform_parameters(self, init, seed)

    def encode(self, inputs: Inputs) -> Memory:
        """Keys ``[B, N, H]``, values ``[B, N, H]``, bias ``[B, 1, N]`` and first cells ``[B, layers, H]`` of sentences ``[B, N]``."""
        source, lengths = inputs
        size = source.shape[1]
        real = length_mask(lengths, size)
        places = torch.arange(size, device=source.device)
        # Each input backwards, so that both directions begin at a real word and padding comes last.
        mirrored = torch.where(real, lengths.unsqueeze(1) - 1 - places, places)  # [B, N]
        known = self._drop(self.source(source.masked_fill(~real, 0)))
        last = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, -1, self.size)
        ends: list[Tensor] = []
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            if ends:
                known = self._drop(known)
            there, _ = forward(known.transpose(0, 1))
            back, _ = backward(_take(known, mirrored).transpose(0, 1))
            ends = [there.gather(0, last)[0], back.gather(0, last)[0]]
            known = torch.cat([there.transpose(0, 1), _take(back.transpose(0, 1), mirrored)], 2)
        cells = self.first_cell(torch.cat(ends, 1)).view(-1, self.layers, self.size)
        bias = (
            torch.zeros(real.shape, dtype=known.dtype, device=known.device)
            .masked_fill(~real, -math.inf)
            .unsqueeze(1)
        )
        return self.keys(known), self.values(known), bias, cells

    def hidden(self, memory: Memory, read: Tensor) -> Tensor:
        """Attentional vectors s̃."""
        *attended, cells = memory
        batch, copies, steps = read.shape
        words = self._drop(self.target(read.permute(2, 0, 1).reshape(steps, -1)))
        first = cells.transpose(0, 1).repeat_interleave(copies, 1)  # [layers, M, H]
        rows = (steps, batch * copies, self.size)
        vectors = decode(
            self.words(words),
            first.tanh(),
            first,
            Attended(*attended),
            tuple(self.recurrent),
            tuple(self.biases),
            self.attentional,
            self._mask(rows, words),
            self._mask((self.layers - 1, *rows), words) if self.layers > 1 else None,
        )
        return vectors.view(steps, batch, copies, -1).permute(1, 2, 0, 3)

    def start(self, memory: Memory, copies: int) -> State:
        """s̃, states and cells: ``[M, H]``, ``[M, layers, H]`` twice."""
        cells = memory[3].repeat_interleave(copies, 0)
        return torch.zeros_like(cells[:, 0]), cells.tanh(), cells

    def step(self, memory: Memory, state: State, words: Tensor) -> tuple[Tensor, State]:
        """One word more."""
        below, states, cells = state
        after: list[tuple[Tensor, Tensor]] = []
        for layer in range(self.layers):
            bias = self.biases[layer - 1] if layer else self.words(self.target(words))
            gates = torch.addmm(
                bias, torch.cat([below, states[:, layer]], 1), self.recurrent[layer].T
            )
            _, cell, below = lstm_cell(gates, cells[:, layer])
            after.append((below, cell))
        _, context = attend(below, Attended(*memory[:3]))
        vectors = torch.addmm(context, below, self.attentional.T).tanh()
        new_states, new_cells = (torch.stack(parts, 1) for parts in zip(*after, strict=True))
        return vectors, (vectors, new_states, new_cells)

    def _drop(self, vectors: Tensor) -> Tensor:
        return nn.functional.dropout(vectors, self.dropout, self.training)

    def _mask(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        if not self.training or not self.dropout:
            return None
        return nn.functional.dropout(
            torch.ones(shape, dtype=like.dtype, device=like.device), self.dropout
        )


def _take(vectors: Tensor, places: Tensor) -> Tensor:
    """Vectors ``[B, N, X]`` in the order ``places [B, N]``."""
    return vectors.gather(1, places.unsqueeze(2).expand(-1, -1, vectors.shape[2]))
