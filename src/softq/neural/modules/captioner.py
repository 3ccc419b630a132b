"""The paper's captioner.

An LSTM decoder whose memory begins with what an image encoder saw (Appendix C).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from softq.errors import ModelError
from softq.neural.modules.sequence import (
    Inputs,
    Memory,
    OutputLayer,
    SequenceModel,
    State,
    uniform_parameters,
)


class ImageCaptioner(SequenceModel):
    """P(y|x) of captions given a vector x of features of an image, which a fixed encoder made.

    - Decoder: s_t = LSTM(y_{t-1}, s_{t-1}), ``layers`` of them; cells begin as W x + b, states as
      their tanh.
    - P(y_t) = softmax(W_s s_t).
    - Dropout: of features, embeddings, s, and between layers.

    Time O(T · (H + V) H) a candidate, O(D H) an image, whatever the number of its candidates.

    Args:
        features: size D of the vectors.
        vocab: words of captions.
        embedding: size of word vectors.
        hidden: size H of states.
        layers: of the decoder.
        dropout: share of what is dropped in training.
        tie: one weight for the embeddings and the output layer.
        init: every parameter begins uniform in ±init.
        seed: of that.

    >>> from softq.sentences import Sentences
    >>> model = ImageCaptioner(16, 30, embedding=8, hidden=8, seed=1)
    >>> model.log_prob((torch.ones(2, 16),), Sentences.pack([[[4, 5], [6]], [[7, 8, 9]]])).shape
    torch.Size([2, 2])

    """

    def __init__(
        self,
        features: int,
        vocab: int,
        *,
        embedding: int = 256,
        hidden: int = 512,
        layers: int = 1,
        dropout: float = 0.3,
        tie: bool = False,
        init: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.features, self.layers, self.size, self.dropout = features, layers, hidden, dropout
        self.words = nn.Embedding(vocab, embedding)
        self.first_cell = nn.Linear(features, layers * hidden)
        # a module each, so that dropout between them is torch's own, which a seed decides
        self.decoder = nn.ModuleList(
            nn.LSTM(hidden if layer else embedding, hidden) for layer in range(layers)
        )
        self.output = OutputLayer(
            vocab, hidden, self.words.get_parameter("weight") if tie else None
        )
        uniform_parameters(self, init, seed)

    def encode(self, inputs: Inputs) -> Memory:
        """First cells ``[B, layers, H]`` of vectors ``[B, D]``."""
        (vectors,) = inputs
        if vectors.dim() != 2 or vectors.shape[1] != self.features:
            raise ModelError(
                f"expected features [B, {self.features}], as this model was made for, got"
                f" {list(vectors.shape)}"
            )
        return (self.first_cell(self._drop(vectors)).view(-1, self.layers, self.size),)

    def hidden(self, memory: Memory, read: Tensor) -> Tensor:
        """States s."""
        batch, copies, steps = read.shape
        vectors = self._drop(self.words(read.permute(2, 0, 1).reshape(steps, -1)))
        cells = memory[0].transpose(0, 1).repeat_interleave(copies, 1)  # [layers, M, H]
        for layer, cell in zip(self.decoder, cells.unsqueeze(1).unbind(0), strict=True):
            vectors, _ = layer(vectors, (cell.tanh(), cell))
            vectors = self._drop(vectors)
        return vectors.view(steps, batch, copies, -1).permute(1, 2, 0, 3)

    def start(self, memory: Memory, copies: int) -> State:
        """States and cells, ``[M, layers, H]`` each."""
        cells = memory[0].repeat_interleave(copies, 0)
        return cells.tanh(), cells

    def step(self, memory: Memory, state: State, words: Tensor) -> tuple[Tensor, State]:
        """One word more."""
        states, cells = state
        below, after = self.words(words), []
        for layer, shown, before in zip(
            self.decoder, states.unbind(1), cells.unbind(1), strict=True
        ):
            below, cell = torch.lstm_cell(
                below, (shown, before), *cast(nn.LSTM, layer).all_weights[0]
            )
            after.append((below, cell))
        new_states, new_cells = (torch.stack(parts, 1) for parts in zip(*after, strict=True))
        return below, (new_states, new_cells)

    def _drop(self, vectors: Tensor) -> Tensor:
        return nn.functional.dropout(vectors, self.dropout, self.training)
