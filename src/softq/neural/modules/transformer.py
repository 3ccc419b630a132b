"""A Transformer translator of the size of the paper's attentional one, behind the same interface."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from softq.errors import ModelError
from softq.formats.vocabulary import END, PAD
from softq.neural.modules.sequence import Inputs, Memory, OutputLayer, SequenceModel, State
from softq.numerics import length_mask


class TransformerTranslator(SequenceModel):
    """Encoder and decoder of attention and feed-forward layers, each behind a normalisation (pre-norm), with sinusoidal positions.

    The source, with END behind it, is encoded once; its K candidates of T words attend to it as one row of K·T positions. Memory: which
    source positions are real ``[B, N + 1]``, then keys and values of each decoder layer, each ``[B, H, N + 1, size / H]``. State: of each
    decoder layer, keys and values of the words so far, ``[B·K, 2, H, t, size / H]``.

    Args:
        source_vocab: number of source words.
        target_vocab: number of target words V.
        size: of embeddings and of all vectors between layers; even, and a multiple of ``heads``.
        heads: H, of each attention.
        layers: of the encoder, and as many of the decoder.
        feed_forward: hidden units of the feed-forward layers.
        dropout: of embeddings, attention weights, hidden units and of what each layer adds; only in training mode.
        tie: whether the output layer shares the weights of the target embedding.
        seed: of the first weights: uniform by Xavier and Glorot's rule, embeddings normal with variance 1 / size, biases 0.

    >>> from softq.sentences import Sentences
    >>> model = TransformerTranslator(20, 30, size=8, heads=2, layers=1, feed_forward=16).eval()
    >>> model.generate(Sentences.pack([[4, 5, 6], [7]]), max_length=4).tokens.shape[:2]
    torch.Size([2, 5])

    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        *,
        size: int = 256,
        heads: int = 4,
        layers: int = 3,
        feed_forward: int = 1024,
        dropout: float = 0.1,
        tie: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if heads < 1 or layers < 1 or size < 2 or size % 2 or size % heads:
            raise ModelError(
                "a Transformer needs a layer, a head and an even size that is a multiple of its"
                f" heads, got size {size}, heads {heads}, layers {layers}"
            )
        self.heads = heads
        self.source_embedding = nn.Embedding(source_vocab, size)
        self.target_embedding = nn.Embedding(target_vocab, size)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(
            _EncoderLayer(size, heads, feed_forward, dropout) for _ in range(layers)
        )
        self.encoder_norm = nn.LayerNorm(size)
        self.decoder = nn.ModuleList(
            _DecoderLayer(size, heads, feed_forward, dropout) for _ in range(layers)
        )
        self.decoder_norm = nn.LayerNorm(size)
        self.output = OutputLayer(
            target_vocab, size, tied=self.target_embedding.get_parameter("weight") if tie else None
        )
        self._first_weights(seed)

    def _first_weights(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale = self.target_embedding.embedding_dim**-0.5
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.Embedding, OutputLayer)):  # a tied weight is drawn twice
                nn.init.normal_(module.weight, std=scale, generator=generator)
        nn.init.zeros_(self.output.bias)

    def encode(self, inputs: Inputs) -> Memory:
        """Which positions of sentences ``[B, N]`` are real, and keys and values of each layer."""
        source, lengths = inputs
        places = torch.arange(source.shape[1] + 1, device=source.device)
        words = pad(source, (0, 1), value=PAD).masked_fill(places == lengths.unsqueeze(1), END)
        # END is, so that even an empty source has something to attend to
        real = length_mask(lengths + 1, source.shape[1] + 1)
        words = words.masked_fill(~real, PAD)
        x = self._embed(self.source_embedding, words, 0)
        for layer in self.encoder:
            x = layer(x, real)
        x = self.encoder_norm(x)
        layers = cast("list[_DecoderLayer]", list(self.decoder))
        return (real, *(part for layer in layers for part in layer.of_source(x)))

    def hidden(self, memory: Memory, read: Tensor) -> Tensor:
        """Vectors ``[B, K, T, size]`` from which the word after each of ``read [B, K, T]`` is predicted; the first of these is START."""
        x = self._embed(self.target_embedding, read, 0)
        real, *sources = memory
        for layer, keys, values in zip(self.decoder, sources[::2], sources[1::2], strict=True):
            x, _ = layer(x, real, keys, values)
        vectors: Tensor = self.decoder_norm(x)
        return vectors

    def start(self, memory: Memory, copies: int) -> State:
        """``copies`` sentences of each input before their first word."""
        rows, head_size = len(memory[0]) * copies, memory[1].shape[3]
        return tuple(memory[1].new_empty(rows, 2, self.heads, 0, head_size) for _ in self.decoder)

    def step(self, memory: Memory, state: State, words: Tensor) -> tuple[Tensor, State]:
        """Vectors ``[B·K, size]`` from which the word after ``words [B·K]`` is predicted, and the state after them."""
        real, *sources = memory
        # [B, K, 1, size]
        x = self._embed(self.target_embedding, words.view(len(real), -1, 1), state[0].shape[3])
        after = []
        for layer, past, keys, values in zip(
            self.decoder, state, sources[::2], sources[1::2], strict=True
        ):
            x, now = layer(x, real, keys, values, past)
            after.append(now)
        return self.decoder_norm(x).flatten(0, 2), tuple(after)

    def _embed(self, embedding: nn.Embedding, words: Tensor, first: int) -> Tensor:
        """Vectors of words ``[..., T]``, of which the first stands at place ``first``."""
        size = embedding.embedding_dim
        x = embedding(words)
        embedded: Tensor = self.dropout(
            x * math.sqrt(size) + _positions(first, words.shape[-1], size, x)
        )
        return embedded


def _positions(first: int, count: int, size: int, like: Tensor) -> Tensor:
    """Sines and cosines ``[count, size]`` of places ``first``, ``first + 1``, … at wavelengths from 2π to 2π · 10,000, as ``like``."""
    places = torch.arange(first, first + count, device=like.device, dtype=torch.float32).unsqueeze(
        1
    )
    angles = places * torch.exp(
        torch.arange(0, size, 2, device=like.device) * (-math.log(10_000.0) / size)
    )
    return torch.cat([angles.sin(), angles.cos()], 1).to(like.dtype)


def _feed_forward(size: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(size),
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, size),
        nn.Dropout(dropout),
    )


class _SelfAttention(nn.Module):
    """Attention of positions to positions of the same sentence, and what it adds to them."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.inputs = nn.Linear(size, 3 * size)
        self.output = nn.Linear(size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, *, real: Tensor | None = None, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What is added to sentences ``[M, T, size]``, and keys and values ``[M, 2, H, t, size / H]``, those of the ``past`` in front.

        With ``real [M, T]`` every position sees all real ones; else it sees those before it and itself. With a past T must be 1.
        """
        # [M, 3, H, T, size / H]
        heads = self.inputs(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(0, 2, 3, 1, 4)
        queries, seen = heads[:, 0], heads[:, 1:]
        if past is not None:
            seen = torch.cat([past, seen], 3)
        mask = None if real is None else real[:, None, None]
        rate = self.dropout.p if self.training else 0.0
        causal = real is None and past is None
        found = scaled_dot_product_attention(
            queries, seen[:, 0], seen[:, 1], attn_mask=mask, dropout_p=rate, is_causal=causal
        )
        return self.dropout(self.output(found.transpose(1, 2).flatten(2))), seen


class _EncoderLayer(nn.Module):
    def __init__(self, size: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.attention = _SelfAttention(size, heads, dropout)
        self.feed_forward = _feed_forward(size, feed_forward, dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        x = x + self.attention(x, real=real)[0]
        after: Tensor = x + self.feed_forward(x)
        return after


class _DecoderLayer(nn.Module):
    def __init__(self, size: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention = _SelfAttention(size, heads, dropout)
        self.norm = nn.LayerNorm(size)
        self.queries = nn.Linear(size, size)
        self.source = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = _feed_forward(size, feed_forward, dropout)

    def of_source(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each ``[B, H, N, size / H]``, of encoded sources ``[B, N, size]``."""
        keys, values = self.source(encoded).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(
        self, x: Tensor, real: Tensor, keys: Tensor, values: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Vectors ``[B, K, T, size]`` after this layer, and keys and values of their sentences."""
        added, seen = self.attention(x.flatten(0, 1), past=past)
        x = x + added.view_as(x)
        # All K·T positions of an input attend to its source as one row: nothing of the source is
        # copied for its candidates.
        # [B, H, K·T, size / H]
        queries = (
            self.queries(self.norm(x)).flatten(1, 2).unflatten(2, (self.heads, -1)).transpose(1, 2)
        )
        rate = self.dropout.p if self.training else 0.0
        found = scaled_dot_product_attention(
            queries, keys, values, attn_mask=real[:, None, None], dropout_p=rate
        )
        x = x + self.dropout(self.output(found.transpose(1, 2).flatten(2))).view_as(x)
        return x + self.feed_forward(x), seen
