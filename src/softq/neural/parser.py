"""A neural parser: words, characters and tags, a bidirectional LSTM, biaffine scores of arcs and relations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from softq.errors import DataError, ModelError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import mapping, string_list
from softq.formats.word_vectors import WordVectors
from softq.lab.recipe import build
from softq.neural.modules.biaffine import Biaffine, Views
from softq.neural.modules.word_encoder import WordEncoder
from softq.neural.parser_settings import ParserSettings
from softq.neural.parsing import NeuralParser
from softq.neural.words import Array, EncodedWords, WordBatch, WordVocabulary

_COLUMNS = ("upos", "xpos", "feats")
_NOTHING = "_"  # of words without a tag
_ROOT = ""  # stands before the words of each sentence
_UNKNOWN_TAG, _ROOT_TAG = 0, 1
_WIDTHS = 16  # padded sizes are multiples of it, so that a compiler sees few of them


class TreeBatch(NamedTuple):
    """B sentences, the root before the words of each.

    Attributes:
        words: of T positions, roots among them.
        tags: ids of UPOS, XPOS and FEATS, ``[3, T]``.

    """

    words: WordBatch
    tags: Tensor

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence without the root, ``[B]``."""
        return self.words.packing.lengths - 1

    @property
    def width(self) -> int:
        """Words of a padded sentence without the root."""
        return self.words.packing.width - 1

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return type(self)(self.words.to(device), self.tags.to(device))


class EncodedTrees(NamedTuple):
    """All sentences as numbers: words, and tags ``[3, positions]``."""

    words: EncodedWords
    tags: Array

    @property
    def lengths(self) -> Array:
        """Words of each sentence without the root, ``[N]``."""
        found: Array = self.words.lengths - 1
        return found

    def batch(self, sentences: Array | Sequence[int]) -> TreeBatch:
        """These sentences; their padded width is a multiple of 16."""
        chosen = np.asarray(sentences, np.int64)
        width = -(-int(self.words.lengths[chosen].max()) // _WIDTHS) * _WIDTHS
        words = self.words.batch(chosen, width)
        tokens = self.words.tokens(chosen, words.packing)
        return TreeBatch(words, torch.from_numpy(self.tags[:, tokens]))


@dataclass(frozen=True)
class TreeVocabulary:
    """What a parser knows of words.

    Attributes:
        words: with their characters; the root is a word, too.
        tags: values of UPOS, XPOS and FEATS.
        relations: K names.

    """

    words: WordVocabulary
    tags: tuple[tuple[str, ...], ...]
    relations: tuple[str, ...]

    @classmethod
    def of(
        cls,
        sentences: Sequence[TreeSentence],
        relations: Sequence[str],
        vectors: WordVectors | None = None,
    ) -> Self:
        """What sentences to train on have, with these relations, and the words of pretrained vectors."""
        tags = (sorted({tag for s in sentences for tag in getattr(s, name)}) for name in _COLUMNS)
        words = WordVocabulary.of(map(_with_root, sentences), vectors)
        return cls(words, tuple(map(tuple, tags)), tuple(relations))

    def lacks_tags(self, sentences: Sequence[TreeSentence]) -> bool:
        """Whether no word of sentences has a part of speech, where those to train on had some."""
        upos, xpos, _ = self.tags
        if not {*upos, *xpos} - {_NOTHING} or not any(one.forms for one in sentences):
            return False
        return all({*one.upos, *one.xpos} <= {_NOTHING} for one in sentences)

    @cached_property
    def _tag_ids(self) -> list[dict[str, int]]:
        return [
            {tag: number for number, tag in enumerate(known, start=_ROOT_TAG + 1)}
            for known in self.tags
        ]

    def encode(self, sentences: Sequence[TreeSentence]) -> EncodedTrees:
        """Sentences as numbers."""
        words = self.words.encode([_with_root(sentence) for sentence in sentences])
        tags = np.full((len(_COLUMNS), int(words.lengths.sum())), _ROOT_TAG, np.int64)
        place = 0
        for sentence in sentences:
            place += 1
            end = place + len(sentence.forms)
            for row, name, known in zip(tags, _COLUMNS, self._tag_ids, strict=True):
                row[place:end] = [known.get(tag, _UNKNOWN_TAG) for tag in getattr(sentence, name)]
            place = end
        return EncodedTrees(words, tags)


def _with_root(sentence: TreeSentence) -> tuple[str, ...]:
    return (_ROOT, *sentence.forms)


class BiaffineParser(NeuralParser):
    r"""The deep biaffine parser of Dozat and Manning (2017): sentences to a distribution over trees.

    Each word is its own vector, what a convolution finds in its characters, and its tags; a
    bidirectional LSTM reads them; a biaffine form scores each arc, another one the relations
    between a word and its head. The distribution is a `softq.ProjectiveTree` or a
    `softq.SpanningTree`, and arcs and relations are trained side by side.
    ``softq train parsing --model neural`` trains one from files.

    Args:
        vocabulary: of words, characters, tags and relations.
        settings: sizes and dropout.
        spanning: arcs may cross.
        seed: of the first parameters.

    >>> from softq.formats import read_conllu
    >>> import softq
    >>> sentences = read_conllu("1\tIt\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\trains\t_\tVERB\t_\t_\t0\troot\t_\t_\n")
    >>> small = ParserSettings(hidden=8, layers=1, arc_size=8, relation_size=4)
    >>> parser = BiaffineParser(TreeVocabulary.of(sentences, ["nsubj", "root"]), small)
    >>> tree, views = parser(sentences)
    >>> heads = torch.nn.functional.pad(torch.tensor([sentences[0].heads]), (0, 13))  # to the width of a batch
    >>> loss = softq.cross_entropy(softq.raml(tree, heads, tau=0.3), tree)
    >>> parser.relation_scores(views, heads).shape
    torch.Size([1, 15, 2])
    >>> len(parser.parse(sentences)[0].heads)
    2

    """

    noun, format = "neural parser", "softq parser neural 1"

    def __init__(
        self,
        vocabulary: TreeVocabulary,
        settings: ParserSettings = ParserSettings(),  # noqa: B008 -- it is frozen
        *,
        spanning: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.settings, self.spanning = vocabulary, settings, spanning
        self.relations = vocabulary.relations
        known = vocabulary.words
        self.encoder = WordEncoder(
            len(known.words),
            len(known.characters),
            word_size=settings.word_size,
            character_size=settings.character_size,
            filters=settings.filters,
            dropout=0.0,
            rare=known.rare,
        )
        self.tags = nn.ModuleList(
            nn.Embedding(len(tags) + _ROOT_TAG + 1, settings.tag_size) for tags in vocabulary.tags
        )
        inputs = self.encoder.size + len(self.tags) * settings.tag_size
        widths = [inputs, *[2 * settings.hidden] * (settings.layers - 1)]
        self.layers = nn.ModuleList(
            nn.LSTM(width, settings.hidden, bidirectional=True) for width in widths
        )
        self.biaffine = Biaffine(
            2 * settings.hidden,
            len(vocabulary.relations),
            settings.arc_size,
            settings.relation_size,
        )
        if self.biaffine.arc.weight.device.type != "meta":
            with torch.random.fork_rng([]):  # layers take what torch gives them, by a seed
                torch.manual_seed(seed % 2**63)
                for part in self.modules():
                    if isinstance(part, (nn.Embedding, nn.Conv1d, nn.LSTM, nn.Linear)):
                        part.reset_parameters()
            self.biaffine.begin()

    def take_vectors(self, vectors: WordVectors) -> int:
        """Let words begin with pretrained vectors, their own or those of their lower case; how many have one."""
        size = self.settings.word_size
        if vectors.table.shape[1] != size:
            raise ModelError(
                f"expected vectors of {size} numbers (word_size), got {vectors.table.shape[1]}"
            )
        ids, found = self.vocabulary.words.vectors(vectors)
        self.encoder.take_vectors(ids, found)
        return len(ids)

    def encode(self, sentences: Sequence[TreeSentence]) -> EncodedTrees:
        """Sentences as words, characters and tags."""
        return self.vocabulary.encode(sentences)

    def lacks_tags(self, sentences: Sequence[TreeSentence]) -> bool:
        """See `TreeVocabulary.lacks_tags`."""
        return self.vocabulary.lacks_tags(sentences)

    def scores(self, batch: TreeBatch) -> tuple[Tensor, Views]:
        """Scores of arcs ``[B, head, dependent]``, and the views of relations."""
        packing = batch.words.packing
        hidden = self._inputs(batch)  # [T, …]
        for layer in self.layers:
            hidden = layer(packing.packed(self._drop(hidden, batch)))[0].data
        seen = self.biaffine(self._drop(hidden, batch))
        return self.biaffine.arcs(packing.padded(self._drop(seen, batch)))

    def _inputs(self, batch: TreeBatch) -> Tensor:
        """Words, spelling and tags, ``[T, …]``.

        In training some are left out and the others count more.
        """
        words, encoder = batch.words, self.encoder
        kinds = [
            encoder.of_words(words.words),
            functional.leaky_relu(encoder.of_letters(words), 0.1),
            *(table(ids) for table, ids in zip(self.tags, batch.tags, strict=True)),
        ]
        share = self.settings.input_dropout
        if self.training and share:
            kept = torch.rand(len(words.words), len(kinds), device=words.words.device) > share
            factor = kept * (len(kinds) / kept.sum(1, keepdim=True).clamp(min=1))
            factor = factor.to(kinds[0].dtype)
            kinds = [kind * factor[:, k : k + 1] for k, kind in enumerate(kinds)]
        return torch.cat(kinds, -1)

    def _drop(self, x: Tensor, batch: TreeBatch) -> Tensor:
        """Dropout of the same coordinates at all positions of a sentence (variational dropout)."""
        if not self.training:
            return x
        packing = batch.words.packing
        mask = x.new_ones(len(packing.lengths), x.shape[1])
        return x * functional.dropout(mask, self.settings.dropout)[packing.row]

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Settings, kind of trees and vocabularies."""
        vocabulary = self.vocabulary
        return {
            "settings": dataclasses.asdict(self.settings),
            "spanning": self.spanning,
            **super().about(),
            "tags": {
                name: list(tags) for name, tags in zip(_COLUMNS, vocabulary.tags, strict=True)
            },
            "relations": list(vocabulary.relations),
            **vocabulary.words.notes(),
        }

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Self:
        """The parser of `about`, with any parameters."""
        tags = mapping("tags", about["tags"])
        relations = string_list("relations", about["relations"])
        if not relations or len(set(relations)) != len(relations):
            raise DataError(f"expected relations, each once, got {list(relations)!r:.100}")
        parser = cls(
            TreeVocabulary(
                WordVocabulary.from_notes(about),
                tuple(string_list(name, tags[name]) for name in _COLUMNS),
                relations,
            ),
            build(ParserSettings, mapping("settings", about["settings"]), "settings"),
            spanning=bool(about["spanning"]),
        )
        parser.take_about(about)
        return parser
