"""Dependency parsers, and files of trees (CoNLL-U): how they are read, parsed, scored, counted and checked."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, get_args

from rich.table import Table
from torch import Tensor

from softq.cli.kinds import Options, find_model
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
from softq.cli.kinds.tagger import load_pos_tagger
from softq.cli.shared import make_table, number
from softq.errors import DataError
from softq.formats.chunks import Chunk
from softq.formats.conllu import TreeSentence, check_conllu, is_conllu, iter_conllu, read_conllu
from softq.formats.text import Fault, file_type
from softq.formats.trees import crossing_arcs, tree_depth
from softq.linear.features import lacks_tags
from softq.linear.parser import DependencyParser
from softq.linear.parsing import Decoding, Parse, Parser
from softq.metrics import (
    ATTACHMENT_METRICS,
    KindScores,
    align_score,
    attachment_statistics,
)
from softq.metrics.attachment import universal
from softq.neural.parsing import NeuralParser

_NEURAL = {
    "softq parser neural ": "softq.neural.parser:BiaffineParser",
    "softq parser transformers ": "softq.integrations.transformers.saved:TransformersParser",
}
_NOTHING = "_"
_ENOUGH = 1000  # words that tell which columns a file has
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
# classes of lengths by the longest of each; an arc from the root has no length
_ARC_LENGTHS = {0: "root", 1: "1", 2: "2", 5: "3-5", 10: "6-10", 20: "11-20", math.inf: "21+"}
_SENTENCE_LENGTHS = {
    5: "1-5", 10: "6-10", 20: "11-20", 30: "21-30", 40: "31-40", math.inf: "41+"
}  # fmt: skip
_OF_LENGTHS = ("uas", "las", "exact_match")  # scores by length of the sentence


class FileParser(Predictor):
    """A parser, and how it decodes."""

    decoding: Decoding
    reads = "CoNLL-U"

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        file = find_model(path)
        neural: NeuralParser | None = open_neural(file, _NEURAL)
        self.parser: Parser | NeuralParser
        if neural is None:
            model = DependencyParser.load(file)
            self.parser, own = model.parser_, model.decoding
        else:
            self.parser, own = neural, neural.decoding
        self.decoding = self.choose_decoding(own, get_args(Decoding), "parser")
        self.pos_tagger = load_pos_tagger(options)

    def check_files(self, files: Sequence[Path]) -> None:
        """CoNLL-X has no place for probabilities; text that is asked for must be enough for the parser."""
        super().check_files(files)
        columns = not (self.options.text or self.options.plain)
        for path in files:
            if columns and self.options.probabilities and file_type(path) == ".conllx":
                raise DataError(
                    f"{path} is CoNLL-X by its name, whose last column is PDEPREL, and"
                    " --probabilities writes into MISC, which CoNLL-U has there: leave"
                    " --probabilities out, or give CoNLL-U"
                )

    def needs_tags(self) -> str:
        """Words alone tell whether they are enough."""
        return "UPOS or XPOS" if self._lacks_tags([_bare(("word",))]) else ""

    def _lacks_tags(self, sentences: list[TreeSentence]) -> bool:
        if isinstance(self.parser, NeuralParser):
            return self.parser.lacks_tags(sentences)
        return lacks_tags(self.parser.index, sentences, relations=bool(self.parser.relations))

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """Sentences with HEAD and DEPREL; text becomes CoNLL-U."""
        text = self.text_chunks(file, path, where, _has_no_tabs)
        several = (
            self._checked(iter_conllu(file, where, trees=False), where)
            if text is None
            else map(self._tagged, text)
        )
        for sentences in several:
            parses = self.parser.parse(
                sentences, self.decoding, confidences=self.options.probabilities
            )
            written = "".join(map(_written, sentences, parses))
            yield PredictedPart(written.encode(), len(sentences), _words_of(sentences))

    def _checked(
        self, parts: Iterator[list[TreeSentence]], where: str
    ) -> Iterator[list[TreeSentence]]:
        """The same parts, unless the first words of a file lack a column that the parser has learnt to look at.

        The first parts are held back until they have words enough: how a file is cut must not matter.
        """
        held: list[list[TreeSentence]] = []
        while sum(map(_words_of, held)) < _ENOUGH and (part := next(parts, None)) is not None:
            held.append(part)
        sentences = list(chain.from_iterable(held))
        before = accumulate((len(sentence.forms) for sentence in sentences), initial=0)
        first = [one for one, words in zip(sentences, before, strict=False) if words < _ENOUGH]
        if self._lacks_tags(first):
            raise DataError(
                f"{where}, line {first[0].line}: {self.path} needs UPOS or XPOS, as in the files it"
                f" was trained on, and none of the first {_words_of(first):,} words has one"
            )
        yield from chain(held, parts)

    def _tagged(self, chunk: Chunk) -> list[TreeSentence]:
        """Words as sentences without trees, with parts of speech if there is a tagger."""
        words = [block.columns[0] for block in chunk.blocks]
        if self.pos_tagger is None or not words:
            return list(map(_bare, words))
        column = "upos" if _UNIVERSAL.issuperset(self.pos_tagger.tagger.labels) else "xpos"
        return [
            _bare(forms, **{column: tuple(labels)})
            for forms, labels in zip(words, self.pos_tagger.label(words), strict=True)
        ]

    def parse_sentences(self, path: Path, sentences: Sequence[TreeSentence]) -> list[Parse]:
        """Trees of the sentences of a file."""
        parts = self._checked(([sentence] for sentence in sentences), str(path))
        found: list[Parse] = []
        for some in in_batches(list(chain.from_iterable(parts)), path, "sentences"):
            found += self.parser.parse(list(some), self.decoding)
        return found


load = FileParser


def _words_of(sentences: Iterable[TreeSentence]) -> int:
    return sum(len(sentence.forms) for sentence in sentences)


def _bare(words: tuple[str, ...], **columns: Any) -> TreeSentence:
    nothing = (_NOTHING,) * len(words)
    sentence = TreeSentence(words, nothing, nothing, nothing, nothing)
    return dataclasses.replace(sentence, **columns)


def _has_no_tabs(lines: Sequence[str]) -> bool:
    words = [line for line in lines if line.strip() and not line.startswith("#")]
    return bool(words) and not any("\t" in line for line in words)


def _written(sentence: TreeSentence, parse: Parse) -> str:
    # a relation that stands there already is one to another head, so it goes even if the parser knows no relations
    relations = parse.relations or [_NOTHING] * len(sentence.forms)
    misc = [f"p={confidence:.4f}" for confidence in parse.confidences] or None
    return sentence.text(parse.heads, relations, misc)


# --- softq evaluate -------------------------------------------------------------------------------------


def score_models(
    files: Sequence[Path], _options: Options, models: Sequence[FileParser]
) -> list[Scores]:
    """Scores of trees by those of one file."""
    path = only_file(files, models)
    gold = _read_trees(path)
    return [_scores(path, gold, one.parse_sentences(path, gold)) for one in models]


def _read_trees(path: Path) -> list[TreeSentence]:
    sentences = read_conllu(path, trees=None)
    labelled = any(sentence.relations for sentence in sentences)
    for sentence in sentences:
        if not sentence.heads:
            raise DataError(
                f"{_place(path, sentence)}: expected a sentence with its tree, got _ as the HEAD of"
                " every word"
            )
        if not sentence.relations and labelled:
            raise DataError(
                f"{_place(path, sentence)}: expected relations in all sentences or in none, got _"
                " as the DEPREL of every word, and others with them"
            )
    return sentences


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
    facts = {"predictions": str(predictions)}
    if [sentence.forms for sentence in gold] == [sentence.forms for sentence in system]:
        return _scores(files[0], gold, system, facts)
    return _aligned_scores({files[0]: gold, predictions: system}, facts)


def _sizes(sentences: Sequence[TreeSentence]) -> dict[str, int]:
    return {"sentences": len(sentences), "words": _words_of(sentences)}


def _scores(
    path: Path,
    gold: Sequence[TreeSentence],
    found: Sequence[Parse] | Sequence[TreeSentence],
    facts: Mapping[str, Any] | None = None,
) -> Scores:
    """Scores of trees of the same words; of heads alone where one side has no relations."""
    heads = [one.heads for one in found]
    names = [one.relations for one in found]
    labelled = any(names) and any(sentence.relations for sentence in gold)
    relations = names if labelled else None
    rows = attachment_statistics(gold, heads, relations)
    by_relation, by_arc = _by_relation_and_arc(gold, heads, relations)
    by_length, sizes = _by_length(gold, rows), _sizes(gold)
    return Scores(
        rows,
        ATTACHMENT_METRICS,
        _TITLES,
        {"file": str(path), **(facts or {}), **sizes},
        heading(str(path), sizes),
        details={
            "relations": {name: row._asdict() for name, row in by_relation.items()},
            "arc_lengths": {name: row._asdict() for name, row in by_arc.items()},
            "sentence_lengths": {
                name: {key: number(value) for key, value in row.items()}
                for name, row in by_length.items()
            },
        },
        tables=[
            *([kind_table("head and relation, by relation", by_relation)] if by_relation else []),
            kind_table("head, by length of the arc", by_arc),
            _length_table(by_length),
        ],
    )


def _aligned_scores(
    files: Mapping[Path, Sequence[TreeSentence]], facts: Mapping[str, Any]
) -> Scores:
    """Scores of the second of two files by the first, whose words differ: precision, recall and F1 of those that align."""
    (path, gold), (predictions, system) = files.items()
    try:
        scores = align_score(gold, system)._asdict()
    except DataError as error:
        raise DataError(f"{path} and {predictions}: {error}") from None
    details = {name: row and row.f1 for name, row in scores.items() if name != "words"}
    details["aligned"] = {name: row and row._asdict() for name, row in scores.items()}
    predicted = {f"predicted_{name}": count for name, count in _sizes(system).items()}
    titled = {_TITLES.get(name, name): row for name, row in scores.items() if row is not None}
    return Scores(
        Tensor(),
        {},
        _TITLES,
        {"file": str(path), **facts, **_sizes(gold), **predicted},
        "\n".join(heading(str(file), _sizes(sentences)) for file, sentences in files.items()),
        details,
        further=None,
        tables=[kind_table("words differ: those that align", titled)],
    )


def _by_relation_and_arc(
    gold: Sequence[TreeSentence],
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]] | None,
) -> tuple[dict[str, KindScores], dict[str, KindScores]]:
    """Scores of head and relation by the relation up to its first ``:``, and of heads by the length of the arc."""
    words = [
        (place, head, guess)
        for sentence, guesses in zip(gold, heads, strict=True)
        for place, (head, guess) in enumerate(zip(sentence.heads, guesses, strict=True), 1)
    ]
    right = [head == guess for _, head, guess in words]
    true = [_arc_class(place, head) for place, head, _ in words]
    guessed = [_arc_class(place, guess) for place, _, guess in words]
    by_arc = _by_class(true, guessed, right, _ARC_LENGTHS.values())
    if relations is None:
        return {}, by_arc
    true = [universal(name) for sentence in gold for name in sentence.relations]
    guessed = list(map(universal, chain.from_iterable(relations)))
    return _by_class(true, guessed, right, sorted({*true, *guessed})), by_arc


def _arc_class(place: int, head: int) -> str:
    return _class_of(abs(head - place) if head else 0, _ARC_LENGTHS)


def _class_of(value: int, classes: dict[float, str]) -> str:
    return next(name for longest, name in classes.items() if value <= longest)


def _by_class(
    true: Sequence[str], guessed: Sequence[str], right: Sequence[bool], names: Iterable[str]
) -> dict[str, KindScores]:
    """Scores of each class that occurs, from the classes of gold and predicted arcs and whether their heads are the same."""
    pairs = zip(true, guessed, right, strict=True)
    both = Counter(kind for kind, guess, same in pairs if same and kind == guess)
    gold, predicted = Counter(true), Counter(guessed)
    return {
        name: KindScores.of(both[name], predicted[name], gold[name])
        for name in names
        if gold[name] or predicted[name]
    }


def _length_table(by_length: Mapping[str, Mapping[str, float]]) -> Table:
    titles = ("words of the sentence", "UAS", "LAS", "exact match", "sentences", "words")
    rows = [
        (
            name,
            *("" if math.isnan(row[score]) else f"{row[score]:.4f}" for score in _OF_LENGTHS),
            *(f"{row[size]:,}" for size in ("sentences", "words")),
        )
        for name, row in by_length.items()
    ]
    return make_table(titles, rows)


def _by_length(gold: Sequence[TreeSentence], rows: Tensor) -> dict[str, dict[str, float]]:
    """UAS, LAS and exact match by the number of words, with the numbers of sentences and words."""
    members: dict[str, list[int]] = {name: [] for name in _SENTENCE_LENGTHS.values()}
    for place, sentence in enumerate(gold):
        members[_class_of(len(sentence.forms), _SENTENCE_LENGTHS)].append(place)
    sums = {name: rows[places].sum(0) for name, places in members.items() if places}
    return {
        name: {"sentences": len(members[name]), "words": int(of_class[0])}
        | {metric: float(ATTACHMENT_METRICS[metric](of_class)) for metric in _OF_LENGTHS}
        for name, of_class in sums.items()
    }


# --- softq data -----------------------------------------------------------------------------------------

recognise = is_conllu
_SIZES = {
    "sentences": "sentences",
    "words": "words",
    "multiword_tokens": "multi-word tokens",
    "empty_nodes": "empty nodes",
    "distinct_words": "distinct words",
    "mean_length": "words per sentence, mean",
    "longest": "words of the longest sentence",
}
_TREE_FACTS = (
    "nonprojective_sentences",
    "nonprojective_arcs",
    "nonprojective_sentence_share",
    "nonprojective_arc_share",
    "mean_arc_length",
    "mean_depth",
    "deepest",
)
_OF_TREES = {
    "mean_arc_length": "arc length, mean",
    "mean_depth": "depth, mean",
    "deepest": "depth of the deepest tree",
}


def count(paths: Sequence[Path], _options: Options) -> Iterator[dict[str, Any]]:
    """All numbers of each file, as they go to JSON; those of trees are None in a file without, and of sentences with trees elsewhere."""
    for path in paths:
        sentences = read_conllu(path, trees=None)
        lengths = [len(sentence.forms) for sentence in sentences]
        trees = [sentence.heads for sentence in sentences if sentence.heads]
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
            **(_count_trees(trees) if trees else dict.fromkeys(_TREE_FACTS)),
            "relations": counted(name for sentence in sentences for name in sentence.relations),
            "upos": counted(name for sentence in sentences for name in sentence.upos),
        }


def _count_trees(trees: Sequence[Sequence[int]]) -> dict[str, float | None]:
    crossing, depths = list(map(crossing_arcs, trees)), list(map(tree_depth, trees))
    nonprojective = sum(arcs > 0 for arcs in crossing)
    lengths = [
        abs(head - word) for heads in trees for word, head in enumerate(heads, start=1) if head
    ]
    found = (
        nonprojective,
        sum(crossing),
        nonprojective / len(trees),
        sum(crossing) / sum(map(len, trees)),
        sum(lengths) / len(lengths) if lengths else None,
        sum(depths) / len(depths),
        max(depths),
    )
    return dict(zip(_TREE_FACTS, found, strict=True))


def show(file: dict[str, Any]) -> Table:
    """The numbers of `count` as a table."""
    rows = [*fact_rows(_SIZES, file), (), *fact_rows({"trees": "trees"}, file)]
    if file["trees"]:
        rows += [
            (
                f"non-projective {key}s",
                f"{file[f'nonprojective_{key}s']:,}",
                f"{file[f'nonprojective_{key}_share']:.2%}",
            )
            for key in ("sentence", "arc")
        ]
        rows += fact_rows(_OF_TREES, file)
    for name, title in (("relations", "relations"), ("upos", "parts of speech")):
        if file[name]:
            rows += count_rows(title, file[name])
    return make_table(("", "", ""), rows)


def check(paths: Sequence[Path], _options: Options) -> dict[Path, list[Fault]]:
    """Every fault of each file."""
    return {path: check_conllu(path) for path in paths}
