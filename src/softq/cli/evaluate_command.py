"""`softq evaluate`: scores of a tagger, parser, translator or captioner, or of labels, trees or text that are there already."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import softq
from softq.cli import comparison
from softq.cli.data_captions import is_captions
from softq.cli.data_command import SchemeName, SplitName
from softq.cli.evaluate_captions import (
    FeaturesOption,
    SplitOption,
    evaluate_captioner,
    evaluate_captions,
)
from softq.cli.evaluate_sentences import TokenizerOption, evaluate_text, evaluate_translator
from softq.cli.evaluate_trees import evaluate_parser, evaluate_trees
from softq.cli.model_files import DecodingOption, is_captioner, is_parser, is_translator
from softq.cli.predict_command import FileTagger
from softq.cli.predict_sentences import (
    BeamOption,
    MethodOption,
    RewardOption,
    SamplesOption,
    Searching,
    SeedOption,
)
from softq.cli.progress import progress_bars
from softq.cli.shared import one_line_errors, results_console
from softq.cli.write_lm import AgainstMethodOption, BatchSizeOption, evaluate_lm, is_lm
from softq.errors import DataError, OutputError
from softq.formats.conll import Sentence, find_scheme, read_conll
from softq.formats.conllu import is_conllu
from softq.formats.tags import Scheme, spans
from softq.lab.tasks.ner_data import check_tags, transform
from softq.metrics import SPAN_METRICS, SpanScores, SpanStatistics, span_statistics

_AT_A_TIME = 2000  # sentences
_TITLES = {
    "f1": "F1",
    "token_accuracy": "token accuracy",
    "exact_match": "exact match",
}  # those not called by their name


class Gold(NamedTuple):
    """A file to be judged by."""

    path: Path
    sentences: list[Sentence]
    labels: list[tuple[str, ...]]
    scheme: Scheme


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A run folder of `softq train` (ner, parsing, translation, captioning, lm), or a model's file.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…",
            help="Column file, the true label in the last column; for a parser a CoNLL-U file with true trees; for a translator one of "
            "sources, tabs and references, or a file of sources and files of references; for a captioner a file of captions (images, tabs "
            "and captions, or Karpathy's JSON) with features beside it; plain, .gz or .xz.",
            show_default=False,
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Score a file instead: one whose last column was predicted and whose last but one is true; or predicted trees (CoNLL-U), "
            "lines of text, or captions (an image, a tab and a caption, or a caption for each image in order), with files of the true "
            "ones in place of MODEL and FILE. Of text these are references alone, several on a line between tabs (cut the sources off), or "
            ".jsonl with the key references.",
            dir_okay=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="A second model on the same file, or a second file of text: the difference, with an interval and its p.",
        ),
    ] = None,
    scheme: Annotated[
        SchemeName | None,
        typer.Option(help="Tag scheme of the file; found by looking if not given."),
    ] = None,
    decoding: DecodingOption = None,
    method: MethodOption = None,
    beam: BeamOption = None,
    samples: SamplesOption = None,
    reward: RewardOption = None,
    seed: SeedOption = None,
    batch_size: BatchSizeOption = None,
    against_method: AgainstMethodOption = None,
    tokenizer: TokenizerOption = None,
    features: FeaturesOption = None,
    split: SplitOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Score a model, or anybody's predictions, on a file that says what is right.

    Give a model and a file, and `--against` a second model to learn whether the difference is real: sentences are drawn again a thousand
    times, the same for both (paired bootstrap), and 95 % of the differences lie in the interval. With `--predictions`, no model is
    needed: any program's output is scored.

    **Examples**

    ```sh
    # all scores, by type of entity
    softq evaluate runs/names test.conll
    # is it better, and how sure is that?
    softq evaluate runs/names test.conll --against runs/names-ml
    softq evaluate runs/trees test.conllu
    # for a program, such as jq .sentence_bleu
    softq evaluate runs/mt test.tsv --json
    softq evaluate runs/captions test.captions.tsv
    ```

    Predictions that are there already, of `softq predict` or of others; labels are the last column, the right ones the last but one:

    ```sh
    softq evaluate --predictions labelled.conll
    softq evaluate --predictions system.conllu gold.conllu
    softq evaluate --predictions hypotheses.txt references.txt --against others.txt
    softq evaluate --predictions mine.txt test.captions.tsv
    ```

    **Labels.** An entity is right if its type, first and last word are; precision, recall and F1 are conlleval's, and sequences that
    break their tag scheme are read as leniently as there. Token accuracy is the share of right labels, exact match that of sentences
    without a wrong one. A model's labels are written in the scheme of the file before they are compared.

    **Trees.** UAS is the share of words with the right head, LAS of those with the right relation too, up to its first `:`; CLAS is LAS
    on content words alone. Every word counts, punctuation too, as in the shared task of CoNLL 2018. Where predicted trees split
    the text into other words than the true ones, words are aligned as that task's scorer does, and scores are precision, recall and F1.

    **Translations.** Sentence BLEU is the mean over sentences, against all references of each together; corpus BLEU is that of the
    whole file, as multi-bleu.perl counts it; the average reward is BLEU against one reference at a time. sacreBLEU's score follows with
    its signature. `<unk>` is never right.

    **Texts** of `softq train lm`: the reward is the one of the run, mean over references, on its own tokens, in which a second
    model's texts are counted as well; the rest is as for translations, with chrF of sentences and of the file. `--against-method` lets the
    second model, or the same one, write in another way: `--method mbr --against RUN --against-method beam`. Seconds are those of writing.

    **Captions.** The average reward is sentence BLEU against one reference at a time, the paper's measure, and the maximum reward that
    against the best one; corpus BLEU is of all references together; ROUGE-L and CIDEr-D are those of the COCO evaluation. Predictions
    that are there already are compared in lower case; the file of true captions is known by its images' names or by its own, .json.

    **Next.** `softq report` shows runs side by side; `softq sweep` compares over seeds, and not only over sentences.
    """
    with one_line_errors():
        named: Scheme | None = scheme.value if scheme else None
        others = None
        files = files or []
        file = files[0] if files else None
        searching = Searching(method, beam, samples, reward, seed)
        of_labels = scheme is not None or decoding is not None
        if tokenizer is not None and (predictions is None or model is None):
            raise DataError(
                "--tokenizer is of lines of text, as in softq evaluate --predictions HYPOTHESES REFERENCES: leave it out"
            )
        if predictions is not None:
            searching.refuse_for(predictions)
            if features is not None:
                raise DataError(
                    "--features is for captioners, and --predictions asks no model: leave it out"
                )
            if model is None or not is_captions(model):
                _refuse_split(split, model or predictions)
        if predictions is not None and is_conllu(predictions):
            if model is None or any(
                given is not None for given in (file, against, scheme, decoding)
            ):
                raise DataError(
                    f"{predictions} holds trees: expected the file of the true ones and nothing else, as in softq evaluate --predictions "
                    "SYSTEM.conllu GOLD.conllu"
                )
            evaluate_trees(predictions, model, as_json=as_json)
            return
        if (
            predictions is not None
            and model is not None
            and not of_labels
            and not (model.is_dir() or model.suffix == ".safetensors")
        ):
            if is_captions(model):
                if files:
                    raise DataError(
                        f"{model} holds captions: expected one such file, got {len(files) + 1}"
                    )
                evaluate_captions(predictions, model, split, against, tokenizer, as_json=as_json)
                return
            evaluate_text(predictions, [model, *files], against, tokenizer, as_json=as_json)
            return
        if predictions is not None:
            if model is not None or against is not None or decoding is not None:
                raise DataError(
                    "--predictions FILE stands alone: no model is asked, so leave out MODEL, --against and --decoding"
                )
            gold, found = _score_columns(predictions, named)
        else:
            if model is None or file is None:
                raise DataError(
                    "expected a model and a file, as in softq evaluate RUN FILE, or softq evaluate --predictions FILE"
                )
            if is_lm(model):
                if of_labels or features is not None or split is not None:
                    raise DataError(
                        f"{model} is a model of Transformers: leave out --scheme, --decoding, --features and --split"
                    )
                evaluate_lm(
                    model, files, against, searching, batch_size, against_method, as_json=as_json
                )
                return
            if batch_size is not None or against_method is not None:
                raise DataError(
                    f"--batch-size and --against-method are for models of Transformers, and {model} is none: leave them out"
                )
            if is_captioner(model):
                if of_labels:
                    raise DataError(
                        f"--scheme and --decoding are of labels and trees, and {model} is a captioner: leave them out"
                    )
                if len(files) > 1:
                    raise DataError(f"{model} is scored on one file of captions, got {len(files)}")
                evaluate_captioner(
                    model, file, features, split, against, searching, as_json=as_json
                )
                return
            if features is not None:
                raise DataError(f"--features is for captioners, and {model} is none: leave it out")
            _refuse_split(split, model)
            if is_translator(model):
                if of_labels:
                    raise DataError(
                        f"--scheme and --decoding are of labels and trees, and {model} is a translator: leave them out"
                    )
                evaluate_translator(model, files, against, searching, as_json=as_json)
                return
            searching.refuse_for(model)
            if len(files) > 1:
                raise DataError(
                    f"{model} is scored on one file, got {len(files)}; several files belong together for translators alone"
                )
            if is_parser(model):
                if scheme is not None:
                    raise DataError(f"--scheme is of labels, and {model} is a parser: leave it out")
                evaluate_parser(model, file, against, decoding, as_json=as_json)
                return
            taggers = [
                FileTagger.load(path, decoding) for path in (model, against) if path is not None
            ]
            gold = _read_gold(file, named, taggers[0].file_scheme)
            found, *others = (_score_model(tagger, gold) for tagger in taggers)
    scores = SpanScores.of(found)
    compared = comparison.compare(found.rows, others[0].rows, SPAN_METRICS) if others else None
    if as_json:
        typer.echo(json.dumps(_as_json(gold, scores, compared, model, against)))
        return
    console = results_console()
    _show(gold, scores, console)
    if compared is not None:
        comparison.show_difference(
            vars(scores), compared, _TITLES, f"{model}", f"{against}", console
        )


def _refuse_split(split: SplitName | None, path: Path) -> None:
    if split is not None:
        raise DataError(
            f"--split is for captions in Karpathy's JSON, and {path} has nothing to do with them: leave it out"
        )


def _score_columns(path: Path, named: Scheme | None) -> tuple[Gold, SpanStatistics]:
    """The last column against the one before it."""
    sentences = _read(path)
    for sentence in sentences:
        if not sentence.extra:
            raise DataError(
                f"{path}, line {sentence.line}: expected a token, its true label and the predicted one, got 2 columns"
            )
    predicted = [sentence.labels[0] for sentence in sentences]
    true = [
        dataclasses.replace(sentence, labels=sentence.extra[-1:], extra=sentence.extra[:-1])
        for sentence in sentences
    ]
    scheme = named or find_scheme(true) or find_scheme(sentences) or "bio"
    for labelled in (sentences, true):
        check_tags(path, labelled, scheme)
    gold = Gold(path, true, [sentence.labels[0] for sentence in true], scheme)
    return gold, span_statistics(gold.labels, predicted, scheme)


def _read_gold(path: Path, named: Scheme | None, usual: Scheme | None) -> Gold:
    """A file of true labels; ``usual`` is the scheme where they show none."""
    sentences = _read(path, named)
    labels = [sentence.labels[0] for sentence in sentences]
    scheme = named or find_scheme(sentences) or usual or "bio"
    check_tags(path, sentences, scheme)
    return Gold(path, sentences, labels, scheme)


def _read(path: Path, named: Scheme | None = None) -> list[Sentence]:
    sentences = read_conll(path, scheme=named).sentences
    if sentences[0].annotators:
        raise DataError(
            f"{path}, line {sentences[0].line - 1}: expected a column of true labels, got those of annotators"
        )
    return sentences


def _score_model(tagger: FileTagger, gold: Gold) -> SpanStatistics:
    try:
        spans(tagger.tagger.labels, tagger.trained_scheme or gold.scheme)
    except OutputError:
        labels = ", ".join(tagger.tagger.labels[:5])
        raise DataError(
            f"expected a model of entities, whose labels are such as B-PER and O ({gold.scheme}), got {labels}"
        ) from None
    predicted: list[Sequence[str]] = []
    with progress_bars() as watch:
        watcher = watch(str(gold.path), unit="sentences")
        watcher.begin(len(gold.sentences), 0)
        for first in range(0, len(gold.sentences), _AT_A_TIME):
            some = gold.sentences[first : first + _AT_A_TIME]
            own = tagger.tagger.decode(
                transform(tagger.index, some, tagger.pos, str(gold.path)), tagger.decoding
            )
            predicted += tagger.labels(own, gold.scheme)
            watcher.advance(len(some), "")
    return span_statistics(gold.labels, predicted, gold.scheme)


def _as_json(
    gold: Gold,
    scores: SpanScores,
    compared: comparison.Compared | None,
    model: Path | None,
    against: Path | None,
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "command": "evaluate",
        "softq": softq.__version__,
        "model": model and str(model),
        "file": str(gold.path),
    }
    facts |= {
        "scheme": gold.scheme,
        "sentences": len(gold.labels),
        "tokens": sum(map(len, gold.labels)),
        **dataclasses.asdict(scores),
    }
    facts["kinds"] = {kind: row._asdict() for kind, row in scores.kinds.items()}
    if compared is not None:
        facts["against"] = comparison.as_json(compared, str(against))
    return facts


def _show(gold: Gold, scores: SpanScores, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column(f"entities ({gold.scheme})")
    for title in ("precision", "recall", "F1", "predicted", "true"):
        table.add_column(title, justify="right")
    for kind, row in scores.kinds.items():
        table.add_row(
            escape(kind),
            *(f"{value:.4f}" for value in row[:3]),
            *(f"{count:,}" for count in row[3:]),
        )
    table.add_section()
    totals = (
        sum(row.predicted for row in scores.kinds.values()),
        sum(row.gold for row in scores.kinds.values()),
    )
    overall = (scores.precision, scores.recall, scores.f1)
    table.add_row(
        "all", *(f"{value:.4f}" for value in overall), *(f"{count:,}" for count in totals)
    )
    tokens = sum(map(len, gold.labels))
    console.print(
        f"{gold.path}: {len(gold.labels):,} sentences, {tokens:,} tokens",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)
    console.print(
        f"token accuracy {scores.token_accuracy:.4f}, exact match {scores.exact_match:.4f}",
        highlight=False,
    )
