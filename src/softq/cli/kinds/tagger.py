"""Taggers, and column files of labels: how they are read, labelled, scored, counted and checked."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast, get_args

from rich.table import Table

from softq.annotators.agreement import MEASURES, agreement
from softq.cli.kinds import TAGGER, Options, find_kind, find_model
from softq.cli.kinds.base import (
    PredictedPart,
    Predictor,
    Scores,
    count_rows,
    counted,
    fact_rows,
    heading,
    in_batches,
    kind_table,
    only_file,
    open_neural,
)
from softq.cli.shared import make_table
from softq.errors import DataError, OutputError
from softq.formats.annotations import check_annotations, read_annotations
from softq.formats.chunks import Chunk, read_chunks
from softq.formats.conll import MISSING, Annotators, Block, Sentence, find_scheme
from softq.formats.tags import Scheme, convert, spans
from softq.formats.text import Fault
from softq.formats.words import is_entity_tag, looks_like_text
from softq.lab.tasks.ner_data import check_tags, parts_of_speech
from softq.linear.entity_weights import WeightChoice, WeightRow, choose_weight, weight_row
from softq.linear.estimator_inputs import positive
from softq.linear.features import TemplateIndex
from softq.linear.tagger import CRFTagger
from softq.linear.tagging import Decoding, Tagger, entity_reward
from softq.metrics import SPAN_METRICS, KindScores, SpanScores, span_statistics
from softq.neural.tagging import NeuralTagger
from softq.rewards import PartReward

_NEURAL = {
    "softq tagger neural ": "softq.neural.tagger:SequenceTagger",
    "softq tagger transformers ": "softq.integrations.transformers.saved:TransformersTagger",
}
_ANNOTATOR = "softq"  # what the added column is called where lines name annotators
_OF_ANY_LABELS = ("token_accuracy", "exact_match")  # metrics that need no entities
_AGREEMENT = {"tokens": "tokens with two labels or more"} | MEASURES
_TITLES = {"f1": "F1", "token_accuracy": "token accuracy", "exact_match": "exact match"}


class FileTagger(Predictor):
    """A tagger with what it needs to know of the files it was trained on.

    Attributes:
        tagger: the model.
        file_scheme: of the training files, None where it is not known, or labels are no entity tags.
        trained_scheme: of the tagger's own labels, or None likewise.
        pos: column of parts of speech, the token's being 1; 0 where the model knows none.
        pos_tagger: of these, where ``--tagger`` names one.

    """

    decoding: Decoding
    reads = "a column file with a token on each line"

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        file = find_model(path)
        neural: NeuralTagger | None = open_neural(file, _NEURAL)
        if neural is None:
            own = self._take_linear(CRFTagger.load(file))
        else:
            own = self._take_neural(neural)
        self.decoding = self.choose_decoding(own, get_args(Decoding), "tagger")
        self.reward = self._reward(options)
        self.pos_tagger = load_pos_tagger(options)
        self._separators: dict[str, str] = {}  # the first file that has each

    def _take_neural(self, model: NeuralTagger) -> str:
        """Take a neural tagger, which reads words alone; how it decodes."""
        self.tagger: Tagger | NeuralTagger = model
        self._encode: Callable[[Any, Any], Any] = lambda tokens, _: model.encode(tokens)
        self.file_scheme, self.trained_scheme, self.pos = model.file_scheme, model.scheme, 0
        return model.decoding

    def _take_linear(self, model: CRFTagger) -> str:
        """Take a linear tagger, if it finds its features in words and parts of speech; how it decodes."""
        self.tagger, index = model.tagger_, model.tagger_.index
        if not isinstance(index, TemplateIndex):
            raise DataError(
                f"{self.path} was trained on features that a program made: expected a tagger that"
                " finds its own features in words"
            )
        self._encode = index.transform
        self.file_scheme, self.trained_scheme = model.file_scheme_, model.scheme_
        self.pos = model.pos_column_
        return str(model.decoding)

    def _reward(self, options: Options) -> PartReward | None:
        """What ``--entity-weight`` asks to decode for."""
        if options.entity_weight is None:
            return None
        if options.decoding == "viterbi":
            raise DataError(
                "--entity-weight weighs expected labels, which --decoding viterbi does not look"
                " for: leave one of them out"
            )
        self.decoding = "mbr"
        return self.reward_of(positive("--entity-weight", options.entity_weight))

    def reward_of(self, entity_weight: float) -> PartReward:
        """What a label, or a segment, earns with an entity weight."""
        if self.trained_scheme is None:
            raise DataError(
                f"an entity weight is for taggers of entities, and {self.path} knows labels such as"
                f" {min(self.tagger.labels)}"
            )
        if self.tagger.segments is not None:
            return self.tagger.segments.reward(entity_weight)
        return entity_reward(self.tagger.labels, entity_weight)

    def label(
        self, tokens: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None = None
    ) -> list[Sequence[str]]:
        """Labels of sentences, in the scheme of the training files."""
        return list(self.decode(self._features(tokens, pos), self.file_scheme))

    def _features(
        self, tokens: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None
    ) -> Any:
        """Sentences as the model reads them: features, or words and characters."""
        return self._encode(tokens, None if pos is None else {"pos": pos})

    def decode(self, matrix: Any, scheme: Scheme | None) -> Sequence[Sequence[str]]:
        """Labels of sentences, written in a scheme; None for that of the tagger's own labels."""
        return self._written(self.tagger.decode(matrix, self.decoding, self.reward), scheme)

    def _written(
        self, own: Sequence[Sequence[str]], scheme: Scheme | None
    ) -> Sequence[Sequence[str]]:
        if self.trained_scheme is None or scheme is None or self.trained_scheme == scheme:
            return own
        return [convert(labels, self.trained_scheme, scheme) for labels in own]

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """Lines with one more column, the label; text becomes lines of words."""
        labels = frozenset(self.tagger.labels)
        text = self.text_chunks(
            file,
            path,
            where,
            lambda lines: not self.options.columns and looks_like_text(lines, labels),
        )
        for chunk in read_chunks(file, where) if text is None else map(self._with_pos, text):
            self._check_separator(chunk, where)
            tokens = sum(len(block.widths) for block in chunk.blocks)
            yield PredictedPart(self._label_chunk(chunk, where), len(chunk.blocks), tokens)

    def _check_separator(self, chunk: Chunk, where: str) -> None:
        """Several files become one, whose columns cannot be separated by tabs here and by spaces there."""
        if chunk.blocks and self._separators.setdefault(chunk.separator, where) == where:
            others = [other for other in self._separators.values() if other != where]
            if others:
                raise DataError(
                    f"{where} and {others[0]} separate columns differently, tabs and spaces: label"
                    " them one by one"
                )

    def needs_tags(self) -> str:
        """The column of parts of speech."""
        return f"column {self.pos}" if self.pos else ""

    def _with_pos(self, chunk: Chunk) -> Chunk:
        """A chunk of text with parts of speech as a column, where the model looks at them."""
        if not self.pos or self.pos_tagger is None:
            return chunk
        words = [block.columns[0] for block in chunk.blocks]
        blocks, lines = [], []
        for block, tags in zip(chunk.blocks, self.pos_tagger.label(words), strict=True):
            columns = [block.columns[0], *[tuple(tags)] * (self.pos - 1)]
            blocks.append(block._replace(widths=[self.pos] * len(tags), columns=columns))
            lines += ["\t".join(row) for row in zip(*columns, strict=True)] + [""]
        return chunk._replace(lines=lines, blocks=blocks)

    def _label_chunk(self, chunk: Chunk, where: str) -> bytes:
        """The lines with their labels."""
        lines, separator = chunk.lines, chunk.separator
        for block, labels in zip(chunk.blocks, self._columns(chunk, where), strict=True):
            start = block.line - chunk.first
            rows = zip(lines[start : start + len(labels)], labels, strict=True)
            lines[start : start + len(labels)] = [
                f"{line}{separator}{label}" for line, label in rows
            ]
            if block.names is not None:
                if self.options.probabilities:
                    raise DataError(
                        f"{where}, line {block.names_line}: annotators have names here, and a"
                        " probability is no label of theirs"
                    )
                lines[block.names_line - chunk.first] += f" {_ANNOTATOR}"
        if lines and lines[-1]:
            lines.append("")  # of several files, each ends its last sentence
        return "".join(f"{line}\n" for line in lines).encode()

    def _columns(self, chunk: Chunk, where: str) -> Sequence[Sequence[str]]:
        """What is added to the lines of each sentence: labels, with probabilities if they are asked for."""
        if not chunk.blocks:
            return []
        tokens = [block.columns[0] for block in chunk.blocks]
        matrix = self._features(tokens, self._parts_of_speech(chunk.blocks, where))
        own = self.tagger.decode(matrix, self.decoding, self.reward)
        written = self._written(own, self.file_scheme)
        if not self.options.probabilities:
            return written
        place = {label: k for k, label in enumerate(self.tagger.labels)}
        return [
            [
                f"{label}{chunk.separator}{row[place[name]]:.4f}"
                for label, name, row in zip(labels, names, table.tolist(), strict=True)
            ]
            for labels, names, table in zip(
                written, own, self.tagger.marginals(matrix), strict=True
            )
        ]

    def _parts_of_speech(self, blocks: Sequence[Block], where: str) -> list[tuple[str, ...]] | None:
        """The column of parts of speech, where the model looks at one."""
        if not self.pos:
            return None
        for block in blocks:
            if len(block.columns) < self.pos:
                raise DataError(
                    f"{where}, line {block.line}: the model needs parts of speech in column"
                    f" {self.pos}, as in the files it was trained on, got {len(block.columns)}"
                    " columns"
                )
        if all(len(block.columns) == self.pos for block in blocks):
            values = {value for block in blocks for value in block.columns[self.pos - 1]}
            if all(map(is_entity_tag, values)):
                raise DataError(
                    f"{where}, line {blocks[0].line}: the model needs parts of speech in column"
                    f" {self.pos}, got labels such as {min(values)!r}"
                )
        return [block.columns[self.pos - 1] for block in blocks]

    def label_sentences(
        self, path: Path, sentences: Sequence[Sentence], scheme: Scheme | None
    ) -> list[Sequence[str]]:
        """Labels of the sentences of a file, written in the scheme of its labels."""
        return [
            labels
            for matrix in self.matrices(path, sentences, scheme)
            for labels in self.decode(matrix, scheme)
        ]

    def matrices(
        self, path: Path, sentences: Sequence[Sentence], scheme: Scheme | None
    ) -> Iterator[Any]:
        """Features of the sentences of a file, some at a time; an error if labels of its scheme are none of the model's."""
        try:
            if scheme is not None:
                spans(self.tagger.labels, self.trained_scheme or scheme)
        except OutputError:
            labels = ", ".join(self.tagger.labels[:5])
            raise DataError(
                "expected a model of entities, whose labels are such as B-PER and O"
                f" ({scheme}), got {labels}"
            ) from None
        for some in in_batches(sentences, path, "sentences"):
            pos = parts_of_speech(some, self.pos, str(path))
            yield self._encode([sentence.tokens for sentence in some], pos)


def load_pos_tagger(options: Options) -> FileTagger | None:
    """The tagger of parts of speech that ``--tagger`` names; it must find them in words alone."""
    if options.tagger is None:
        return None
    if find_kind(options.tagger) is not TAGGER:
        raise DataError(
            f"--tagger must be a tagger of parts of speech, and {options.tagger} is none"
        )
    found = FileTagger(options.tagger)
    if found.pos or all(map(is_entity_tag, found.tagger.labels)):
        raise DataError(
            "--tagger must be a tagger of parts of speech that looks at words alone, got"
            f" {options.tagger}, whose labels are such as {min(found.tagger.labels)!r}"
        )
    return found


load = FileTagger


def score_models(
    files: Sequence[Path], options: Options, models: Sequence[FileTagger]
) -> list[Scores]:
    """Scores of labels by those of one file; where they show no scheme, it is that of the model's training files, and so it is if that has none."""
    path = only_file(files, models)
    sentences, scheme = _read_true(path, options.scheme, models[0])
    labels = [sentence.labels[0] for sentence in sentences]
    if scheme is None and not {*models[0].tagger.labels} & set().union(*labels):
        known, found = (", ".join(some[:5]) for some in (models[0].tagger.labels, labels[0]))
        raise DataError(f"{path}: expected labels of the model's, such as {known}, got {found}")
    predicted = (one.label_sentences(path, sentences, scheme) for one in models)
    return [_scores(path, labels, found, scheme) for found in predicted]


def _read_true(
    path: Path, scheme: Scheme | None, model: FileTagger
) -> tuple[list[Sentence], Scheme | None]:
    """Sentences with true labels, and their scheme: where they show none, that of the model's training files; None if that has none."""
    sentences = _read(path, scheme)
    if scheme is None and model.trained_scheme is not None:
        scheme = find_scheme(sentences) or model.file_scheme or "bio"
    if scheme is not None:
        check_tags(path, sentences, scheme)
    return sentences, scheme


def tune(model: Path, dev: Path, beta: float) -> tuple[WeightRow, WeightChoice]:
    """Scores of a tagger as it decodes by itself, and with entity weights."""
    tagger = FileTagger(model)
    tagger.reward_of(1.0)  # an error if it knows no entities
    sentences, scheme = _read_true(dev, None, tagger)
    scheme = cast(Scheme, scheme)  # a tagger of entities has one
    true = [sentence.labels[0] for sentence in sentences]
    matrices = list(tagger.matrices(dev, sentences, scheme))

    def decode(weight: float | None) -> list[Sequence[str]]:
        tagger.reward = None if weight is None else tagger.reward_of(weight)
        return [labels for matrix in matrices for labels in tagger.decode(matrix, scheme)]

    choice = choose_weight(decode, true, scheme, beta)
    return weight_row(decode(None), true, scheme, beta), choice


def score_predictions(predictions: Path, files: Sequence[Path], options: Options) -> Scores:
    """Scores of a column file, whose last column was predicted and whose last but one is true."""
    if files:
        raise DataError(
            "--predictions FILE stands alone for labels: no model is asked, so leave out MODEL and"
            " --against"
        )
    sentences = _read(predictions, None)
    for sentence in sentences:
        if not sentence.extra:
            raise DataError(
                f"{predictions}, {sentence.where()}: expected a token, its true label and the"
                " predicted one, got 2 columns"
            )
    true = [
        dataclasses.replace(sentence, labels=sentence.extra[-1:], extra=sentence.extra[:-1])
        for sentence in sentences
    ]
    scheme = options.scheme or find_scheme(true) or find_scheme(sentences) or "bio"
    for labelled in (sentences, true):
        check_tags(predictions, labelled, scheme)
    labels = [[sentence.labels[0] for sentence in side] for side in (true, sentences)]
    return _scores(predictions, labels[0], labels[1], scheme)


def _read(path: Path, scheme: Scheme | None) -> list[Sentence]:
    sentences = read_annotations(path, scheme=scheme).sentences
    if sentences[0].annotators:
        raise DataError(
            f"{path}, {sentences[0].where()}: expected one true label for each token, got those of"
            " annotators"
        )
    return sentences


def _scores(
    path: Path,
    true: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: Scheme | None,
) -> Scores:
    """Scores of labels; those that follow no scheme, None, have no entities."""
    statistics = span_statistics(true, predicted, scheme)
    found = SpanScores.of(statistics)
    sizes = {"sentences": len(true), "tokens": sum(map(len, true))}
    overall = KindScores.of(*map(int, statistics.rows.sum(0)[:3]))
    kinds = {kind: row._asdict() for kind, row in found.kinds.items()}
    return Scores(
        statistics.rows,
        SPAN_METRICS if scheme else {name: SPAN_METRICS[name] for name in _OF_ANY_LABELS},
        _TITLES,
        {"file": str(path), "scheme": scheme, **sizes},
        heading(str(path), sizes),
        details={"kinds": kinds} if scheme else {},
        further=None,
        tables=[kind_table(f"entities ({scheme})", found.kinds, overall)] if scheme else [],
        lines=[f"token accuracy {found.token_accuracy:.4f}, exact match {found.exact_match:.4f}"],
    )


# --- softq data -----------------------------------------------------------------------------------------


def annotator_columns(options: Options) -> Annotators:
    """The value of ``--annotators``."""
    text = options.annotators
    if text != "all" and not (text.isascii() and text.isdigit()):
        raise DataError(f"--annotators must be a number, 0 or more, or all, got {text!r}")
    return "all" if text == "all" else int(text)


def count(paths: Sequence[Path], options: Options) -> Iterator[dict[str, Any]]:
    """All numbers of each file, as they go to JSON."""
    for path in paths:
        sentences = read_annotations(path, annotators=annotator_columns(options)).sentences
        scheme = options.scheme or find_scheme(sentences)
        tokens = Counter(chain.from_iterable(sentence.tokens for sentence in sentences))
        pieces = Counter(labels for sentence in sentences for _, _, labels in sentence.pieces())
        entities = {piece: _entities(piece, scheme, path) for piece in pieces}
        yield {
            "path": str(path),
            "sentences": len(sentences),
            "tokens": tokens.total(),
            "words": len(tokens),
            "scheme": scheme,
            "labels": counted(chain.from_iterable(pieces.elements())),
            "entities": counted(chain.from_iterable(map(entities.__getitem__, pieces.elements()))),
            **_count_annotators(sentences, scheme),
        }


def _count_annotators(sentences: Sequence[Sentence], scheme: Scheme | None) -> dict[str, Any]:
    names = {annotator for sentence in sentences for annotator in sentence.annotators}
    if not names:
        return {"annotators": 0, "annotations": 0, "agreement": None}
    given = [labels for sentence in sentences for labels in sentence.labels]
    found = agreement(sentences, scheme)
    return {
        "annotators": len(names),
        "annotations": sum(bool({*labels} - {MISSING}) for labels in given),
        "agreement": found._asdict() | {"pairs": [pair._asdict() for pair in found.pairs]},
    }


def _entities(labels: tuple[str, ...], scheme: Scheme | None, path: Path) -> list[str]:
    try:
        return [] if scheme is None else [span.kind for span in spans(labels, scheme)]
    except OutputError as error:
        raise DataError(f"{path}: {error}; `softq data check` lists the lines") from error


def show(file: dict[str, Any]) -> Table:
    """The numbers of `count` as a table."""
    sizes = {"sentences": "sentences", "tokens": "tokens", "words": "distinct words"}
    rows = fact_rows(sizes, file) + count_rows("labels", file["labels"])
    if file["scheme"]:
        rows += count_rows(f"entities ({file['scheme']})", file["entities"])
    if found := file["agreement"]:
        rows += [
            (),
            ("annotators", f"{file['annotators']:,}"),
            ("annotations per sentence", f"{file['annotations'] / file['sentences']:.2f}"),
            *fact_rows(_AGREEMENT, found, digits=4),
        ]
    table = make_table(("", "", ""), rows)
    if file["agreement"]:
        table.caption = "Each annotator and pair: softq data annotators FILE"
    return table


def check(paths: Sequence[Path], options: Options) -> dict[Path, list[Fault]]:
    """Every fault of each file."""
    annotators = annotator_columns(options)
    return {
        path: check_annotations(path, annotators=annotators, scheme=options.scheme)
        for path in paths
    }
