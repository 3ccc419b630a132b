"""A neural tagger: words and characters, a bidirectional LSTM, a linear chain over labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from softq.errors import ModelError
from softq.formats.file_checks import mapping, one_of, string_list
from softq.formats.tags import allowed_transitions
from softq.formats.word_vectors import WordVectors
from softq.lab.recipe import build
from softq.linear.features.matrix import batches_of_like_lengths
from softq.neural.generation import evaluating
from softq.neural.modules.word_encoder import WordEncoder, begin
from softq.neural.saved_module import SavedModule
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.words import Array, EncodedWords, WordBatch, WordVocabulary
from softq.options import Constraints, LabelDecoding, Scheme
from softq.rewards import PartReward
from softq.spaces import Chain, Independent

_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 16}  # words of a batch to predict for, padding too


class SequenceTagger(SavedModule):
    """The BiLSTM-CNN-CRF of Ma and Hovy (2016): sentences to a distribution over label sequences.

    Each word is its own vector and what a convolution finds in its characters; a bidirectional LSTM
    reads them; a linear layer scores labels, a table neighbouring labels. What it returns is a
    `softq.Chain`, so that ML, RAML and SQDML are one line:
    ``softq.cross_entropy(softq.raml(p, labels, tau=0.2), p)``. ``softq train ner --model neural``
    trains one from files.

    Args:
        vocabulary: of words and characters.
        labels: K names, each once.
        settings: sizes, dropout, and whether there are scores of neighbouring labels; without them
            the distribution is `softq.Independent`.
        scheme: tag scheme of the labels; None: they follow none.
        constraints: where label sequences that break the scheme are forbidden: ``"none"``;
            ``"decode"`` (or ``"target"``), in evaluation mode; ``"model"``, always.
        seed: of the first parameters.

    Attributes:
        decoding: how `predict` chooses labels unless it is told.
        file_scheme: the tag scheme in which ``softq predict`` writes labels; ``scheme`` if None.

    >>> import softq
    >>> X, y = [["Ann", "Lee", "ran"], ["He", "ran"]], [["B-PER", "I-PER", "O"], ["O", "O"]]
    >>> tagger = SequenceTagger(WordVocabulary.of(X), ["B-PER", "I-PER", "O"], scheme="bio", constraints="decode", seed=1)
    >>> p, refs = tagger(X), torch.tensor([[0, 1, 2], [2, 2, -1]])
    >>> loss = softq.cross_entropy(softq.ml(p, refs), p).mean()
    >>> loss.backward()
    >>> [len(labels) for labels in tagger.predict(X)]
    [3, 2]

    """

    noun, format = "neural tagger", "softq tagger neural 1"

    def __init__(
        self,
        vocabulary: WordVocabulary,
        labels: Sequence[str],
        settings: TaggerSettings = TaggerSettings(),  # noqa: B008 -- it is frozen
        *,
        scheme: Scheme | None = None,
        constraints: Constraints = "none",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not labels or len(set(labels)) != len(labels):
            raise ModelError(f"expected one label or more, each once, got {list(labels)}")
        self.vocabulary, self.labels, self.settings = vocabulary, tuple(labels), settings
        self.scheme, self.constraints = scheme, constraints
        self.decoding: LabelDecoding = "viterbi"
        self.file_scheme: Scheme | None = None
        size = len(self.labels)
        self.encoder = WordEncoder(
            len(vocabulary.words),
            len(vocabulary.characters),
            word_size=settings.word_size,
            character_size=settings.character_size,
            filters=settings.filters,
            dropout=settings.dropout,
            rare=vocabulary.rare,
        )
        self.drop = nn.Dropout(settings.dropout)
        widths = [self.encoder.size, *[2 * settings.hidden] * (settings.layers - 1)]
        self.layers = nn.ModuleList(
            nn.LSTM(width, settings.hidden, bidirectional=True) for width in widths
        )
        self.emissions = nn.Linear(2 * settings.hidden, size)
        self.transitions = nn.Parameter(torch.zeros(size, size)) if settings.crf else None
        self._forbid()
        if self.emissions.weight.device.type != "meta":
            begin(self, torch.Generator().manual_seed(seed % 2**63))

    def _forbid(self) -> None:
        """Scores of 0 and -inf by the scheme."""
        forbids = self.scheme is not None and self.constraints != "none"
        allowed = allowed_transitions(self.labels, self.scheme) if forbids and self.scheme else ()
        for name, table in zip(("between", "first", "last"), allowed, strict=False):
            scores = torch.zeros(table.shape, device=self.emissions.weight.device)
            scores = scores.masked_fill(~table.to(scores.device), -math.inf)
            self.register_buffer(name, scores, persistent=False)
        self._forbids = forbids

    def take_vectors(self, vectors: WordVectors) -> int:
        """Let words begin with pretrained vectors; how many have one.

        A word has its own vector or that of its lower case.
        """
        size = self.settings.word_size
        if vectors.table.shape[1] != size:
            raise ModelError(
                f"expected vectors of {size} numbers (word_size), got {vectors.table.shape[1]}"
            )
        ids, found = self.vocabulary.vectors(vectors)
        self.encoder.take_vectors(ids, found)
        return len(ids)

    def scores(self, batch: WordBatch) -> Tensor:
        """Scores of labels ``[B, n, K]``, 0 on padding."""
        hidden = self.encoder(batch)  # [T, D]
        for layer in self.layers:
            hidden = layer(batch.packing.packed(self.drop(hidden)))[0].data
        return batch.packing.padded(self.emissions(self.drop(hidden)))

    def forward(self, sentences: WordBatch | Sequence[Sequence[str]]) -> Chain | Independent:
        """The distribution over the label sequences of sentences, each of a word or more."""
        if not isinstance(sentences, WordBatch):
            encoded = self.vocabulary.encode(sentences)
            sentences = encoded.batch(np.arange(len(encoded.lengths)))
        batch = sentences.to(self.emissions.weight.device)
        return self.distribution(self.scores(batch), batch.packing.lengths)

    def distribution(self, scores: Tensor, lengths: Tensor) -> Chain | Independent:
        """The distribution with these scores of labels."""
        forbids = self._forbids and (self.constraints == "model" or not self.training)
        between: Tensor | None = self.transitions
        # in training a loss that is not finite is noticed, and to look at scores waits for a GPU
        options: dict[str, Any] = {"validate": not self.training}
        if forbids:
            table = self.get_buffer("between").to(scores)
            between = table if between is None else between + table
            options["start"] = self.get_buffer("first").to(scores)
            options["end"] = self.get_buffer("last").to(scores)
        if between is None:
            return Independent(scores, lengths, **options)
        return Chain(scores, between, lengths, **options)

    # --- predictions ------------------------------------------------------------------------------

    def predict(
        self, sentences: Sequence[Sequence[str]], decoding: LabelDecoding | None = None
    ) -> list[list[str]]:
        """Labels of each sentence, one of which may be empty.

        By default the most probable sequence (``"viterbi"``); ``"mbr"``, the most right labels to
        be expected.
        """
        return self.decode(self.vocabulary.encode(sentences), decoding or self.decoding)

    def predict_marginals(self, sentences: Sequence[Sequence[str]]) -> list[list[dict[str, float]]]:
        """Probabilities of all labels at each token of each sentence."""
        return [
            [dict(zip(self.labels, row, strict=True)) for row in table.tolist()]
            for table in self.marginals(self.vocabulary.encode(sentences))
        ]

    def decode(
        self,
        encoded: EncodedWords,
        decoding: LabelDecoding,
        reward: PartReward | None = None,
    ) -> list[list[str]]:
        """Labels of each sentence of `WordVocabulary.encode`; with a reward, those that earn most."""
        found: list[list[str]] = [[] for _ in encoded.lengths]
        for batch, chain in self._distributions(encoded):
            searched = decoding == "viterbi" and reward is None
            best = (chain.mode() if searched else chain.mbr(reward)).tolist()
            for sentence, row in zip(batch.tolist(), best, strict=True):
                found[sentence] = [self.labels[k] for k in row[: encoded.lengths[sentence]]]
        return found

    def marginals(self, encoded: EncodedWords) -> list[Array]:
        """Probabilities of labels ``[n, K]`` for each sentence of `WordVocabulary.encode`."""
        found = [np.zeros((0, len(self.labels)), np.float32) for _ in encoded.lengths]
        for batch, chain in self._distributions(encoded):
            for sentence, row in zip(batch.tolist(), chain.marginals.cpu().numpy(), strict=True):
                found[sentence] = row[: encoded.lengths[sentence]]
        return found

    def _distributions(self, encoded: EncodedWords) -> Iterator[tuple[Array, Any]]:
        """Sentences in batches of like length, and their distributions."""
        most = _AT_ONCE.get(self.emissions.weight.device.type, 1 << 13)
        with evaluating(self):
            for batch in batches_of_like_lengths(encoded.lengths, encoded.lengths, most):
                yield batch, self(encoded.batch(batch))

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Settings, labels, scheme and vocabulary."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "labels": list(self.labels),
            "scheme": self.scheme,
            "file_scheme": self.file_scheme,
            "constraints": self.constraints,
            "decoding": self.decoding,
            **self.vocabulary.notes(),
        }

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Self:
        """The tagger of `about`, with any parameters."""
        schemes = (None, *get_args(Scheme))
        tagger = cls(
            WordVocabulary.from_notes(about),
            string_list("labels", about["labels"]),
            build(TaggerSettings, mapping("settings", about["settings"]), "settings"),
            scheme=one_of("scheme", about["scheme"], schemes),
            constraints=one_of("constraints", about["constraints"], get_args(Constraints)),
        )
        tagger.file_scheme = one_of("file_scheme", about["file_scheme"], schemes)
        tagger.decoding = one_of("decoding", about["decoding"], get_args(LabelDecoding))
        return tagger
