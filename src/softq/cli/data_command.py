"""`softq data`: what files of labels, trees, translations and captions hold, what is wrong with them; exports as columns; images as vectors; a model's samples as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from softq.cli.data_annotators import annotators as review_annotators
from softq.cli.data_distill import distill as distill_samples
from softq.cli.data_features import features as encode_images
from softq.cli.kinds import CAPTIONER, KINDS, PARSER, TAGGER, TRANSLATOR, Kind, Options, panels
from softq.cli.options import refuse_others, takes_options
from softq.cli.shared import AsJson, print_json, print_line, results_console

data = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False)
data.command("features")(encode_images)
data.command("distill")(distill_samples)
data.command("annotators")(review_annotators)
_LAYOUTS = {kind.layout: kind for kind in KINDS if kind.layout}


Layout = Literal["auto", "columns", "conllu", "bitext", "captions"]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        help=(
            "Column files, a token per line, its labels in the last columns, labels in JSON as"
            " annotation tools export them, trees in CoNLL-U or CoNLL-X, sentences with"
            " translations, or images with captions; plain, .gz or .xz."
        ),
    ),
]
FormatOption = Annotated[
    Layout,
    typer.Option(
        "--format",
        help=(
            "Read `columns` of labels (or JSON of labels) or trees in `conllu`. `auto` takes files for trees that are"
            " called .conllu or .conllx, or whose first word has ten or eight columns separated by"
            " tabs, with the number 1 in the first and a number or _ in the seventh. `bitext` is a"
            " file of sources, tabs and translations, which `auto` knows by .tsv and sources of"
            " several words, or a file of sources and files of their translations, line by line,"
            " which only `--format bitext` knows. `captions` is a file of images, tabs and"
            " captions, which `auto` knows by names such as dog.jpg in the first column, or"
            " Karpathy's JSON, an object with `images` in a file that is called .json."
        ),
    ),
]
_PANELS = {
    name: "Options of labels" if name in TAGGER.data else "Options of captions"
    for name in panels("data")
}


@data.callback()
def _data() -> None:
    """Look at files before training: what they hold, what is wrong with them, images as vectors, samples as rows.

    Files of labels (CoNLL columns, JSON), trees (CoNLL-U), translations and captions are told apart by looking. `stats` counts what is in
    them and how far annotators agree, `annotators` estimates how reliable each of them is, `check` finds every fault with its line,
    `convert` writes exports of annotation tools as columns, `features` turns images into the vectors that captioners are trained on, and
    `distill` writes what a text model's own samples agree on.

    **Examples**

    ```sh
    softq data check train.conll dev.conll
    softq data stats train.conll train.conllu train.tsv train.captions.tsv
    softq data annotators crowd.conll
    softq data features IMAGES/ --out features.npy
    ```
    """


@data.command()
@takes_options(Options, {name: panel for name, panel in _PANELS.items() if name != "features"})
def stats(
    files: Files, options: Options, layout: FormatOption = "auto", as_json: AsJson = False
) -> None:
    """Count what files hold, and measure how far annotators agree.

    Use it before training: are there enough sentences, do the splits have the same labels, can the annotators be trusted?

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
    last ones the labels of several annotators, `?` where one gave none. Files called .json or .jsonl are exports of annotation tools, which
    `softq data convert --help` lists. Labels and entities of all annotators are counted together, without those that are uncertain.

    **Agreement** is the share of equal labels where two annotators labelled the same token. Kappa and alpha correct it for chance: 1 is
    perfect, 0 what chance would give. Cohen's kappa is a mean over pairs of annotators, weighted by the tokens they share, of labels or of
    whole entities; Fleiss' kappa and Krippendorff's alpha take all labels of a token together. Most tokens are outside entities, so
    agreement alone looks high: read kappa. `softq data annotators` shows each annotator and pair.

    **Trees.** Relations, parts of speech, arc lengths and depths, and how many arcs are not projective: they span a word that does not
    descend from their head, and a projective parser cannot find them.

    **Translations.** Sources, references, the words of both languages, and how many references sources have.

    **Captions.** Images, captions, words, and how far the captions of an image agree: the mean sentence BLEU of one of them against
    another, which is the reward that a person would get.

    **Next.** `softq data check` finds faults; `softq train TASK --help` says how files are used.
    """
    counted = [
        (kind, facts)
        for kind, paths in _by_kind(files, layout, options).items()
        for facts in kind.code.count(paths, options)
    ]
    if as_json:
        print_json("data stats", {"files": [facts for _, facts in counted]})
        return
    console = results_console()
    for kind, facts in counted:
        split = f", split {facts['split']}" if facts.get("split") else ""
        print_line(console, facts["path"] + split)
        console.print(kind.code.show(facts))


@data.command()
@takes_options(Options, _PANELS)
def check(
    files: Files, options: Options, layout: FormatOption = "auto", as_json: AsJson = False
) -> None:
    """Print every fault of each file as `file:line: what is wrong`, and exit with 2 if there is any.

    Training refuses a faulty file at its first fault; this command lists all of them, so that you can fix a file in one go.

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
    sentences, and tags that violate their scheme, such as `I-PER` after `O` in BIO. A sentence with a malformed line is checked further once
    that line is fixed. A byte-order mark at the start, CR LF and spaces at the end of a line are no faults. Without `--scheme`, tags are
    checked against the scheme that they violate least often; labels that are not entity tags are not checked.

    **Trees.** Lines without ten columns, empty ones, ids of words, ranges and empty nodes out of order, comments inside a
    sentence, heads that are not the id of a word, cycles, a second root or none, and sentences without a tree where others have one.

    **Translations.** Empty lines, sources and references that are missing, and files that should belong together line by line and have
    different numbers of lines.

    **Captions.** Images without captions, captions without an image, empty ones and ones of punctuation alone; in their features, rows that
    are missing, not finite, or named twice.

    **Next.** Fix the lines and check again; then train.
    """
    found = [
        (path, faults)
        for kind, paths in _by_kind(files, layout, options).items()
        for path, faults in kind.code.check(paths, options).items()
    ]
    if as_json:
        listed = [
            {"path": str(path), "faults": [fault._asdict() for fault in faults]}
            for path, faults in found
        ]
        print_json("data check", {"files": listed})
    else:
        for path, faults in found:
            for line, message in faults:
                typer.echo(f"{path}:{line}: {message}" if line else f"{path}: {message}")
            if not faults:
                typer.echo(f"{path}: no faults")
    if any(faults for _, faults in found):
        raise typer.Exit(2)


@data.command()
@takes_options(Options, {"annotators": _PANELS["annotators"], "scheme": _PANELS["scheme"]})
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Labels in JSON, or column files; several are those of one annotator each.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Write the columns to this file, packed if it ends in .gz or .xz.", dir_okay=False
        ),
    ],
    options: Options,
) -> None:
    """Write labels that an annotation tool has exported as a column file, a column for each annotator.

    **Examples**

    ```sh
    softq data convert export.json --out crowd.conll
    # one file for each annotator, called after them
    softq data convert admin.jsonl bob.jsonl --out crowd.conll
    ```

    **Files.** Exports of Label Studio (JSON, JSON-MIN), doccano (JSONL) and Argilla (JSON), and any JSON with texts and spans, or with
    tokens and labels: docs/annotators.md has an example of each. Text is split into words, and labels become BIO tags, or those of
    `--scheme`. Spans that begin or end inside a word are widened, which is counted on standard error.

    **Next.** `softq data stats crowd.conll` shows how far the annotators agree; `softq train ner --train crowd.conll` trains on their labels.
    """
    from softq.cli.predict_command import opened_for_writing
    from softq.formats.annotations import read_annotations
    from softq.formats.conll import to_conll

    annotators = TAGGER.code.annotator_columns(options)
    sentences = read_annotations(*files, annotators=annotators, scheme=options.scheme).sentences
    content = to_conll(sentences).encode()
    with opened_for_writing(out) as target:
        target.write(content)
    typer.echo(f"{out}: {len(sentences):,} sentences")


def _by_kind(files: list[Path], layout: Layout, options: Options) -> dict[Kind, list[Path]]:
    """Files by what they hold; an option that is for none of them is an error."""
    of_labels = any(getattr(options, name) != getattr(Options(), name) for name in TAGGER.data)
    tried = (PARSER,) if of_labels else (CAPTIONER, TRANSLATOR, PARSER)
    found: dict[Kind, list[Path]] = {}
    for path in files:
        kind = _LAYOUTS.get(layout) or next(
            (kind for kind in tried if kind.code.recognise(path)), TAGGER
        )
        if of_labels and kind is not TAGGER:
            hint = ", or add --format columns" if layout == "auto" else ""
            what = f"{path} holds {_HOLDS[kind.layout]}"
            refuse_others(options, kind.data, _who, what, f"leave it out{hint}")
        found.setdefault(kind, []).append(path)
    taken = {name for kind in found for name in kind.data}
    refuse_others(options, taken, _who, "no such file is among these")
    return found


_HOLDS = {"conllu": "trees", "bitext": "translations", "captions": "captions"}


def _who(name: str) -> str:
    return "files of labels" if name in TAGGER.data else "files of captions"
