"""`softq data`: what files of labels, trees, translations and captions hold, what is wrong with them; images as vectors."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import softq
from softq.annotators.agreement import Agreement, agreement
from softq.cli.data_bitext import check_bitext, count_bitext, group_bitext, is_bitext, show_bitext
from softq.cli.data_captions import (
    check_captions_and_features,
    count_captions,
    is_captions,
    show_captions,
)
from softq.cli.data_features import features as encode_images
from softq.cli.data_trees import add_counts, count_trees, show_trees
from softq.cli.shared import one_line_errors, results_console
from softq.errors import DataError, OutputError
from softq.formats.captions import Split
from softq.formats.conll import MISSING, Annotators, check_conll, find_scheme, read_conll
from softq.formats.conllu import check_conllu, is_conllu
from softq.formats.tags import Scheme, spans

data = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False)
data.command("features")(encode_images)


class SchemeName(StrEnum):
    """How entities are written as labels."""

    iob1 = "iob1"
    bio = "bio"
    bioes = "bioes"


class FormatName(StrEnum):
    """How a file is written."""

    auto = "auto"
    columns = "columns"
    conllu = "conllu"
    bitext = "bitext"
    captions = "captions"


class SplitName(StrEnum):
    """A part of Karpathy's JSON."""

    train = "train"
    val = "val"
    test = "test"


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES…",
        help="Column files, a token per line, its labels in the last columns, trees in CoNLL-U or CoNLL-X, sentences with translations, "
        "or images with captions; plain, .gz or .xz.",
    ),
]
FormatOption = Annotated[
    FormatName,
    typer.Option(
        "--format",
        help="`columns` of labels or trees in `conllu`. `auto` takes files for trees that are called .conllu or .conllx, or whose first "
        "word has ten or eight columns separated by tabs, with the number 1 in the first and a number or _ in the seventh. `bitext` is "
        "a file of sources, tabs and translations, which `auto` knows by .tsv and sources of several words, or a file of sources and files "
        "of their translations, line by line, which only `--format bitext` knows. `captions` is a file of images, tabs and captions, "
        "which `auto` knows by names such as dog.jpg in the first column, or Karpathy's JSON, which it knows by .json.",
    ),
]
AnnotatorsOption = Annotated[
    str,
    typer.Option(
        "--annotators",
        metavar="N|all",
        help="The last N columns are annotators', or all but the first, however many a sentence has. "
        "Needless where lines `# annotators = …` name them.",
    ),
]
SchemeOption = Annotated[
    SchemeName | None, typer.Option(help="How entities are written; found by looking if not given.")
]
SplitOption = Annotated[
    SplitName | None,
    typer.Option(
        help="Only this part of the captions in Karpathy's JSON; restval belongs to train."
    ),
]
FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        "--features",
        metavar="FILE.npy",
        help="Features of the images of one file of captions, to be checked, too: rows in the order in which images first appear, or of "
        "the images that FILE.names.txt names.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@data.callback()
def _data() -> None:
    """Look at files before training: what they hold, what is wrong with them, images as vectors.

    Files of labels (CoNLL columns), trees (CoNLL-U), translations and captions are told apart by looking. `stats` counts what is in them
    and how far annotators agree, `check` finds every fault with its line, and `features` turns images into the vectors that captioners
    are trained on.

    **Examples**

    ```sh
    softq data check train.conll dev.conll
    softq data stats train.conll train.conllu train.tsv train.captions.tsv
    softq data features IMAGES/ --out features.npy
    ```
    """


@data.command()
def stats(
    files: Files,
    annotators: AnnotatorsOption = "0",
    scheme: SchemeOption = None,
    layout: FormatOption = FormatName.auto,
    split: SplitOption = None,
    as_json: AsJson = False,
) -> None:
    """Count what files hold, and measure how far annotators agree.

    Use it before training: are there enough sentences, do the parts have the same labels, can the annotators be trusted?

    **Examples**

    ```sh
    # a table for each
    softq data stats train.conll dev.conll
    # each column after the word is an annotator's
    softq data stats crowd.conll --annotators all
    # words, relations and trees of a treebank
    softq data stats train.conllu
    # sentences with translations
    softq data stats train.tsv
    # the same as files that belong together line by line
    softq data stats train.de train.en --format bitext
    # images with captions
    softq data stats train.captions.tsv
    # for a program, such as jq .files[0].entities
    softq data stats train.conll --json
    ```

    **Labels.** Blank lines separate sentences, tabs or spaces separate columns; the first column is the token, the last its label, or the
    last ones the labels of several annotators, `?` where one gave none. Labels and entities of all annotators are counted together.

    **Agreement** is the share of equal labels where two annotators labelled the same token. Kappa corrects it for chance: 1 is perfect, 0
    what chance would give. Cohen's is a mean over pairs of annotators, weighted by the tokens they share; Fleiss' takes all labels of a
    token together. Most tokens are outside entities, so agreement alone looks high: read kappa.

    **Trees.** Relations, parts of speech, arc lengths and depths, and how many arcs are not projective: they pass over a word that is not
    below their head, and a projective parser cannot find them.

    **Translations.** Sources, references, the words of both languages, and how many references sources have.

    **Captions.** Images, captions, words, and how far the captions of an image agree: the mean sentence BLEU of one of them against
    another, which tells what reward a person would get.

    **Next.** `softq data check` finds faults; `softq train TASK --help` says how files are used.
    """
    with one_line_errors():
        whose = _parse_annotators(annotators)
        captions, pairs, others = _by_kind(files, layout, whose, scheme)
        part = _as_split(split, captions)
        counted = [
            count_trees(path)
            if _holds_trees(path, layout, whose, scheme)
            else _count(path, whose, scheme)
            for path in others
        ]
        counted += map(count_bitext, group_bitext(pairs))
        counted += [count_captions(path, part) for path in captions]
    if as_json:
        typer.echo(
            json.dumps({"command": "data stats", "softq": softq.__version__, "files": counted})
        )
        return
    console = results_console()
    for file in counted:
        if file.get("format") == FormatName.conllu:
            show_trees(file, console)
        elif file.get("format") == FormatName.bitext:
            show_bitext(file, console)
        elif file.get("format") == FormatName.captions:
            show_captions(file, console)
        else:
            _show(file, console)


@data.command()
def check(
    files: Files,
    annotators: AnnotatorsOption = "0",
    scheme: SchemeOption = None,
    layout: FormatOption = FormatName.auto,
    split: SplitOption = None,
    features: FeaturesOption = None,
    as_json: AsJson = False,
) -> None:
    """Print every fault of each file as `file:line: what is wrong`, and exit with 2 if there is any.

    Training refuses a faulty file at its first fault; this command lists all of them, so that a file can be mended in one go.

    **Examples**

    ```sh
    softq data check train.conll dev.conll && softq train ner --train train.conll --dev dev.conll --out runs/names
    # entities must be in BIO, also called IOB2
    softq data check train.conll --scheme bio
    # each column after the token is an annotator's
    softq data check crowd.conll --annotators all
    # every sentence must have a tree
    softq data check train.conllu
    # every line must have its translation
    softq data check train.de train.en --format bitext
    # every image must have captions and features
    softq data check train.captions.tsv --features train.features.npy
    # for a program, such as jq '.files[].faults | length'
    softq data check train.conll dev.conll --json
    ```

    **Labels.** Lines with more or fewer columns than others, empty tokens and labels, bytes that are not UTF-8, NUL, a file without
    sentences, and tags that break their scheme, such as `I-PER` after `O` in BIO. A sentence with a broken line is judged further once
    it is mended. A byte-order mark at the start, CR LF and spaces at the end of a line are no faults. Without `--scheme`, tags are held
    against the scheme that they break least often, and labels that are no tags against none.

    **Trees.** Lines without ten columns, empty ones, numbers of words, ranges and empty nodes out of order, comments inside a
    sentence, heads that are no number of a word, cycles, a second root or none, and sentences without a tree where others have one.

    **Translations.** Empty lines, sources and references that are missing, and files that should belong together line by line and have
    different numbers of lines.

    **Captions.** Images without captions, captions without an image, empty ones and ones of punctuation alone; in their features, rows that
    are missing, not finite, or named twice.

    **Next.** Mend the lines and check again; then train.
    """
    with one_line_errors():
        whose = _parse_annotators(annotators)
        captions, pairs, others = _by_kind(files, layout, whose, scheme)
        part = _as_split(split, captions)
        if features is not None and len(captions) != 1:
            raise DataError(
                f"--features are those of one file of captions, got {len(captions)} such files"
            )
        found = [
            (
                path,
                check_conllu(path)
                if _holds_trees(path, layout, whose, scheme)
                else check_conll(path, annotators=whose, scheme=_as_scheme(scheme)),
            )
            for path in others
        ]
        found += [item for group in group_bitext(pairs) for item in check_bitext(group).items()]
        found += [
            item
            for path in captions
            for item in check_captions_and_features(path, part, features).items()
        ]
    if as_json:
        listed = [
            {"path": str(path), "faults": [fault._asdict() for fault in faults]}
            for path, faults in found
        ]
        typer.echo(
            json.dumps({"command": "data check", "softq": softq.__version__, "files": listed})
        )
    else:
        for path, faults in found:
            for line, message in faults:
                typer.echo(f"{path}:{line}: {message}" if line else f"{path}: {message}")
            if not faults:
                typer.echo(f"{path}: no faults")
    if any(faults for _, faults in found):
        raise typer.Exit(2)


def _parse_annotators(text: str) -> Annotators:
    if text == "all":
        return "all"
    if not (text.isascii() and text.isdigit()):
        raise DataError(f"--annotators must be a number, 0 or more, or all, got {text!r}")
    return int(text)


class _ByKind(NamedTuple):
    """Files by what they hold; those that are left are labels or trees."""

    captions: list[Path]
    pairs: list[Path]
    others: list[Path]


def _by_kind(
    files: list[Path], layout: FormatName, annotators: Annotators, scheme: SchemeName | None
) -> _ByKind:
    """Files of captions, of sentences with translations, and all others; options for labels are refused for what was said to have none."""
    labels = annotators != 0 or scheme is not None
    if layout in (FormatName.captions, FormatName.bitext):
        if labels:
            raise DataError(
                f"--annotators and --scheme are for labels, and --format {layout} has none: leave them out"
            )
        return _ByKind(files, [], []) if layout is FormatName.captions else _ByKind([], files, [])
    if labels or layout is not FormatName.auto:
        return _ByKind([], [], files)
    captions = [path for path in files if is_captions(path)]
    pairs = [path for path in files if path not in captions and is_bitext(path)]
    return _ByKind(captions, pairs, [path for path in files if path not in (*captions, *pairs)])


def _as_split(name: SplitName | None, captions: list[Path]) -> Split | None:
    if name is not None and not captions:
        raise DataError(
            "--split is for captions in Karpathy's JSON, got no file of captions: leave it out"
        )
    return None if name is None else name.value


def _holds_trees(
    path: Path, layout: FormatName, annotators: Annotators, scheme: SchemeName | None
) -> bool:
    """Whether to read a file as trees; options for labels are refused if so."""
    trees = layout is FormatName.conllu or (layout is FormatName.auto and is_conllu(path))
    if trees and (annotators != 0 or scheme is not None):
        raise DataError(
            f"--annotators and --scheme are for labels, but {path} holds trees; if it does not, add --format columns"
        )
    return trees


def _as_scheme(name: SchemeName | None) -> Scheme | None:
    return None if name is None else name.value


def _count(path: Path, annotators: Annotators, name: SchemeName | None) -> dict[str, Any]:
    """All numbers of a file, as they go to JSON."""
    sentences = read_conll(path, annotators=annotators).sentences
    scheme = _as_scheme(name) or find_scheme(sentences)
    pieces = Counter(labels for sentence in sentences for _, _, labels in sentence.pieces())
    labels: Counter[str] = Counter()
    entities: Counter[str] = Counter()
    for piece, count in pieces.items():
        for label in piece:
            labels[label] += count
        for span in _entities(piece, scheme, path):
            entities[span] += count
    names = {annotator for sentence in sentences for annotator in sentence.annotators}
    return {
        "path": str(path),
        "sentences": len(sentences),
        "tokens": sum(len(sentence.tokens) for sentence in sentences),
        "words": len({token for sentence in sentences for token in sentence.tokens}),
        "scheme": scheme,
        "labels": dict(sorted(labels.items())),
        "entities": dict(sorted(entities.items())),
        "annotators": len(names),
        "annotations": sum(
            any(label != MISSING for label in labels)
            for sentence in sentences
            for labels in sentence.labels
        )
        if names
        else 0,
        "agreement": _as_json(agreement(sentences)) if names else None,
    }


def _entities(labels: tuple[str, ...], scheme: Scheme | None, path: Path) -> list[str]:
    try:
        return [] if scheme is None else [span.kind for span in spans(labels, scheme)]
    except OutputError as error:
        raise DataError(f"{path}: {error}; `softq data check` lists the lines") from error


def _as_json(found: Agreement) -> dict[str, Any]:
    return found._asdict() | {"pairs": [pair._asdict() for pair in found.pairs]}


def _show(file: dict[str, Any], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, key in (
        ("sentences", "sentences"),
        ("tokens", "tokens"),
        ("distinct words", "words"),
    ):
        table.add_row(name, f"{file[key]:,}")
    add_counts(table, "labels", file["labels"])
    if file["scheme"]:
        add_counts(table, f"entities ({file['scheme']})", file["entities"])
    if file["agreement"]:
        found = file["agreement"]
        table.add_section()
        table.add_row("annotators", f"{file['annotators']:,}")
        table.add_row("annotations per sentence", f"{file['annotations'] / file['sentences']:.2f}")
        table.add_row("tokens with two labels or more", f"{found['tokens']:,}")
        for name, key in (
            ("agreement of pairs", "agreement"),
            ("Cohen's kappa, mean", "cohen"),
            ("Fleiss' kappa", "fleiss"),
        ):
            table.add_row(name, "undefined" if found[key] is None else f"{found[key]:.4f}")
    console.print(escape(file["path"]), highlight=False, soft_wrap=True)
    console.print(table)
