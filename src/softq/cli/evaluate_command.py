"""`softq evaluate`: scores of a model, or of labels, trees, texts or captions that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softq.cli.kinds import (
    CAPTIONER,
    KINDS,
    PARSER,
    TAGGER,
    TRANSLATOR,
    Kind,
    Options,
    find_kind,
    panels,
    who_takes,
)
from softq.cli.options import refuse_others, takes_options
from softq.cli.predict_command import MODEL_HELP
from softq.cli.shared import AsJson, make_table, number, print_json, print_line, results_console
from softq.errors import DataError

if TYPE_CHECKING:
    from softq.cli.kinds.base import Scores


@takes_options(Options, panels("evaluate", "predictions"))
def evaluate(
    options: Options,
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help=(
                "Column file, the true label in the last column; for a parser a CoNLL-U file with"
                " true trees; for a translator one of "
                "sources, tabs and references, or a file of sources and files of references; for a"
                " captioner a file of captions (images, tabs "
                "and captions, or Karpathy's JSON) with features beside it; plain, .gz or .xz."
            ),
            show_default=False,
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Score these predictions instead of a model: a column file with the predicted label"
                " last and the true one before it; or trees (CoNLL-U), lines of text, or captions"
                " (an image, a tab and a caption, or a caption for each image in order), with files"
                " of the true ones in place of MODEL and FILES. For text these hold references alone"
                " (no sources), several on a line between tabs, or are .jsonl with the key"
                " references."
            ),
            dir_okay=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help=(
                "Compare with a second model on the same file, or a second file of text: the"
                " difference, its interval and p-value."
            ),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model, or the predictions of any program, on a file with the right answers.

    Give a model and a file, and `--against` a second model to learn whether the difference is real: sentences are resampled a thousand
    times, the same for both (paired bootstrap), and 95 % of the differences lie in the interval. With `--predictions`, no model is
    needed: any program's output is scored.

    **Examples**

    ```sh
    # all scores, by type of entity
    softq evaluate runs/names test.conll
    # is it better than another model, and how sure is that?
    softq evaluate runs/names test.conll --against runs/names-ml
    softq evaluate runs/trees test.conllu
    # for a program, such as jq .sentence_bleu
    softq evaluate runs/mt test.tsv --json
    softq evaluate runs/captions test.captions.tsv
    ```

    Existing predictions, of `softq predict` or another program; predicted labels are the last column, the right ones the last but one:

    ```sh
    softq evaluate --predictions labelled.conll
    softq evaluate --predictions system.conllu gold.conllu
    softq evaluate --predictions hypotheses.txt references.txt --against others.txt
    softq evaluate --predictions mine.txt test.captions.tsv
    ```

    **Labels.** An entity is right if its type, first and last word are; precision, recall and F1 are conlleval's, which
    also defines how label sequences that violate their tag scheme are read. Token accuracy is the share of right labels, exact match that of sentences
    without a wrong one. A model's labels are written in the scheme of the file before they are compared.

    **Trees.** UAS is the share of words with the right head, LAS of those with the right relation too, up to its first `:`; CLAS is LAS
    on content words alone. Every word counts, punctuation too, as in the shared task of CoNLL 2018. Where predicted trees split
    the text into other words than the true ones, words are aligned as that task's scorer does, and scores are precision, recall and F1.

    **Translations.** Sentence BLEU is the mean over sentences, against all references of each together; corpus BLEU is that of the
    whole file, as multi-bleu.perl counts it; the average reward is BLEU against one reference at a time. sacreBLEU's score follows with
    its signature. `<unk>` is never right.

    **Texts** of `softq train lm`: the reward is that of the run, mean over references, on the tokens of its tokenizer, which also
    count for a second model; the rest is as for translations, with chrF of sentences and of the file. `--against-method` lets the
    second model, or the same one, write in another way: `--method mbr --against RUN --against-method beam`. Seconds are the time it took to write.

    **Captions.** The average reward is sentence BLEU against one reference at a time, the paper's measure, and the maximum reward that
    against the best one; corpus BLEU is of all references together; ROUGE-L and CIDEr-D are those of the COCO evaluation. Predictions
    from a file are compared in lower case; a file of true captions is recognized by the names of images in it, or by its name, .json.

    **Next.** `softq report` shows runs side by side; `softq sweep` compares over seeds, and not only over sentences.
    """
    if predictions is not None:
        given = [path for path in (model, *(files or [])) if path is not None]
        scored = _score_files(predictions, given, against, options)
    elif model is not None and files:
        scored = _score_models(model, files, against, options)
    else:
        raise DataError(
            "expected a model and a file, as in softq evaluate RUN FILE, or softq evaluate"
            " --predictions FILE"
        )
    if as_json:
        print_json("evaluate", _as_json(scored, None if predictions else model, against))
    else:
        _show(scored, predictions or model, against)


def _as_json(scored: list[Scores], model: Path | None, against: Path | None) -> dict[str, Any]:
    """All scores; of two models, those of the second one and the differences as well."""
    found, *others = scored
    told = {"model": model and str(model)} | found.facts
    told |= {name: number(value) for name, value in found.overall.items()} | found.details
    for other in others:
        differences = {
            name: {
                "score": other.overall[name],
                "difference": test.gain._asdict() | {"p_value": test.p_value},
            }
            for name, test in found.compare(other).items()
        }
        told["against"] = {"model": str(against), **other.facts, **differences, **other.details}
    return told


def _show(scored: list[Scores], model: Path | None, against: Path | None) -> None:
    """The same for people."""
    console = results_console()
    found, *others = scored
    print_line(console, found.heading)
    for table in found.all_tables:
        console.print(table)
    for other in others:
        ways = [one.facts.get("decoding") for one in (found, other)]
        of = [f", {way}" if ways[0] != ways[1] else "" for way in ways]
        rows = [
            (
                found.titles.get(name, name),
                f"{found.overall[name]:.4f}",
                f"{other.overall[name]:.4f}",
                f"{test.gain.value:+.4f}",
                f"[{test.gain.low:+.4f}, {test.gain.high:+.4f}]",
                f"{test.p_value:.3f}",
            )
            for name, test in found.compare(other).items()
        ]
        titles = ("", f"{model}{of[0]}", f"{against}{of[1]}", "difference", "95 % interval", "p")
        console.print(make_table(titles, rows))
        print_line(
            console,
            "Intervals and p-values (two-sided) are of a paired bootstrap over the sentences of the"
            " file.",
        )
        if other.known_further:
            told = ", ".join(f"{title} {value}" for title, value in other.known_further.items())
            print_line(console, f"{against}: {told}")
    for line in found.lines:
        print_line(console, line)


def _score_models(
    model: Path, files: list[Path], against: Path | None, options: Options
) -> list[Scores]:
    """Scores of a model, and of a second one of the same kind, which may search by ``--against-method``."""
    kind = find_kind(model)
    what = f"{model} is a {kind.name}"
    refuse_others(options, kind.evaluate, lambda name: _who(name, "evaluate"), what)
    paths, asked = [model], [options]
    if against is not None:
        other = find_kind(against)
        if other is not kind:
            raise DataError(
                f"{what}: expected another one after --against, got {against}, a {other.name}"
            )
        paths, asked = [model, against], [options, options]
        if options.against_method is not None:
            from softq.cli.kinds.sentences import for_two_methods

            asked = list(for_two_methods(options, options.against_method))
    models = [kind.code.load(*one) for one in zip(paths, asked, strict=True)]
    scored: list[Scores] = kind.code.score_models(files, options, models)
    return scored


def _score_files(
    predictions: Path, files: list[Path], against: Path | None, options: Options
) -> list[Scores]:
    """Scores of predictions that are there already, and of others beside them."""
    kind = _kind_of_predictions(predictions, files, options)
    refuse_others(
        options,
        kind.predictions,
        lambda name: _who(name, "predictions"),
        f"{predictions} holds predictions of a {kind.name}",
    )
    if against is not None and kind in (TAGGER, PARSER):
        raise DataError(
            "--against compares two models, or two files of text or captions: leave it out"
        )
    paths = filter(None, (predictions, against))
    return [kind.code.score_predictions(path, files, options) for path in paths]


def _kind_of_predictions(predictions: Path, files: list[Path], options: Options) -> Kind:
    """What was predicted: trees by the file itself, captions and texts by the file of the true ones, else labels."""
    if PARSER.code.recognise(predictions):
        return PARSER
    model = bool(files) and (files[0].is_dir() or files[0].suffix == ".safetensors")
    if not files or model or options.scheme is not None or options.decoding is not None:
        return TAGGER
    return CAPTIONER if CAPTIONER.code.recognise(files[0]) else TRANSLATOR


def _who(name: str, command: str) -> str:
    """Who takes an option that ``command``, models or predictions, does not take for this kind."""
    if any(name in getattr(kind, command) for kind in KINDS):
        return who_takes(name, command)
    if command == "predictions":
        return who_takes(name, "evaluate")
    return f"--predictions of {who_takes(name, 'predictions')}"
