"""Dependency parsers, and files of trees (CoNLL-U): how they are read, parsed, scored, counted and checked."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, get_args

from rich.table import Table
from torch import Tensor

from softq.cli.kinds import Options
from softq.cli.kinds.base import (
    Part,
    Predictor,
    Scores,
    count_rows,
    kind_table,
    number,
    only_file,
    score_table,
)
from softq.cli.kinds.tagger import load_pos_tagger
from softq.cli.progress import progress_bars
from softq.cli.shared import make_table
from softq.errors import DataError
from softq.formats.chunks import Chunk
from softq.formats.conllu import TreeSentence, check_conllu, is_conllu, iter_conllu, read_conllu
from softq.formats.text import Fault, file_type
from softq.formats.trees import crossing_arcs, tree_depth
from softq.linear.features import lacks_tags
from softq.linear.parser import DependencyParser
from softq.linear.parsing import Decoding, Parse
from softq.metrics import (
    ATTACHMENT_METRICS,
    KindScores,
    align_score,
    attachment_statistics,
)
from softq.metrics.attachment import universal

_NOTHING = "_"
_ENOUGH = 1000  # words that tell which columns a file has
_AT_A_TIME = 1000  # sentences
_UNIVERSAL = frozenset(
    [
        "ADJ",
        "ADP",
        "ADV",
        "AUX",
        "CCONJ",
        "DET",
        "INTJ",
        "NOUN",
        "NUM",
        "PART",
        "PRON",
        "PROPN",
        "PUNCT",
        "SCONJ",
        "SYM",
        "VERB",
        "X",
    ]
)  # parts of speech of the column UPOS
_TITLES = {
    "uas": "UAS",
    "las": "LAS",
    "las_subtypes": "LAS with subtypes",
    "clas": "CLAS",
    "exact_match": "exact match",
    "labelled_exact_match": "labelled exact match",
}
_ROOT = "root"
_ARC_LENGTHS = (1, 2, 5, 10, 20)  # the longest of each class but the last
_SENTENCE_LENGTHS = (5, 10, 20, 30, 40)


class FileParser(Predictor):
    """A parser, and how it decodes."""

    decoding: Decoding

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        model = DependencyParser.load(self.file)
        self.parser = model.parser_
        self.decoding = self.choose_decoding(model.decoding, get_args(Decoding), "parser")
        self.pos_tagger = load_pos_tagger(options)

    def check_files(self, files: Sequence[Path]) -> None:
        """CoNLL-X has no place for probabilities; text that is asked for must be enough for the parser."""
        if self.options.plain or self.options.text:
            self._check_text()
        elif self.options.probabilities:
            for path in files:
                if file_type(path) == ".conllx":
                    raise DataError(
                        f"{path} is CoNLL-X by its name, whose last column is PDEPREL, and"
                        " --probabilities writes into MISC, which CoNLL-U has there: leave"
                        " --probabilities out, or give CoNLL-U"
                    )

    def _check_text(self) -> None:
        """An error if the parser looks at columns that neither text nor ``--tagger`` has."""
        if self.pos_tagger is None and self._lacks_tags([_bare(("word",))]):
            raise DataError(
                f"{self.path} needs what running text does not have (UPOS or XPOS): give CoNLL-U"
                " files, whose words are tagged, or name a tagger of parts of speech with --tagger"
            )

    def _lacks_tags(self, sentences: list[TreeSentence]) -> bool:
        return lacks_tags(self.parser.index, sentences, relations=bool(self.parser.relations))

    def _tagged_column(self) -> str:
        """The column of CoNLL-U that the labels of ``--tagger`` belong to."""
        if self.pos_tagger is None:
            return ""
        return "upos" if _UNIVERSAL.issuperset(self.pos_tagger.tagger.labels) else "xpos"

    def check(self, sentences: Iterator[TreeSentence], where: str) -> None:
        """An error where the beginning of a file lacks a column that the parser has learnt to look at."""
        first: list[TreeSentence] = []
        words = 0
        for sentence in sentences:
            first.append(sentence)
            words += len(sentence.forms)
            if words >= _ENOUGH:
                break
        if self._lacks_tags(first):
            raise DataError(
                f"{where}, line {first[0].line}: {self.path} needs UPOS or XPOS, as in the files it"
                f" was trained on, and none of the first {words:,} words has one"
            )

    def parse(self, sentences: list[TreeSentence], *, confidences: bool = False) -> list[Parse]:
        """Trees of sentences."""
        return self.parser.parse(sentences, self.decoding, confidences=confidences)

    def parts(self, file: IO[bytes], path: Path, where: str) -> Iterator[Part]:
        """Sentences with HEAD and DEPREL; text becomes CoNLL-U."""
        text = self.text_chunks(file, path, where, "CoNLL-U", _has_no_tabs)
        if text is None:
            several = self._checked(iter_conllu(file, where, trees=False), where)
        else:
            self._check_text()
            several = map(self._tagged, text)
        for sentences in several:
            parses = self.parse(sentences, confidences=self.options.probabilities)
            written = "".join(map(_written, sentences, parses))
            words = sum(len(sentence.forms) for sentence in sentences)
            yield Part(written.encode(), len(sentences), words)

    def _checked(
        self, parts: Iterator[list[TreeSentence]], where: str
    ) -> Iterator[list[TreeSentence]]:
        """The same parts, of which the first ones are held back until they have words enough: how a file is cut must not matter."""
        held: list[list[TreeSentence]] = []
        words = 0
        for part in parts:
            held.append(part)
            words += sum(len(sentence.forms) for sentence in part)
            if words >= _ENOUGH:
                break
        self.check(chain.from_iterable(held), where)
        yield from held
        yield from parts

    def _tagged(self, chunk: Chunk) -> list[TreeSentence]:
        """Words as sentences without trees, with parts of speech if there is a tagger."""
        words = [block.columns[0] for block in chunk.blocks]
        tags = self.pos_tagger.label(words) if self.pos_tagger is not None and words else words
        column = self._tagged_column()
        sentences = []
        for forms, labels in zip(words, tags, strict=True):
            tagged: dict[str, Any] = {column: tuple(labels)} if column else {}
            sentences.append(dataclasses.replace(_bare(forms), **tagged))
        return sentences

    def score(self, gold: Gold) -> Scores:
        """Scores of the parser's trees."""
        self.check(iter(gold.sentences), str(gold.path))
        found = []
        with progress_bars() as watch:
            watcher = watch(str(gold.path), unit="sentences")
            for some in watcher.batches(gold.sentences, _AT_A_TIME):
                found += self.parse(list(some))
        labelled = gold.labelled and bool(self.parser.relations)
        relations = [parse.relations for parse in found] if labelled else None
        return _scores(gold, [parse.heads for parse in found], relations)


load = FileParser


def _bare(words: tuple[str, ...]) -> TreeSentence:
    nothing = (_NOTHING,) * len(words)
    return TreeSentence(words, nothing, nothing, nothing, nothing)


def _has_no_tabs(lines: Sequence[str]) -> bool:
    words = [line for line in lines if line.strip() and not line.startswith("#")]
    return bool(words) and not any("\t" in line for line in words)


def _written(sentence: TreeSentence, parse: Parse) -> str:
    # a relation that stands there already is one to another head, so it goes even if the parser knows no relations
    relations = parse.relations or [_NOTHING] * len(sentence.forms)
    misc = [f"p={confidence:.4f}" for confidence in parse.confidences] or None
    return sentence.text(parse.heads, relations, misc)


# --- softq evaluate -------------------------------------------------------------------------------------


class Gold(NamedTuple):
    """A file of true trees."""

    path: Path
    sentences: list[TreeSentence]

    @property
    def labelled(self) -> bool:
        """Whether sentences have relations, of which all have some or none has."""
        return any(sentence.relations for sentence in self.sentences)

    @property
    def sizes(self) -> dict[str, int]:
        """How much it is."""
        words = sum(len(sentence.forms) for sentence in self.sentences)
        return {"sentences": len(self.sentences), "words": words}

    @property
    def heading(self) -> str:
        """The same for people."""
        return f"{self.path}: {self.sizes['sentences']:,} sentences, {self.sizes['words']:,} words"


def read_gold(files: Sequence[Path], _options: Options, models: Sequence[FileParser]) -> Gold:
    """A file of true trees."""
    return _read_trees(only_file(files, models))


def _read_trees(path: Path) -> Gold:
    gold = Gold(path, read_conllu(path, trees=None))
    for sentence in gold.sentences:
        if not sentence.heads:
            raise DataError(
                f"{_place(path, sentence)}: expected a sentence with its tree, got _ as the HEAD of"
                " every word"
            )
        if not sentence.relations and gold.labelled:
            raise DataError(
                f"{_place(path, sentence)}: expected relations in all sentences or in none, got _"
                " as the DEPREL of every word, and others with them"
            )
    return gold


def _place(path: Path, sentence: TreeSentence) -> str:
    return (
        f"{path}, line"
        f" {sentence.line}{f' (sentence {sentence.sent_id})' if sentence.sent_id else ''}"
    )


def score_predictions(predictions: Path, files: Sequence[Path], _options: Options) -> Scores:
    """Scores of the trees of one file by those of another, as in the shared task of CoNLL 2018 where the words are not the same."""
    if len(files) != 1:
        raise DataError(
            f"{predictions} holds trees: expected the file of the true ones and nothing else, as in"
            " softq evaluate --predictions SYSTEM.conllu GOLD.conllu"
        )
    gold, system = _read_trees(files[0]), _read_trees(predictions)
    of = {"predictions": str(predictions)}
    if [sentence.forms for sentence in gold.sentences] != [
        sentence.forms for sentence in system.sentences
    ]:
        return _aligned_scores(gold, system, of)
    labelled = gold.labelled and system.labelled
    relations = [sentence.relations for sentence in system.sentences] if labelled else None
    return _scores(gold, [sentence.heads for sentence in system.sentences], relations, of)


def _scores(
    gold: Gold,
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]] | None,
    facts: dict[str, Any] | None = None,
) -> Scores:
    """Scores of heads and relations of the same words; None where one side has no relations."""
    rows = attachment_statistics(gold.sentences, heads, relations)
    by_relation, by_arc = tree_classes(gold.sentences, heads, relations)
    by_length = length_classes(gold.sentences, rows)
    overall = {name: float(metric(rows.sum(0))) for name, metric in ATTACHMENT_METRICS.items()}
    shown = ("uas", "las", "exact_match")
    lengths = [
        (
            name,
            *("" if math.isnan(row[score]) else f"{row[score]:.4f}" for score in shown),
            *(f"{row[size]:,}" for size in ("sentences", "words")),
        )
        for name, row in by_length.items()
    ]
    tables = [score_table(overall, _TITLES)]
    if by_relation:
        tables.append(kind_table("head and relation, by relation", by_relation))
    tables.append(kind_table("head, by length of the arc", by_arc))
    titles = ("words of the sentence", "UAS", "LAS", "exact match", "sentences", "words")
    tables.append(make_table(titles, lengths))
    details = {
        "relations": {name: row._asdict() for name, row in by_relation.items()},
        "arc_lengths": {name: row._asdict() for name, row in by_arc.items()},
        "sentence_lengths": {
            name: {key: number(value) for key, value in row.items()}
            for name, row in by_length.items()
        },
    }
    about = {"file": str(gold.path), **(facts or {}), **gold.sizes}
    return Scores(rows, ATTACHMENT_METRICS, _TITLES, about, gold.heading, details, tables)


def _aligned_scores(gold: Gold, system: Gold, facts: dict[str, Any]) -> Scores:
    """Scores where the words of both files differ: precision, recall and F1 of those that align."""
    try:
        aligned = align_score(gold.sentences, system.sentences)
    except DataError as error:
        raise DataError(f"{gold.path} and {system.path}: {error}") from None
    scores = {name: getattr(aligned, name) for name in ("words", "uas", "las", "clas")}
    rows = [
        (_TITLES.get(name, name), *(f"{value:.4f}" for value in row))
        for name, row in scores.items()
        if row is not None
    ]
    predicted = {f"predicted_{name}": count for name, count in system.sizes.items()}
    details = {name: scores[name] and scores[name].f1 for name in ("uas", "las", "clas")}
    details["aligned"] = {name: row and row._asdict() for name, row in scores.items()}
    titles = ("words differ: those that align", "precision", "recall", "F1")
    return Scores(
        Tensor(),
        {},
        _TITLES,
        {"file": str(gold.path), **facts, **gold.sizes, **predicted},
        f"{gold.heading}\n{system.heading}",
        details,
        [make_table(titles, rows)],
    )


def tree_classes(
    gold: Sequence[TreeSentence],
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]] | None,
) -> tuple[dict[str, KindScores], dict[str, KindScores]]:
    """Scores of head and relation by the relation up to its first ``:``, and of heads by the length of the arc."""
    true_heads = [head for sentence in gold for head in sentence.heads]
    guessed_heads = [head for tree in heads for head in tree]
    right = [true == guess for true, guess in zip(true_heads, guessed_heads, strict=True)]
    by_relation: dict[str, KindScores] = {}
    if relations is not None:
        true = [universal(name) for sentence in gold for name in sentence.relations]
        guessed = [universal(name) for names in relations for name in names]
        by_relation = _by_class(true, guessed, right, sorted({*true, *guessed}))
    places = [place for sentence in gold for place in range(1, len(sentence.forms) + 1)]
    true_arcs, guessed_arcs = (
        [
            _class_of(abs(head - place), _ARC_LENGTHS) if head else _ROOT
            for head, place in zip(side, places, strict=True)
        ]
        for side in (true_heads, guessed_heads)
    )
    names = (_ROOT, *_classes(_ARC_LENGTHS))
    return by_relation, _by_class(true_arcs, guessed_arcs, right, names)


@cache
def _classes(ends: tuple[int, ...]) -> tuple[str, ...]:
    """Names of classes of numbers from 1, by the last number of each class but the last.

    >>> _classes((1, 2, 5))
    ('1', '2', '3-5', '6+')
    """
    starts = (1, *(end + 1 for end in ends))
    names = (
        f"{start}" if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=False)
    )
    return (*names, f"{starts[-1]}+")


def _class_of(value: int, ends: tuple[int, ...]) -> str:
    return _classes(ends)[sum(value > end for end in ends)]


def _by_class(
    true: Sequence[str], guessed: Sequence[str], right: Sequence[bool], names: Sequence[str]
) -> dict[str, KindScores]:
    """Scores of each class that occurs, from the classes of gold and predicted arcs and whether their heads are the same."""
    both = Counter(
        kind
        for kind, guess, same in zip(true, guessed, right, strict=True)
        if same and kind == guess
    )
    gold, predicted = Counter(true), Counter(guessed)
    found = {}
    for name in names:
        sizes = predicted[name], gold[name]
        if any(sizes):
            precision, recall, f1 = (both[name] / max(1, size) for size in (*sizes, sum(sizes) / 2))
            found[name] = KindScores(precision, recall, f1, *sizes)
    return found


def length_classes(gold: Sequence[TreeSentence], rows: Tensor) -> dict[str, dict[str, float]]:
    """UAS, LAS and exact match by the number of words, with the numbers of sentences and words."""
    kinds = [_class_of(len(sentence.forms), _SENTENCE_LENGTHS) for sentence in gold]
    found = {}
    for name in _classes(_SENTENCE_LENGTHS):
        members = [place for place, kind in enumerate(kinds) if kind == name]
        if members:
            sums = rows[members].sum(0)
            scores = {
                metric: float(ATTACHMENT_METRICS[metric](sums))
                for metric in ("uas", "las", "exact_match")
            }
            found[name] = {"sentences": len(members), "words": int(sums[0]), **scores}
    return found


# --- softq data -----------------------------------------------------------------------------------------

recognise = is_conllu


def count(paths: Sequence[Path], _options: Options) -> Iterator[dict[str, Any]]:
    """All numbers of each file, as they go to JSON; those of trees are None in a file without, and of sentences with trees elsewhere."""
    for path in paths:
        sentences = read_conllu(path, trees=None)
        lengths = [len(sentence.forms) for sentence in sentences]
        trees = [sentence.heads for sentence in sentences if sentence.heads]
        crossing = list(map(crossing_arcs, trees))
        nonprojective = sum(arcs > 0 for arcs in crossing)
        arcs = [
            abs(head - word) for heads in trees for word, head in enumerate(heads, start=1) if head
        ]
        depths = list(map(tree_depth, trees))
        of_trees = {
            "nonprojective_sentences": nonprojective,
            "nonprojective_arcs": sum(crossing),
            "nonprojective_sentence_share": nonprojective / max(1, len(trees)),
            "nonprojective_arc_share": sum(crossing) / max(1, sum(map(len, trees))),
            "mean_arc_length": sum(arcs) / len(arcs) if arcs else None,
            "mean_depth": sum(depths) / max(1, len(depths)),
            "deepest": max(depths, default=0),
        }
        yield {
            "path": str(path),
            "format": "conllu",
            "sentences": len(sentences),
            "words": sum(lengths),
            "multiword_tokens": sum(len(sentence.multiword_tokens()) for sentence in sentences),
            "empty_nodes": sum(sentence.empty_nodes() for sentence in sentences),
            "distinct_words": len({form for sentence in sentences for form in sentence.forms}),
            "mean_length": sum(lengths) / len(sentences),
            "longest": max(lengths),
            "trees": len(trees),
            **(of_trees if trees else dict.fromkeys(of_trees)),
            "relations": _counted(sentence.relations for sentence in sentences),
            "upos": _counted(sentence.upos for sentence in sentences),
        }


def _counted(columns: Iterator[tuple[str, ...]]) -> dict[str, int]:
    return dict(sorted(Counter(chain.from_iterable(columns)).items()))


def show(file: dict[str, Any]) -> Table:
    """The numbers of `count` as a table."""
    rows: list[Sequence[str]] = [
        (name.replace("multiword", "multi-word").replace("_", " "), f"{file[name]:,}")
        for name in ("sentences", "words", "multiword_tokens", "empty_nodes", "distinct_words")
    ]
    rows += [
        ("words per sentence, mean", f"{file['mean_length']:.2f}"),
        ("words of the longest sentence", f"{file['longest']:,}"),
        (),
        ("trees", f"{file['trees']:,}"),
    ]
    if file["trees"]:
        length = file["mean_arc_length"]
        rows += [
            (
                f"non-projective {key}s",
                f"{file[f'nonprojective_{key}s']:,}",
                f"{file[f'nonprojective_{key}_share']:.2%}",
            )
            for key in ("sentence", "arc")
        ]
        rows += [
            ("arc length, mean", "undefined" if length is None else f"{length:.2f}"),
            ("depth, mean", f"{file['mean_depth']:.2f}"),
            ("depth of the deepest tree", f"{file['deepest']:,}"),
        ]
    for name, title in (("relations", "relations"), ("upos", "parts of speech")):
        if file[name]:
            rows += count_rows(title, file[name])
    return make_table(("", "", ""), rows)


def check(paths: Sequence[Path], _options: Options) -> dict[Path, list[Fault]]:
    """Every fault of each file."""
    return {path: check_conllu(path) for path in paths}
