"""Translators, and files of sentences with translations: how they are read, translated, scored, counted and checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from itertools import count as numbers_from
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from softq.cli.kinds import Method, Options, find_model
from softq.cli.kinds.base import (
    PredictedPart,
    Predictor,
    Scores,
    bare_words,
    fact_rows,
    heading,
    in_batches,
    size_rows,
    sizes_of,
    word_counts,
)
from softq.cli.options import flag
from softq.cli.shared import make_table
from softq.errors import DataError, DependencyError
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.captions import Captions
from softq.formats.file_checks import one_of
from softq.formats.rows import read_rows as read_columns
from softq.formats.text import (
    Fault,
    file_type,
    opened,
    read_lines,
    read_parts,
    refuse,
)
from softq.lab.processes import find_device
from softq.lab.tasks.lm_data import is_jsonl, read_rows
from softq.metrics import TRANSLATION_METRICS, sacre_bleu, translation_statistics
from softq.neural.generation import GeneratedText
from softq.neural.perplexity import perplexity
from softq.neural.text_generator import TextGenerator
from softq.rewards import named_reward
from softq.rewards.names import SHORT_NAMES

_BLOCK = 1 << 16  # bytes that are read at a time, if so many are there
_LONGEST = 5000  # characters of a line: the time and memory of a search grow with them
MBR_REWARDS = ("bleu", "rouge", "edit")  # of mbr; chrF needs words
_OF_METHOD = {  # options that some methods alone take
    "beam": ("beam",),
    "samples": ("mbr",),
    "reward": ("mbr",),
    "seed": ("sample", "mbr"),
    "temperature": ("sample", "mbr"),
    "top_p": ("sample", "mbr"),
    "length_penalty": ("beam",),
}
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 < value < math.inf, "a positive number"),
    "top_p": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
    "length_penalty": (lambda value: 0 <= value < math.inf, "a number from 0"),
}
_SAMPLING = ("sample", "mbr")
TITLES = {
    "sentence_bleu": "sentence BLEU",
    "corpus_bleu": "corpus BLEU",
    "average_reward": "average reward",
    "exact_match": "exact match",
    "length_ratio": "length ratio",
}
PlainWords = Callable[[str], list[str]]


def search_options(options: Options) -> dict[str, Any]:
    """Arguments of `softq.neural.generation.DecodingOptions` but the reward; options that do not go together are an error."""
    method = options.method or "beam"
    for name, methods in _OF_METHOD.items():
        if getattr(options, name) is not None and method not in methods:
            raise DataError(
                f"{flag(name)} is for --method {' or '.join(methods)}, got --method {method}"
            )
    for name, (allowed, expected) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not allowed(value):
            raise DataError(f"{flag(name)} must be {expected}, got {value}")
    given = {name: getattr(options, name) for name in ("beam", "samples", *_RANGES)}
    return {"method": method} | {name: value for name, value in given.items() if value is not None}


def for_two_methods(options: Options, other: Method) -> tuple[Options, Options]:
    """Options of two searches, by the method and by another, each with those it takes; what neither takes stays, to be refused."""
    methods = (options.method or "beam", other)
    taken = {name for name, allowed in _OF_METHOD.items() if {*methods} & {*allowed}}

    def of(method: Method) -> Options:
        others: dict[str, Any] = {name: None for name in taken if method not in _OF_METHOD[name]}
        return dataclasses.replace(options, method=method, **others)

    return of(methods[0]), of(other)


def line_generator(seed: int, number: int) -> torch.Generator:
    """What the samples for a line come from, which follows from the seed and the line's number alone."""
    (mixed,) = np.random.SeedSequence(seed % 2**64, spawn_key=(number,)).generate_state(
        1, np.uint64
    )
    return torch.Generator().manual_seed(int(mixed))


class SentenceWriter(Predictor):
    """A model of sentences, and how it searches; on a GPU if there is one."""

    kind: str

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        self.search = search_options(options)
        if options.reward is not None:
            name = one_of("--reward", options.reward, MBR_REWARDS)
            name = SHORT_NAMES.get(name, name)
            self.search["reward"] = named_reward(name)
        self.model = TextGenerator.load(find_model(path), self.kind).to(find_device("auto"))
        beam = self.search.get("beam", self.model.decoding.beam)
        method = self.search["method"]
        self.decoding = f"beam of {beam}" if method == "beam" else method
        # samples for an input are the same in whatever parts inputs come
        self._numbers = numbers_from(1)

    def generate(self, inputs: Any) -> list[GeneratedText]:
        """Texts for sources or features of images, which follow those of the calls before."""
        search = self.search
        if search["method"] in _SAMPLING:
            seed = self.options.seed or 0
            own = [line_generator(seed, next(self._numbers)) for _ in range(len(inputs))]
            search = search | {"generator": own}
        return self.model.generate(inputs, **search)

    def part(
        self, found: Sequence[GeneratedText], names: Sequence[str] | None = None
    ) -> PredictedPart:
        """Lines of the output: a name if there are names, the text, and its log-probability if it is asked for."""
        lines = []
        for number, text in enumerate(found):
            columns = [*([] if names is None else [names[number]]), text.text]
            columns += [f"{text.log_prob:.4f}"] * self.options.probabilities
            lines.append("\t".join(columns) + "\n")
        return PredictedPart(
            "".join(lines).encode(), len(found), sum(len(text.words) for text in found)
        )


class FileTranslator(SentenceWriter):
    """A translator and how it searches."""

    kind = "translator"

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """A translation for each line; an empty line stays one."""
        lines = numbers_from(1)
        for texts in read_as_they_come(file, where):
            for text, number in zip(texts, lines, strict=False):
                if len(text) > _LONGEST:
                    raise DataError(
                        f"{where}, line {number}: expected a sentence of at most {_LONGEST:,}"
                        f" characters, got {len(text):,}: split it into sentences, one per line"
                    )
            yield self.part(self.generate(texts))


load = FileTranslator


def read_as_they_come(file: IO[bytes], where: str) -> Iterator[list[str]]:
    """Lines of a file or a pipe, as many as are there: whoever writes line by line is answered line by line."""
    for part in read_parts(file, where, _BLOCK, sentences=False, strict=False):
        refuse(where, part.faults)
        yield [line.strip() for line in part.lines]


# --- softq evaluate -------------------------------------------------------------------------------------


def score_models(
    files: Sequence[Path], _options: Options, models: Sequence[FileTranslator]
) -> list[Scores]:
    """Scores of translations of the sources of one file, or of files that belong together."""
    gold = read_bitext(*files)
    hint = (
        "translate with softq predict, and score with softq evaluate --predictions A REF"
        " --against B"
    )
    check_same_words(models, gold, gold.references, hint)
    scored = []
    for one in models:
        found = [
            text
            for some in in_batches(gold.sources, gold.name, "sentences")
            for text in one.generate(some)
        ]
        words, texts = [text.words for text in found], [text.text for text in found]
        facts = {"files": list(map(str, files)), "decoding": one.decoding}
        examples = one.model.examples(gold.sources, gold.references)
        reached = perplexity(one.model.model, examples)
        plain = one.model.vocabulary.plain
        scored.append(_scores(words, texts, gold.references, plain, facts, reached))
    return scored


def check_same_words(
    models: Sequence[SentenceWriter],
    gold: Bitext | Captions,
    references: list[list[str]],
    hint: str,
) -> None:
    """An error if models count the words of references differently, which makes their scores incomparable."""
    plains = [one.model.vocabulary.plain for one in models]
    for number, several in enumerate(references):
        for text in several:
            if any(plain(text) != plains[0](text) for plain in plains[1:]):
                raise DataError(
                    f"{gold.place(number)}: {models[0].path} and {models[1].path} count words"
                    f" differently (tokenizer, lowercase): {hint}"
                )


def score_predictions(predictions: Path, files: Sequence[Path], options: Options) -> Scores:
    """Scores of lines of text by lines of one or several files of references."""
    references = _read_references(files, predictions)
    texts = [line.strip() for line in read_lines(predictions)]
    if len(texts) != len(references):
        raise DataError(
            f"expected files whose lines belong together, got {predictions} with {len(texts)} lines"
            f" and {files[0]} with {len(references)}"
        )
    plain = str.split if options.tokenizer == "space" else bare_words
    facts = {"files": list(map(str, files)), "predictions": str(predictions)}
    return _scores([known_words(text, plain) for text in texts], texts, references, plain, facts)


def known_words(text: str, plain: PlainWords) -> list[str]:
    """Words of a prediction, in which ``<unk>`` is one word, whatever its spelling would be split into."""
    first, *others = text.split("<unk>")
    return plain(first) + [word for stretch in others for word in ("<unk>", *plain(stretch))]


def _read_references(files: Sequence[Path], predictions: Path) -> list[list[str]]:
    """References of each line; tabs separate those of one line, or it is an object with them, and files may add more."""
    columns = [_references_of(path, predictions) for path in files]
    if not columns[0]:
        raise DataError(f"{files[0]} is empty: expected a reference per line")
    for path, lines in zip(files, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise DataError(
                f"expected files whose lines belong together, got {files[0]} with {len(columns[0])}"
                f" lines and {path} with {len(lines)}"
            )
    return [list(chain.from_iterable(rows)) for rows in zip(*columns, strict=True)]


def _references_of(path: Path, predictions: Path) -> list[list[str]]:
    if is_jsonl(path):
        return [row["references"] for row in read_rows(path)]
    lines = [[text.strip() for text in line.split("\t")] for line in read_lines(path)]
    for number, several in enumerate(lines, start=1):
        if not all(several):
            raise DataError(
                f"{path}, line {number}: expected a reference for a line of {predictions}, got an"
                " empty one"
            )
    return lines


def _scores(
    words: Sequence[Sequence[str]],
    texts: Sequence[str],
    references: Sequence[Sequence[str]],
    plain: PlainWords,
    facts: dict[str, Any],
    perplexity: float | None = None,
) -> Scores:
    """Scores of translations, as words and as text, by references as text, of which ``plain`` makes words."""
    truths = [[plain(text) for text in several] for several in references]
    rows: Tensor = translation_statistics(words, truths)
    sizes = {"sentences": len(references), "references": sum(map(len, references))}
    try:
        sacre = sacre_bleu(texts, references)
    except DependencyError:
        sacre = None
    further = {"perplexity of the references": None if perplexity is None else f"{perplexity:.3f}"}
    if sacre is None:
        line = "sacreBLEU is not installed: pip install 'softq[translation]'"
    else:
        line = f"sacreBLEU {sacre.signature}"
        further["sacreBLEU (0 to 100)"] = f"{sacre.score:.2f}"
    return Scores(
        rows,
        TRANSLATION_METRICS,
        TITLES,
        facts | sizes,
        heading(", ".join(facts["files"]), sizes),
        details={"perplexity": perplexity, "sacrebleu": sacre and sacre._asdict()},
        further=further,
        lines=[line],
    )


# --- softq data -----------------------------------------------------------------------------------------

_ENOUGH = 100  # lines that tell what a file is
_WORDS = {
    "words": "words",
    "distinct_words": "distinct words",
    "words_that_occur_once": "words that occur once",
    "mean_length": "words per sentence, mean",
    "longest": "words of the longest sentence",
}
_ONE_IN = 4  # sources of a bitext, or more often, is more than a word


def recognise(path: Path) -> bool:
    """Whether a file is sources and references by its name (.tsv) and its first lines: what stands before a tab is often several words.

    Tokens of column files may hold a space, but few do. Blank lines say nothing: where columns end a sentence so, here they are faults.
    """
    if file_type(path) != ".tsv":
        return False
    sources = first_columns(path)
    several = sum(" " in source for source in sources)
    return several > 0 and several * _ONE_IN >= sum(map(bool, sources))


def first_columns(path: Path) -> list[str]:
    """What stands before the first tab of the first lines, of those that have one; [] of what cannot be read."""
    found: list[str] = []
    with suppress(DataError):  # whoever reads it will say so
        found.extend(
            line.partition("\t")[0].strip()
            for line in islice(read_lines(path), _ENOUGH)
            if "\t" in line
        )
    return found


def _grouped(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Each file of columns by itself, all others together: a file of sources and files of references."""
    columns = [path for path in paths if file_type(path) == ".tsv"]
    together = tuple(path for path in paths if path not in columns)
    return [*((path,) for path in columns), *([together] if together else [])]


def count(paths: Sequence[Path], _options: Options) -> Iterator[dict[str, Any]]:
    """All numbers of sources and references, as they go to JSON."""
    for group in _grouped(paths):
        text = read_bitext(*group)
        targets = [bare_words(one) for several in text.references for one in several]
        yield {
            "path": ", ".join(map(str, group)),
            "format": "bitext",
            "sentences": len(text),
            "references": len(targets),
            "distinct_references": sum(len(set(several)) for several in text.references),
            "references_per_source": sizes_of(text.references),
            "source": word_counts([bare_words(sentence) for sentence in text.sources]),
            "target": word_counts(targets),
        }


def show(file: dict[str, Any]) -> Table:
    """The numbers of `count` as a table."""
    sides = (file["source"], file["target"])
    rows = [
        ("sentences", f"{file['sentences']:,}", f"{file['references']:,}"),
        *fact_rows(_WORDS, *sides),
        (),
        *size_rows(file["references_per_source"], "sources", "reference"),
    ]
    repeated = file["references"] - file["distinct_references"]
    if repeated:
        rows.append(("references that repeat another", "", f"{repeated:,}"))
    return make_table(("", "source", "target"), rows)


def check(paths: Sequence[Path], _options: Options) -> dict[Path, list[Fault]]:
    """Every fault of each file, in the order of its lines."""
    found: dict[Path, list[Fault]] = {path: [] for path in paths}
    for group in _grouped(paths):
        lengths = {path: _count_lines(path, found[path], table=len(group) == 1) for path in group}
        wanted = lengths[group[0]]
        for path, length in lengths.items():
            if length is not None and wanted is not None and length != wanted:
                message = f"expected {wanted} lines, as in {group[0]}, got {length}"
                found[path].append(Fault(0, message))
    return {
        path: sorted(faults, key=lambda one: one.line or math.inf) for path, faults in found.items()
    }


def _count_lines(path: Path, faults: list[Fault], *, table: bool) -> int | None:
    """How many lines a file has, None of one that cannot be read; what is wrong or empty is a fault."""
    length = 0
    try:
        if table:
            length = len(list(read_columns(path, ("a source", "reference"), faults)))
        else:
            with opened(path) as file:
                for part in read_parts(file, str(path), sentences=False, strict=False):
                    faults += part.faults
                    for length, line in enumerate(part.lines, start=part.first):
                        if not line.strip():
                            faults.append(Fault(length, "the line is empty"))
    except DataError as error:
        faults.append(Fault(0, str(error)))
        return None
    if not (length or faults):
        faults.append(Fault(0, "no sentences: expected one per line"))
    return length
