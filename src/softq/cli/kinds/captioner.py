"""Captioners, and files of images with captions: how they are read, captioned, scored, counted and checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from softq.cli.kinds import Options
from softq.cli.kinds.base import (
    AT_A_TIME,
    STDIN,
    PredictedPart,
    Scores,
    bare_words,
    fact_rows,
    heading,
    only_file,
    size_rows,
    sizes_of,
    word_counts,
)
from softq.cli.kinds.sentences import (
    TITLES,
    PlainWords,
    SentenceWriter,
    check_same_words,
    first_columns,
    known_words,
)
from softq.cli.progress import Watch, progress_bars
from softq.cli.shared import make_table, number
from softq.errors import DataError
from softq.formats.annotations import looks_annotated
from softq.formats.captions import (
    Captions,
    Features,
    check_captions,
    check_features,
    features_beside,
    is_json,
    match_names,
    names_file,
    read_captions,
    read_features,
)
from softq.formats.text import Fault, read_lines
from softq.lab.processes import find_device
from softq.metrics import CAPTION_METRICS, caption_statistics, reference_agreement
from softq.neural.generation import GeneratedText
from softq.neural.perplexity import perplexity

_FEATURES = ".npy"
_TITLES = TITLES | {
    "max_reward": "maximum reward",
    "rouge_l": "ROUGE-L",
    "cider_d": "CIDEr-D (0 to 10)",
}


class _Pictured(NamedTuple):
    """Features of images, ``[N, D]``, and what the images are called; None if nobody says."""

    features: Features
    names: list[str] | None
    where: str


class FileCaptioner(SentenceWriter):
    """A captioner and how it searches."""

    kind = "captioner"

    def check(self, size: int, where: str) -> None:
        """An error if features are not of the size that the model was trained on."""
        expected = self.model.inputs
        if size != expected:
            of = f" of {self.model.encoder}" if self.model.encoder else ""
            raise DataError(
                f"{where}: expected features{of} with {expected} numbers for each image, as"
                f" {self.path} was trained on, got {size}"
            )

    def _caption(
        self, features: Features, where: str, watch: Watch
    ) -> Iterator[list[GeneratedText]]:
        """Captions of images with these features ``[N, D]``, some at a time."""
        for rows in watch(where, unit="images").batches(range(len(features)), AT_A_TIME):
            yield self.generate(features[rows[0] : rows[-1] + 1])

    def predict_files(self, files: Sequence[Path], watch: Watch) -> Iterator[PredictedPart]:
        """A line for each image, with its name and a tab in front if it has one."""
        for features, names, where in self._read_all(files, watch):
            first = 0
            for found in self._caption(features, where, watch):
                yield self.part(found, names and names[first : first + len(found)])
                first += len(found)

    def _read_all(self, files: Sequence[Path], watch: Watch) -> list[_Pictured]:
        """Features of files (.npy), or of images and folders of images, all of them and checked before anything is said of one."""
        of_features = [path.suffix == _FEATURES for path in files]
        if all(of_features):
            found = [_read_table(path) for path in files]
            lacking = [one.where for one in found if one.names is None]
            if lacking and len(lacking) < len(found):
                raise DataError(
                    "expected names of images beside all files of features or none, got no"
                    f" {names_file(Path(lacking[0]))}"
                )
            for one in found:
                self.check(one.features.shape[1], one.where)
            return found
        if any(of_features):
            raise DataError(
                f"expected files of features ({_FEATURES}) or images, got both: caption them one"
                " after the other"
            )
        if list(files) == [STDIN]:
            raise DataError(
                f"{self.path} is a captioner, which reads no text: name a file of features"
                f" ({_FEATURES}), images, or a folder of them"
            )
        return [self._encode(files, watch)]

    def _encode(self, files: Sequence[Path], watch: Watch) -> _Pictured:
        """Features by the encoder of the features that the captioner was trained on."""
        name = self.model.encoder
        if not name:
            raise DataError(
                f"{self.path} does not say which encoder made the features it was trained on, so it"
                f" cannot encode images: use softq data features, and name its file ({_FEATURES})"
            )
        from softq.neural.images import encode, find_images, load_encoder

        images = find_images(files)
        encoder = load_encoder(name).to(find_device("auto"))
        self.check(encoder.features, name)
        show = partial(watch("encoding", unit="images").show, len(images))
        show(0)
        vectors = encode(list(images.values()), encoder, progress=show)
        return _Pictured(vectors, list(images), "images")

    def score(self, file: Path, gold: Captions, features: Features, where: Path) -> Scores:
        """Scores of captions of the images of a file, whose features are somewhere."""
        with progress_bars() as watch:
            found = [one for some in self._caption(features, gold.name, watch) for one in some]
        return _scores(
            gold,
            [one.words for one in found],
            self.model.vocabulary.plain,
            {
                "file": str(file),
                "features": str(where),
                "split": self.options.split,
                "decoding": self.decoding,
            },
            perplexity(self.model.model, self.model.examples(features, gold.captions)),
        )


load = FileCaptioner


def _read_table(path: Path) -> _Pictured:
    beside = names_file(path)
    names = [line.strip() for line in read_lines(beside)] if beside.exists() else None
    rows = range(1, _count_rows(path) + 1) if names is None else ()
    called = names if names is not None else [f"row {row}" for row in rows]
    return _Pictured(read_features(path, Captions(called, [[] for _ in called])), names, str(path))


def _count_rows(path: Path) -> int:
    """How many rows an array has; 0 of what is none, which whoever reads it next will say."""
    try:
        return len(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError, EOFError, TypeError):
        return 0


# --- softq evaluate -------------------------------------------------------------------------------------


def score_models(
    files: Sequence[Path], options: Options, models: Sequence[FileCaptioner]
) -> list[Scores]:
    """Scores of captions of the images of one file."""
    file = only_file(files, models)
    gold = read_captions(file, options.split)
    where = options.features or features_beside(file)
    if not where.exists():
        raise DataError(
            f"{file}: expected features of its images in {where}, got no such file: make it with"
            " softq data features, or name another with --features FILE"
        )
    features = read_features(where, gold)
    for one in models:
        one.check(features.shape[1], str(where))
    hint = (
        "caption with softq predict, and score with softq evaluate --predictions A CAPTIONS"
        " --against B"
    )
    check_same_words(models, gold, gold.captions, hint)
    return [one.score(file, gold, features, where) for one in models]


def score_predictions(predictions: Path, files: Sequence[Path], options: Options) -> Scores:
    """Scores of lines of captions, with the names of their images or in their order; in lower case."""
    if len(files) > 1:
        raise DataError(f"{files[0]} holds captions: expected one such file, got {len(files)}")
    gold = read_captions(files[0], options.split)
    cut = str.split if options.tokenizer == "space" else bare_words

    def plain(text: str) -> list[str]:
        return cut(text.lower())

    words = [known_words(text, plain) for text in _read_predictions(predictions, gold)]
    facts = {"file": str(files[0]), "split": options.split, "predictions": str(predictions)}
    return _scores(gold, words, plain, facts)


def _read_predictions(path: Path, gold: Captions) -> list[str]:
    """A caption for each image: lines of names, tabs and captions in any order, or of captions in the order of images."""
    lines = [[text.strip() for text in line.split("\t")] for line in read_lines(path)]
    if not any(len(columns) > 1 for columns in lines):
        if len(lines) != len(gold):
            raise DataError(
                f"expected a caption for each of the {len(gold)} images of {gold.name}, one per"
                f" line, got {len(lines)} in {path}"
            )
        return [text for (text,) in lines]
    line_of: dict[str, int] = {}
    for line, columns in enumerate(lines, start=1):
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {line}: expected an image, a tab and a caption, got {len(columns)}"
                " columns"
            )
        if line_of.setdefault(columns[0], line) != line:
            raise DataError(
                f"{path}, line {line}: expected each image once, got {columns[0]!r} again, which is"
                f" on line {line_of[columns[0]]}"
            )
    found, unclear = match_names(gold.images, line_of)
    for place, image in enumerate(gold.images):
        if image not in found:
            raise DataError(
                f"{path}: expected a caption for the image {image!r} ({gold.place(place)}), got"
                f" {unclear.get(image, 'none')}"
            )
    return [lines[line_of[found[image]] - 1][1] for image in gold.images]


def _scores(
    gold: Captions,
    words: Sequence[Sequence[str]],
    plain: PlainWords,
    facts: dict[str, Any],
    perplexity: float | None = None,
) -> Scores:
    """Scores of captions as words by references as text, of which ``plain`` makes words."""
    truths = [[plain(text) for text in several] for several in gold.captions]
    rows = caption_statistics(words, truths)
    agreement = number(reference_agreement(truths))
    further = {
        "perplexity of the references": None if perplexity is None else f"{perplexity:.3f}",
        "average reward of one reference by another": (
            None if agreement is None else f"{agreement:.4f}"
        ),
    }
    sizes = {"images": len(gold), "references": sum(map(len, gold.captions))}
    of_split = f", {facts['split']}" if facts["split"] else ""
    return Scores(
        rows,
        CAPTION_METRICS,
        _TITLES,
        facts | sizes,
        heading(f"{facts['file']}{of_split}", sizes),
        details={"agreement": agreement, "perplexity": perplexity},
        further=further,
    )


# --- softq data -----------------------------------------------------------------------------------------

_ONE_IN = 2  # first columns of captions, or more often, is the name of an image
_IMAGE = re.compile(r"\.(jpe?g|png|gif|bmp|webp)(#\d+)?$", re.IGNORECASE)
_OFTEN = 5  # the paper's vocabulary is of words that occur as often
_WORDS = {
    "words": "words",
    "distinct_words": "distinct words, in lower case",
    "words_that_occur_once": "words that occur once",
    "words_that_occur_5_times": f"words that occur {_OFTEN} times or more",
    "mean_length": "words per caption, mean",
    "shortest": "words of the shortest caption",
    "longest": "words of the longest caption",
}


def recognise(path: Path) -> bool:
    """Whether a file is images with captions by its name (.json), if it holds no labels, or by its first lines: what stands before a tab is called like an image."""
    if is_json(path):
        with suppress(DataError):  # whoever reads it will say so
            return not looks_annotated(path)
        return True
    images = first_columns(path)
    called_so = sum(_IMAGE.search(image) is not None for image in images)
    return called_so > 0 and called_so * _ONE_IN >= len(images)


def count(paths: Sequence[Path], options: Options) -> Iterator[dict[str, Any]]:
    """All numbers of each file, as they go to JSON."""
    for path in paths:
        found = read_captions(path, options.split)
        references = [
            [bare_words(caption.lower()) for caption in captions] for captions in found.captions
        ]
        flat = [words for captions in references for words in captions]
        times = Counter(word for words in flat for word in words)
        yield {
            "path": str(path),
            "format": "captions",
            "split": options.split,
            "images": len(found),
            "captions": len(flat),
            "distinct_captions": sum(len(set(captions)) for captions in found.captions),
            "captions_per_image": sizes_of(references),
            **word_counts(flat),
            "words_that_occur_5_times": sum(often >= _OFTEN for often in times.values()),
            "shortest": min(map(len, flat)),
            "agreement": number(reference_agreement(references)),
        }


def show(file: dict[str, Any]) -> Table:
    """The numbers of `count` as a table."""
    rows = [
        *fact_rows({"images": "images", "captions": "captions"}, file),
        *size_rows(file["captions_per_image"], "images", "caption"),
    ]
    repeated = file["captions"] - file["distinct_captions"]
    if repeated:
        rows.append(("captions that repeat another of the image", f"{repeated:,}"))
    agreement = file["agreement"]
    rows += [
        (),
        *fact_rows(_WORDS, file),
        (),
        (
            "sentence BLEU between captions of an image",
            "undefined" if agreement is None else f"{100 * agreement:.2f}",
        ),
    ]
    return make_table(("", ""), rows)


def check(paths: Sequence[Path], options: Options) -> dict[Path, list[Fault]]:
    """Every fault of each file, and of the features of its images if a file of them is given."""
    features = options.features
    found = {path: check_captions(path, options.split) for path in paths}
    if features is None:
        return found
    if len(paths) != 1:
        raise DataError(
            f"--features are those of one file of captions, got {len(paths)} such files"
        )
    try:
        captions = read_captions(paths[0], options.split)
    except DataError:  # rows belong to images, and which there are is not known yet
        return found | {features: [Fault(0, f"not checked: first fix {paths[0]}")]}
    return found | check_features(features, captions)
