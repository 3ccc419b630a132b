"""`softq data annotators`: how reliable annotators are, the truth behind their labels, and what to look at again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from softq.cli.options import flag, option, takes_options
from softq.cli.shared import AsJson, make_table, print_json, print_line, results_console, tell
from softq.errors import DataError

if TYPE_CHECKING:
    from softq.annotators.agreement import Agreement
    from softq.annotators.reliability import Reliability
    from softq.formats.conll import Sentence
    from softq.formats.tags import Scheme
    from softq.linear.truth_choice import TruthChoice
    from softq.linear.truth_loop import LoopOptions

_PAIRS = 5  # shown of those that agree most, and of those that agree least
_OVER = {
    False: ("temper=0.35,0.5,0.7,0.85,1",),
    True: ("temper=0.35,0.5,0.7", "loop_c2=1,3"),
}
"""Settings to choose from, without and with a tagger."""


@dataclass(frozen=True)
class _ModelOptions:
    """How the truth is estimated."""

    annotators: str = option(
        "all",
        "Read the last N columns, or all but the first, as annotators' labels.  [default: all]",
        metavar="N|all",
    )
    scheme: Literal["iob1", "bio", "bioes"] | None = option(
        None, "Set the tag scheme of the file.  [default: the one that its labels follow]"
    )
    without: str = option(
        "", "Leave out annotators, by their names: w02,w03.", metavar="NAMES"
    )
    model: Literal["one-coin", "dawid-skene", "sequential"] | None = option(
        None,
        "Choose what annotators' errors are like: one-coin, one error rate; dawid-skene, a table;"
        " sequential, a table that also looks at the annotator's previous label.  [default:"
        " sequential for entities, dawid-skene for other labels]",
    )
    tagger: bool = option(
        False,
        "Train taggers in the loop, which also tell by the words what is likely: slower, and"
        " better.",
        "--tagger",
    )


@dataclass(frozen=True)
class _ChoiceOptions:
    """How settings are chosen."""

    choose: bool = option(
        False,
        "Try settings, and take those under which labels that were hidden are likeliest; with"
        " --gold, those of the best F1.",
        "--choose",
    )
    over: list[str] | None = option(
        None,
        "Values of a setting to choose from, a key of `softq train ner`: temper=0.5,0.7; may be"
        " given for several keys.",
        metavar="KEY=LIST",
    )
    gold: Path | None = option(
        None,
        "Score the estimated truth by the true labels of some of the sentences, a column file.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
    )


@dataclass(frozen=True)
class _OutputOptions:
    """What is written."""

    consensus: Path | None = option(
        None, "Write the most likely labels as a column file.", metavar="FILE", dir_okay=False
    )
    disputed: Path | None = option(
        None,
        "Write the sentences on which annotators disagree as CSV, the most disputed first.",
        metavar="FILE",
        dir_okay=False,
    )
    doubtful: Path | None = option(
        None,
        "Write the labels that are probably wrong as CSV, the most doubtful first.",
        metavar="FILE",
        dir_okay=False,
    )
    page: Path | None = option(
        None,
        "Write everything as one HTML page, with its tables as CSV beside it (needs softq[plot]).",
        metavar="FILE",
        dir_okay=False,
    )


@takes_options(_ModelOptions, dict.fromkeys(_ModelOptions.__dataclass_fields__, "Model"))
@takes_options(
    _ChoiceOptions, dict.fromkeys(_ChoiceOptions.__dataclass_fields__, "Choice"), "choice"
)
@takes_options(
    _OutputOptions, dict.fromkeys(_OutputOptions.__dataclass_fields__, "Output"), "output"
)
def annotators(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A column file with annotators' labels, or labels in JSON; plain, .gz or .xz.",
        ),
    ],
    options: _ModelOptions,
    choice: _ChoiceOptions,
    output: _OutputOptions,
    as_json: AsJson = False,
) -> None:
    """Estimate how reliable annotators are and what is right, without true labels and without training.

    **Examples**

    ```sh
    # per person, pair and label
    softq data annotators crowd.conll
    # the most likely labels, and what to look at again
    softq data annotators crowd.conll --consensus out.conll --disputed out.csv --doubtful labels.csv
    # one page for the people who run the project
    softq data annotators crowd.conll --page annotators.html
    # with taggers in the loop, at the settings that explain hidden labels best
    softq data annotators crowd.conll --tagger --choose --consensus out.conll
    # the same, at the settings that are best by true labels
    softq data annotators crowd.conll --tagger --choose --gold some.conll
    ```

    **Reliability.** Precision and recall are of entity tokens, in expectation over the estimated truth. The weight is what
    `softq train ner --weights` uses. `softq data annotators --json` has every pair and confusion.

    **Settings.** A fifth of the pairs of annotators and sentences is hidden, and the settings are the better, the likelier the model finds
    the hidden labels. `--over` takes temper, and with `--tagger` also evidence-floor, tagger-weight, loop-c2, loop-folds and rounds: keys
    of `softq train ner --annotator-model`, to which the chosen values can be passed on.

    **Next.** `softq train ner --train crowd.conll --annotators all --annotator-model sequential` trains a tagger on all of them.
    """
    from softq.annotators import agreement
    from softq.cli.kinds import Options
    from softq.cli.kinds.tagger import annotator_columns
    from softq.formats.annotations import read_annotations
    from softq.formats.conll import find_scheme

    if choice.over and not choice.choose:
        raise DataError("--over has settings to choose from: add --choose")
    columns = annotator_columns(Options(annotators=options.annotators))
    corpus = read_annotations(file, annotators=columns, scheme=options.scheme)
    if options.without:
        corpus = corpus.without([name.strip() for name in options.without.split(",")])
    sentences = corpus.sentences
    if not any(one.annotators for one in sentences):
        raise DataError(f"{file}: expected labels of annotators, got none (--annotators)")
    scheme = options.scheme or find_scheme(sentences)
    gold = _gold(choice.gold, sentences, file) if choice.gold else {}
    agreed = agreement(sentences, scheme)
    found, compared = _estimate(options, choice, sentences, scheme, gold)
    score = _score(found, gold, scheme) if gold else None
    _write(file, output, sentences, agreed, found)
    if as_json:
        print_json("data annotators", _facts(file, sentences, agreed, found, compared, score))
        return
    _show(file, sentences, agreed, found, compared, score)


# --- estimating -----------------------------------------------------------------------------------------


def _estimate(
    options: _ModelOptions,
    choice: _ChoiceOptions,
    sentences: Sequence[Sentence],
    scheme: Scheme | None,
    gold: Mapping[int, Sequence[str]],
) -> tuple[Reliability, list[dict[str, Any]]]:
    """The truth, and the settings that were compared, the chosen ones first."""
    from softq.annotators import Crowd, estimate
    from softq.linear.features import FINKEL, TemplateIndex
    from softq.linear.truth_choice import TruthChoice
    from softq.linear.truth_loop import LoopOptions

    model = options.model or ("sequential" if scheme else "dawid-skene")
    if model == "one-coin" or (model == "dawid-skene" and not options.tagger):
        if options.tagger or choice.choose:
            raise DataError(
                "--tagger goes with --model sequential or dawid-skene, and --choose with these or"
                f" with --model sequential alone, got {model}"
            )
        return estimate(sentences, model), []
    matrix = None
    if options.tagger:
        _, matrix = TemplateIndex.fit([one.tokens for one in sentences], FINKEL)
    names = Crowd.read(sentences).labels
    truth = TruthChoice(sentences, names, model, scheme, matrix)
    if not choice.choose:
        return truth.fit(LoopOptions(), tell=tell).reliability(model), []
    compared = _compare(truth, choice.over or _OVER[options.tagger], gold)
    best = compared[0].pop("options")
    for row in compared[1:]:
        del row["options"]
    return truth.fit(best, tell=tell).reliability(model), compared


def _compare(
    truth: TruthChoice, over: Sequence[str], gold: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
    """Settings with how likely they find hidden labels and their F1, the best first."""
    grid = _grid(over, tagger=truth.matrix is not None)
    rows = []
    for number, (settings, loop) in enumerate(grid, 1):
        row: dict[str, Any] = {"settings": settings, "options": loop}
        row["hidden"] = truth.by_hidden_labels(loop)
        told = f"hidden labels {row['hidden']:.4f}"
        if gold:
            row["f1"] = truth.by_true_labels(loop, gold)
            told += f", F1 {row['f1']:.4f}"
        tell(f"{number} of {len(grid)}: {_flags(settings)}: {told}")
        rows.append(row)
    return sorted(rows, key=lambda row: -row["f1" if gold else "hidden"])


def _grid(over: Sequence[str], *, tagger: bool) -> list[tuple[dict[str, Any], LoopOptions]]:
    """All combinations of the values, by the keys of `softq train ner`."""
    from softq.lab.sweep import Grid
    from softq.lab.tasks.ner_labels import loop_options
    from softq.lab.tasks.ner_recipe import NerAnnotations, NerRecipe

    axes = Grid(objective=("ml",), over=tuple(over)).axes(NerRecipe)
    known = NerAnnotations.LOOP if tagger else ("temper",)
    for name in axes:
        if name not in known:
            raise DataError(
                f"--over takes {', '.join(flag(one)[2:] for one in known)}"
                f"{'' if tagger else ', and more with --tagger'}, got {name}"
            )
    found = []
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        given = settings if tagger else {"alone": settings["temper"]}
        found.append((settings, loop_options(given)))
    return found


def _flags(settings: Mapping[str, Any]) -> str:
    """Settings as flags of `softq train ner`."""
    return " ".join(f"{flag(name)} {value:g}" for name, value in settings.items())


def _gold(path: Path, sentences: Sequence[Sentence], file: Path) -> dict[int, tuple[str, ...]]:
    """True labels by the indices of their sentences, which are found by their tokens, in order."""
    from softq.formats.annotations import read_annotations

    places: dict[tuple[str, ...], list[int]] = {}
    for number in reversed(range(len(sentences))):
        places.setdefault(sentences[number].tokens, []).append(number)
    found = {}
    for one in read_annotations(path).sentences:
        if one.annotators:
            raise DataError(f"{path}, {one.where()}: expected true labels, got those of annotators")
        if not places.get(one.tokens):
            raise DataError(
                f"{path}, {one.where()}: expected a sentence of {file}, got one that is not there:"
                f" {' '.join(one.tokens)[:60]}"
            )
        found[places[one.tokens].pop()] = one.labels[0]
    return found


def _score(
    found: Reliability, gold: Mapping[int, Sequence[str]], scheme: Scheme | None
) -> dict[str, float]:
    """How good the estimated truth is."""
    from softq.metrics import SPAN_METRICS, span_statistics

    best = [found.best[number] for number in gold]
    sums = span_statistics([*gold.values()], best, scheme).rows.sum(0)
    names = ("precision", "recall", "f1", "token_accuracy") if scheme else ("token_accuracy",)
    return {"sentences": len(gold)} | {name: float(SPAN_METRICS[name](sums)) for name in names}


# --- telling --------------------------------------------------------------------------------------------


def _write(
    file: Path,
    output: _OutputOptions,
    sentences: Sequence[Sentence],
    agreed: Agreement,
    found: Reliability,
) -> None:
    """The files that were asked for."""
    from softq.cli.predict_command import opened_for_writing
    from softq.formats.conll import Sentence, to_conll
    from softq.lab.report.content import to_csv
    from softq.lab.report.crowd import crowd_section, disputed_table, doubtful_table
    from softq.lab.report.page import write_report

    contents = {}
    if output.consensus:
        pairs = zip(sentences, found.best, strict=True)
        contents[output.consensus] = to_conll(
            [Sentence(one.tokens, (best,), extra=one.extra) for one, best in pairs]
        )
    if output.disputed:
        contents[output.disputed] = to_csv(disputed_table(sentences))
    if output.doubtful:
        contents[output.doubtful] = to_csv(doubtful_table(sentences, found))
    for path, content in contents.items():
        with opened_for_writing(path) as target:
            target.write(content.encode())
    if output.page:
        section = crowd_section(file.name, sentences, agreed, found)
        write_report([section], output.page, title="Annotators")


def _facts(
    file: Path,
    sentences: Sequence[Sentence],
    agreed: Agreement,
    found: Reliability,
    compared: Sequence[Mapping[str, Any]],
    score: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Everything, as it goes to JSON."""
    from softq.annotators.review import confusions, suspicions

    pairs = [pair._asdict() for pair in agreed.pairs]
    return {
        "path": str(file),
        "sentences": len(sentences),
        "model": found.model,
        "agreement": agreed._asdict() | {"pairs": pairs},
        "annotators": [row._asdict() for row in found.annotators],
        "labels": dict(zip(found.labels, found.prior.tolist(), strict=True)),
        "confusions": [row._asdict() for row in confusions(sentences, found)],
        "suspicions": [row._asdict() for row in suspicions(sentences, found)],
        "settings": list(compared),
        "gold": score,
    }


def _show(
    file: Path,
    sentences: Sequence[Sentence],
    agreed: Agreement,
    found: Reliability,
    compared: Sequence[Mapping[str, Any]],
    score: Mapping[str, float] | None,
) -> None:
    """Tables of the agreement, of each person, of pairs and of labels."""
    from softq.lab.report import crowd as tables
    from softq.lab.report.annotators import annotators_table

    console = results_console()
    print_line(console, f"{file}: {len(sentences):,} sentences, {len(found.annotators)} annotators")
    rows = sorted(found.annotators, key=lambda row: (-row.weight, row.name))
    by_kappa = sorted((p for p in agreed.pairs if p.kappa is not None), key=lambda p: -p.kappa)
    ends = by_kappa if len(by_kappa) <= 2 * _PAIRS else by_kappa[:_PAIRS] + by_kappa[-_PAIRS:]
    shown = [
        tables.agreement_table(agreed),
        annotators_table(rows, found.model),
        tables.pairs_table(agreed._replace(pairs=ends)),
        tables.labels_table(sentences, found),
        tables.suspicions_table(sentences, found),
    ]
    for table in shown:
        if table is not None:
            console.print(as_text(table))
    if compared:
        rows_ = [
            (_flags(row["settings"]), f"{row['hidden']:.4f}", f"{row.get('f1', float('nan')):.4f}")
            for row in compared
        ]
        titles = ("Settings", "Log-probability of hidden labels", "F1")
        width = 3 if "f1" in compared[0] else 2
        console.print(make_table(titles[:width], [row[:width] for row in rows_]))
    if score:
        told = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in score.items() if name != "sentences")
        print_line(console, f"On {score['sentences']:,} sentences with true labels: {told}")
