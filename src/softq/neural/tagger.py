"""A neural tagger: words and characters, a bidirectional LSTM, a linear chain over labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from softq.checks import check_count
from softq.errors import DataError, ModelError
from softq.formats.file_checks import mapping, one_of, string_list
from softq.formats.word_vectors import WordVectors
from softq.lab.recipe import build
from softq.linear.tagging import segments_for
from softq.neural.modules.word_encoder import WordEncoder, begin
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.tagging import NeuralTagger
from softq.neural.words import EncodedWords, WordBatch, WordVocabulary
from softq.options import Constraints, Scheme


class SequenceTagger(NeuralTagger):
    """The BiLSTM-CNN-CRF of Ma and Hovy (2016): sentences to a distribution over label sequences.

    Or over labelled segments, whose scores are sums of those labels and scores of their lengths.

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
            ``"decode"`` (or ``"target"``), in evaluation mode; ``"model"``, always. Segments keep
            to it in any case.
        max_segment: words of the longest segment: the distribution is a `softq.SemiMarkov` over
            entities and single ``O``, and the labels are `softq.formats.tags.every_tag` of BIO or
            BIOES; None: a chain.
        seed: of the first parameters.

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
        max_segment: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not labels or len(set(labels)) != len(labels):
            raise ModelError(f"expected one label or more, each once, got {list(labels)}")
        self.vocabulary, self.labels, self.settings = vocabulary, tuple(labels), settings
        self.scheme, self.constraints = scheme, constraints
        self.max_segment = max_segment
        self.segments = segments_for(self.labels, scheme, max_segment)
        if self.segments is not None and not settings.crf:
            raise ModelError("segments have scores of neighbouring types: leave crf at True")
        size = len(self.labels)
        table = self.segments.table_shape if self.segments else (size, size)
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
        self.transitions = nn.Parameter(torch.zeros(table)) if settings.crf else None
        self._forbid()
        if self.emissions.weight.device.type != "meta":
            begin(self, torch.Generator().manual_seed(seed % 2**63))

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

    def encode(self, sentences: Sequence[Sequence[str]]) -> EncodedWords:
        """Sentences as words and characters."""
        return self.vocabulary.encode(sentences)

    def scores(self, batch: WordBatch) -> Tensor:
        """Scores of labels ``[B, n, K]``, 0 on padding."""
        hidden = self.encoder(batch)  # [T, D]
        for layer in self.layers:
            hidden = layer(batch.packing.packed(self.drop(hidden)))[0].data
        return batch.packing.padded(self.emissions(self.drop(hidden)))

    def neighbour_scores(self) -> tuple[Tensor | None, None, None]:
        """Those of neighbours."""
        return self.transitions, None, None

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Settings, labels, scheme and vocabulary."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "labels": list(self.labels),
            "scheme": self.scheme,
            "constraints": self.constraints,
            "max_segment": self.max_segment,
            **super().about(),
            **self.vocabulary.notes(),
        }

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Self:
        """The tagger of `about`, with any parameters."""
        longest = about.get("max_segment")  # files of before there were segments have none
        if longest is not None:
            check_count("max_segment", longest, DataError)
        tagger = cls(
            WordVocabulary.from_notes(about),
            string_list("labels", about["labels"]),
            build(TaggerSettings, mapping("settings", about["settings"]), "settings"),
            scheme=one_of("scheme", about["scheme"], (None, *get_args(Scheme))),
            constraints=one_of("constraints", about["constraints"], get_args(Constraints)),
            max_segment=longest,
        )
        tagger.take_about(about)
        return tagger
