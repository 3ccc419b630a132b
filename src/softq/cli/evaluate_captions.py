"""What `softq evaluate` does with captions: scores of a captioner, or of captions that are there already."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from softq.cli import comparison
from softq.cli.data_command import SplitName
from softq.cli.evaluate_sentences import PlainWords, TokenizerName, guessed_words
from softq.cli.predict_captions import FileCaptioner
from softq.cli.predict_sentences import Searching
from softq.cli.progress import progress_bars
from softq.cli.shared import results_console
from softq.errors import DataError
from softq.formats.captions import (
    Captions,
    Features,
    features_beside,
    match_names,
    read_captions,
    read_features,
)
from softq.formats.text import read_lines
from softq.formats.tokens import tokenize, without_marks
from softq.metrics import CAPTION_METRICS, caption_statistics, reference_agreement
from softq.neural.perplexity import perplexity

_TITLES = {
    "average_reward": "average reward",
    "max_reward": "maximum reward",
    "corpus_bleu": "corpus BLEU",
    "rouge_l": "ROUGE-L",
    "cider_d": "CIDEr-D (0 to 10)",
    "sentence_bleu": "sentence BLEU",
    "exact_match": "exact match",
    "length_ratio": "length ratio",
}

FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npy",
        help="Captioners: features of the images, a row each.  [default: those beside the captions, x.features.npy of x.captions.tsv]",
        show_default=False,
        dir_okay=False,
    ),
]
SplitOption = Annotated[
    SplitName | None,
    typer.Option(
        help="Captions: the part of Karpathy's JSON; restval belongs to train.  [default: all]",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class CaptionScores:
    """Scores of captions.

    Attributes:
        rows: statistics of each image, as of `softq.metrics.caption_statistics`.
        overall: by the names of `softq.metrics.CAPTION_METRICS`.
        agreement: `softq.metrics.reference_agreement` of the references, in the same words; None where no image has several.
        perplexity: of the references, None where there is no model.

    """

    rows: Tensor
    overall: dict[str, float]
    agreement: float | None
    perplexity: float | None = None

    @classmethod
    def of(
        cls,
        words: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        plain: PlainWords,
        perplexity: float | None = None,
    ) -> CaptionScores:
        """Judge captions as words by references as text, of which ``plain`` makes words."""
        truths = [[plain(text) for text in several] for several in references]
        rows = caption_statistics(words, truths)
        agreement = reference_agreement(truths)
        overall = {name: float(metric(rows.sum(0))) for name, metric in CAPTION_METRICS.items()}
        return cls(rows, overall, None if math.isnan(agreement) else agreement, perplexity)


def evaluate_captioner(
    model: Path,
    file: Path,
    features: Path | None,
    split: SplitName | None,
    against: Path | None,
    searching: Searching,
    *,
    as_json: bool,
) -> None:
    """Score a captioner on images with captions, and a second one beside it."""
    models = [FileCaptioner.load(path, searching) for path in (model, against) if path is not None]
    gold = read_captions(file, None if split is None else split.value)
    where = features or features_beside(file)
    if not where.exists():
        raise DataError(
            f"{file}: expected features of its images in {where}, got no such file: make it with softq data features, or name another "
            "with --features FILE"
        )
    vectors = read_features(where, gold)
    for one in models:
        one.check(vectors.shape[1], str(where))
    comparison.check_same_words(
        [one.path for one in models],
        [one.model.vocabulary.plain for one in models],
        gold,
        gold.captions,
        "caption with softq predict, and score with softq evaluate --predictions A CAPTIONS --against B",
    )
    found, *others = (_score_model(one, gold, vectors) for one in models)
    facts = {
        "model": str(model),
        "file": str(file),
        "features": str(where),
        "split": split,
        "decoding": models[0].decoding,
    }
    _tell(found, others[0] if others else None, gold, facts, (model, against), as_json=as_json)


def evaluate_captions(
    predictions: Path,
    file: Path,
    split: SplitName | None,
    against: Path | None,
    tokenizer: TokenizerName | None,
    *,
    as_json: bool,
) -> None:
    """Score lines of captions, with the names of their images or in their order, and other lines beside them; in lower case."""
    gold = read_captions(file, None if split is None else split.value)
    cut: Callable[[str], list[str]] = (
        str.split
        if tokenizer is TokenizerName.space
        else lambda text: without_marks(tokenize(text))
    )

    def plain(text: str) -> list[str]:
        return cut(text.lower())

    said = [_read_predictions(path, gold) for path in (predictions, against) if path is not None]
    found, *others = (
        CaptionScores.of([guessed_words(text, plain) for text in texts], gold.captions, plain)
        for texts in said
    )
    facts = {"model": None, "file": str(file), "split": split, "predictions": str(predictions)}
    _tell(
        found, others[0] if others else None, gold, facts, (predictions, against), as_json=as_json
    )


# --- predictions ----------------------------------------------------------------------------------------


def _read_predictions(path: Path, gold: Captions) -> list[str]:
    """A caption for each image: lines of names, tabs and captions in any order, or of captions in the order of images."""
    lines = [line.split("\t") for line in read_lines(path)]
    if not any(len(columns) > 1 for columns in lines):
        if len(lines) != len(gold):
            raise DataError(
                f"expected a caption for each of the {len(gold)} images of {gold.name}, one per line, got {len(lines)} in {path}"
            )
        return [text.strip() for (text,) in lines]
    for number, columns in enumerate(lines, start=1):
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number}: expected an image, a tab and a caption, got {len(columns)} columns"
            )
    return _by_name(
        path, [name.strip() for name, _ in lines], [text.strip() for _, text in lines], gold
    )


def _by_name(path: Path, names: list[str], texts: list[str], gold: Captions) -> list[str]:
    """The captions of the images of ``gold``, by names as `match_names` finds them; those of other images are passed over."""
    line_of: dict[str, int] = {}
    for line, name in enumerate(names):
        if line_of.setdefault(name, line) != line:
            raise DataError(
                f"{path}, line {line + 1}: expected each image once, got {name!r} again, which is on line {line_of[name] + 1}"
            )
    found, unclear = match_names(gold.images, line_of)
    for number, image in enumerate(gold.images):
        if image not in found:
            got = unclear.get(image, "none")
            raise DataError(
                f"{path}: expected a caption for the image {image!r} ({gold.place(number)}), got {got}"
            )
    return [texts[line_of[found[image]]] for image in gold.images]


# --- models ---------------------------------------------------------------------------------------------


def _score_model(model: FileCaptioner, gold: Captions, features: Features) -> CaptionScores:
    with progress_bars() as watch:
        said = [
            one for some in model.caption(features, watch(gold.name, unit="images")) for one in some
        ]
    vocabulary = model.model.vocabulary
    examples = model.model.examples(features, gold.captions)
    return CaptionScores.of(
        [one.words for one in said],
        gold.captions,
        vocabulary.plain,
        perplexity(model.model.model, examples),
    )


# --- results --------------------------------------------------------------------------------------------


def _tell(
    found: CaptionScores,
    other: CaptionScores | None,
    gold: Captions,
    facts: dict[str, Any],
    names: tuple[Path, Path | None],
    *,
    as_json: bool,
) -> None:
    compared = (
        comparison.compare(found.rows, other.rows, CAPTION_METRICS) if other is not None else None
    )
    counts = {"images": len(gold), "references": sum(map(len, gold.captions))}
    if as_json:
        told: dict[str, Any] = {
            "command": "evaluate",
            "softq": softq.__version__,
            **facts,
            **counts,
            **found.overall,
        }
        told |= {"agreement": found.agreement, "perplexity": found.perplexity}
        if compared is not None:
            told["against"] = comparison.as_json(compared, str(names[1]))
        typer.echo(json.dumps(told))
        return
    console = results_console()
    of_split = f", {facts['split']}" if facts["split"] else ""
    heading = f"{facts['file']}{of_split}: {counts['images']:,} images, {counts['references']:,} references"
    console.print(heading, markup=False, highlight=False, soft_wrap=True)
    _show(found, console)
    if compared is not None:
        comparison.show_difference(
            found.overall, compared, _TITLES, str(names[0]), str(names[1]), console
        )


def _show(found: CaptionScores, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    table.add_column("score", justify="right")
    for name, score in found.overall.items():
        table.add_row(_TITLES[name], f"{score:.4f}")
    if found.perplexity is not None:
        table.add_row("perplexity of the references", f"{found.perplexity:.3f}")
    if found.agreement is not None:
        table.add_row("average reward of one reference by another", f"{found.agreement:.4f}")
    console.print(table)
