"""`softq data annotators`: how reliable annotators are, the truth behind their labels, and what to review."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from softq.cli.options import flag, option, takes_options
from softq.cli.shared import AsJson, as_text, print_json, print_line, results_console, tell
from softq.errors import DataError

if TYPE_CHECKING:
    from softq.annotators.agreement import Agreement
    from softq.annotators.reliability import Reliability
    from softq.annotators.review import Review
    from softq.formats.conll import Corpus, Sentence
    from softq.formats.tags import Scheme
    from softq.lab.report.content import Table
    from softq.linear.truth_loop import LoopOptions

_ENDS = 5  # pairs shown that agree most, and that agree least
_OVER = {False: ["temper=0.35,0.5,0.7,0.85,1"], True: ["temper=0.35,0.5,0.7", "loop_c2=1,3"]}
"""Settings to choose from, without and with a tagger."""
_MEASURES = {
    "hidden": "log-probability of hidden labels",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "token_accuracy": "token accuracy",
}


@dataclass(frozen=True)
class _Options:
    """What to estimate, choose and write."""

    annotators: str = option(
        "all",
        "Read the last N columns, or all but the first, as annotators' labels.  [default: all]",
        metavar="N|all",
    )
    without: str = option("", "Leave out annotators by their names: w02,w03.", metavar="NAMES")
    scheme: Literal["iob1", "bio", "bioes"] | None = option(
        None, "Set the tag scheme of the file.  [default: the one that its labels follow]"
    )
    model: Literal["one-coin", "dawid-skene", "sequential"] | None = option(
        None,
        "Choose the model of annotators' errors: one-coin, one error rate each; dawid-skene, a"
        " confusion table each; sequential, a table that also depends on the annotator's previous"
        " label.  [default: sequential for entities, dawid-skene for other labels]",
    )
    tagger: bool = option(
        False,
        "Train taggers in the loop, which also tell by the words which labels are likely: slower,"
        " and better.",
        "--tagger",
    )
    choose: bool = option(
        False,
        "Try settings, and take those under which hidden labels are likeliest; with --gold, those"
        " with the best F1.",
        "--choose",
    )
    over: list[str] | None = option(
        None,
        "Choose among these values of a setting, a key of `softq train ner`: temper=0.5,0.7."
        "  Repeat it for other keys.",
        metavar="KEY=LIST",
    )
    gold: Path | None = option(
        None,
        "Score the estimated truth by the true labels of some of the sentences, a column file.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
    )
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
        "Write an HTML page with all tables and figures, and a folder of them beside it (needs"
        " softq[plot]).",
        metavar="FILE",
        dir_okay=False,
    )


_OUTPUTS = ("consensus", "disputed", "doubtful", "page")
_PANELS = {
    **dict.fromkeys(("annotators", "without", "scheme", "model", "tagger"), "Model"),
    **dict.fromkeys(("choose", "over", "gold"), "Choice of settings"),
    **dict.fromkeys(_OUTPUTS, "Output"),
}


@takes_options(_Options, _PANELS)
def annotators(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A column file with annotators' labels, or labels in JSON; plain, .gz or .xz.",
        ),
    ],
    options: _Options,
    as_json: AsJson = False,
) -> None:
    """Estimate how reliable annotators are and which labels are right, without true labels.

    **Examples**

    ```sh
    # per person, pair and label
    softq data annotators crowd.conll
    # the most likely labels, and what to review
    softq data annotators crowd.conll --consensus out.conll --disputed out.csv --doubtful labels.csv
    # one page for the people who run the project
    softq data annotators crowd.conll --page annotators.html
    # with taggers in the loop, at the settings that predict hidden labels best
    softq data annotators crowd.conll --tagger --choose --consensus out.conll
    # the same, at the settings with the best F1 on sentences with true labels
    softq data annotators crowd.conll --tagger --choose --gold some.conll
    ```

    **Reliability.** Precision and recall are those of entity tokens, expected values under the estimated truth. The weight is that of
    `softq train ner --weights`. `--json` adds all pairs and confusions.

    **Annotators to look at** gave one label only, mark little but are as precise as others, or make the same errors as another.

    **Settings.** `--choose` hides a fifth of the pairs of annotators and sentences, and prefers the settings under which the hidden labels
    are likeliest. `--over` takes temper and evidence-floor, and with `--tagger` also tagger-weight, loop-c2, loop-folds and rounds: flags of
    `softq train ner --annotator-model`, which takes the chosen values.

    **Next.** `softq train ner --train crowd.conll --annotators all --annotator-model sequential` trains a tagger on all annotators.
    """
    from softq.annotators import agreement
    from softq.annotators.review import Review
    from softq.cli.predict_command import opened_for_writing
    from softq.lab.report.crowd import crowd_sections, crowd_tables
    from softq.lab.report.page import write_report

    data = _read(file, options)
    paths = {name: path for name in _OUTPUTS if (path := getattr(options, name))}
    if len({path.resolve() for path in (file, *paths.values())}) <= len(paths):
        raise DataError("expected a file of its own for each output, got the same one twice")
    page = paths.pop("page", None)
    with ExitStack() as stack:  # either all outputs take their places, or none
        outputs = {name: stack.enter_context(opened_for_writing(paths[name])) for name in paths}
        found, compared = _estimate(options, data)
        agreed, review = agreement(data.sentences, data.scheme), Review(data.sentences, found)
        for name, output in outputs.items():
            output.write(_content(name, review).encode())
        settings = _settings_table(compared)
        if page is not None:
            sections = crowd_sections(file.name, agreed, review, settings)
            write_report(sections, page, title="Annotators")
    if as_json:
        print_json("data annotators", _facts(data, agreed, review, compared))
        return
    console = results_console()
    sizes = f"{len(data.sentences):,} sentences, {len(found.annotators)} annotators"
    print_line(console, f"{file}: {sizes}")
    for table in (*crowd_tables(agreed, review, _ENDS), settings):
        if table.rows:
            console.print(as_text(table))
    if data.gold:
        told = _measured(data.score(found.best))
        print_line(console, f"on {len(data.gold):,} sentences with true labels: {told}")


# --- reading --------------------------------------------------------------------------------------------


class _Labels(NamedTuple):
    """What annotators said.

    Attributes:
        file: Where it stands.
        sentences: With the labels of all annotators who are not left out.
        scheme: That of the labels, if they are tags.
        gold: The true labels of some sentences, by their numbers.

    """

    file: Path
    sentences: Sequence[Sentence]
    scheme: Scheme | None
    gold: Mapping[int, Sequence[str]]

    def score(self, best: Sequence[Sequence[str]]) -> dict[str, float]:
        """How good estimated labels are; empty without true labels."""
        from softq.metrics import SPAN_METRICS, span_statistics

        if not self.gold:
            return {}
        true, guessed = [*self.gold.values()], [best[n] for n in self.gold]
        sums = span_statistics(true, guessed, self.scheme).rows.sum(0)
        known = ("precision", "recall", "f1") if self.scheme else ()
        return {name: float(SPAN_METRICS[name](sums)) for name in (*known, "token_accuracy")}


def _read(file: Path, options: _Options) -> _Labels:
    """The file, and the true labels of some of its sentences."""
    from softq.cli.kinds import Options
    from softq.cli.kinds.tagger import annotator_columns
    from softq.formats.annotations import read_annotations
    from softq.formats.conll import find_scheme
    from softq.lab.tasks.ner_data import check_tags

    if options.over and not options.choose:
        raise DataError("--over has settings to choose from: add --choose")
    columns = annotator_columns(Options(annotators=options.annotators))
    corpus = read_annotations(file, annotators=columns, scheme=options.scheme)
    if not any(one.annotators for one in corpus.sentences):
        raise DataError(f"{file}: expected labels of annotators, got none (--annotators)")
    left_out = [name.strip() for name in options.without.split(",") if options.without]
    sentences = (corpus.without(left_out) if left_out else corpus).sentences
    scheme = options.scheme or find_scheme(sentences)
    if scheme:
        check_tags(file, sentences, scheme)
    known = _read_gold(options.gold, corpus) if options.gold else {}
    gold = {n: known[one.line] for n, one in enumerate(sentences) if one.line in known}
    return _Labels(file, sentences, scheme, gold)


def _read_gold(path: Path, corpus: Corpus) -> dict[int, Sequence[str]]:
    """True labels by the lines of their sentences, which are found by their tokens, in order."""
    from softq.formats.annotations import read_annotations

    lines: dict[tuple[str, ...], list[int]] = {}
    for one in reversed(corpus.sentences):
        lines.setdefault(one.tokens, []).append(one.line)
    found: dict[int, Sequence[str]] = {}
    for one in read_annotations(path).sentences:
        if one.annotators:
            raise DataError(f"{path}, {one.where()}: expected true labels, got those of annotators")
        if not lines.get(one.tokens):
            raise DataError(
                f"{path}, {one.where()}: expected a sentence of {corpus.name}, got one that is not"
                f" in it: {' '.join(one.tokens)[:60]}"
            )
        found[lines[one.tokens].pop()] = one.labels[0]
    return found


# --- estimating -----------------------------------------------------------------------------------------


def _estimate(options: _Options, data: _Labels) -> tuple[Reliability, list[dict[str, Any]]]:
    """The truth, and the settings that were compared, the best first."""
    from softq.annotators import AnnotatorTables, Crowd, estimate
    from softq.annotators.choice import hidden_likelihood
    from softq.annotators.reliability import reliability_of
    from softq.linear.features import FINKEL, TemplateIndex
    from softq.linear.truth_loop import LoopOptions, fit_truth

    sentences, scheme, model = data.sentences, data.scheme, _model(options, data.scheme)
    if not (options.choose or options.tagger):
        return estimate(sentences, model), []
    tokens = [one.tokens for one in sentences]
    matrix = TemplateIndex.fit(tokens, FINKEL)[1] if options.tagger else None
    crowd = Crowd.read(sentences, previous=model == "sequential")

    def fit(loop: LoopOptions, tell: Callable[[str], None] = lambda text: None) -> Reliability:
        tables = AnnotatorTables(crowd, loop.priors)
        return reliability_of(fit_truth(tables, scheme, loop, matrix, tell=tell))

    def compare(settings: Mapping[str, Any], loop: LoopOptions) -> dict[str, Any]:
        hidden = hidden_likelihood(
            crowd, lambda tables: fit_truth(tables, scheme, loop, matrix).scores, loop.priors
        )
        scores = data.score(fit(loop).best) if data.gold else {}
        row = {"settings": settings, "hidden": hidden, **scores}
        tell(f"{_flags(settings)}: {_measured(row)}")
        return row

    if not options.choose:
        return fit(LoopOptions(), tell), []
    by = ("f1" if scheme else "token_accuracy") if data.gold else "hidden"
    rows = [(compare(*cell), cell[1]) for cell in _grid(options, data.file, model)]
    rows.sort(key=lambda row: -row[0][by])
    return fit(rows[0][1], tell), [row for row, _ in rows]


def _model(options: _Options, scheme: Scheme | None) -> Any:
    """The model of annotators' errors, which must be able to do what is asked for."""
    model = options.model or ("sequential" if scheme else "dawid-skene")
    if options.tagger and model == "one-coin":
        raise DataError("--tagger goes with --model sequential or dawid-skene, got one-coin")
    if options.choose and not options.tagger and model != "sequential":
        raise DataError(
            f"--choose needs settings to choose from, and {model} has none: take --model"
            " sequential, or add --tagger"
        )
    return model


def _grid(options: _Options, file: Path, model: Any) -> list[tuple[dict[str, Any], LoopOptions]]:
    """All combinations of the values, by the keys of `softq train ner`."""
    from softq.lab.sweep import Grid, expand
    from softq.lab.tasks import TASKS
    from softq.lab.tasks.ner_labels import loop_options
    from softq.lab.tasks.ner_recipe import LOOP, NerAnnotations, NerData, NerRecipe
    from softq.linear.truth_loop import LoopOptions

    grid = Grid(objective=("ml",), over=tuple(options.over or _OVER[options.tagger]))
    known = LOOP if options.tagger else ("temper", "evidence_floor")
    for name in grid.axes(NerRecipe):
        if name not in known:
            raise DataError(
                f"--over takes {', '.join(flag(one)[2:] for one in known)}"
                f"{'' if options.tagger else ', and more with --tagger'}, got {name}"
            )
    base = NerRecipe(
        data=NerData(train=str(file), annotators="all"),
        annotations=NerAnnotations(
            annotator_model=model, loop_c2=LoopOptions.c2 if options.tagger else None
        ),
    )
    found = []
    for recipe, _ in expand(TASKS["ner"], base, [grid]).values():
        settings, loop = recipe.annotations.of_the_loop, loop_options(recipe)
        if not options.tagger:
            loop = replace(loop, alone=settings.get("temper", loop.alone))
        found.append((settings, loop))
    return found


def _measured(values: Mapping[str, Any]) -> str:
    """Scores in words."""
    return ", ".join(
        f"{title} {values[name]:.4f}" for name, title in _MEASURES.items() if name in values
    )


def _flags(settings: Mapping[str, Any]) -> str:
    """Settings as flags of `softq train ner`."""
    return " ".join(f"{flag(name)} {value:g}" for name, value in settings.items())


# --- results --------------------------------------------------------------------------------------------


def _facts(
    data: _Labels, agreed: Agreement, review: Review, compared: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All that is told with ``--json``."""
    found, score = review.found, {"sentences": len(data.gold)} | data.score(review.found.best)
    return {
        "path": str(data.file),
        "sentences": len(data.sentences),
        "model": found.model,
        "agreement": agreed._asdict() | {"pairs": [pair._asdict() for pair in agreed.pairs]},
        "annotators": [row._asdict() for row in found.annotators],
        "labels": dict(zip(found.labels, found.prior.tolist(), strict=True)),
        "confusions": [row._asdict() for row in review.confusions()],
        "suspicions": [row._asdict() for row in review.suspicions()],
        "settings": compared,
        "gold": score if data.gold else None,
    }


def _settings_table(compared: Sequence[Mapping[str, Any]]) -> Table:
    """The settings that were compared, the best first."""
    from softq.lab.report.content import Column, Table

    columns = {Column(title[0].upper() + title[1:], ".4f"): key for key, title in _MEASURES.items()}
    rows = [
        {Column("Settings"): _flags(row["settings"])}
        | {column: row.get(name) for column, name in columns.items()}
        for row in compared
    ]
    return Table.of("settings", "Settings, the best first", rows)


def _content(name: str, review: Review) -> str:
    """An output in columns or CSV."""
    from softq.formats.conll import to_conll
    from softq.lab.report.content import to_csv
    from softq.lab.report.crowd import disputes_table, doubts_table

    if name == "consensus":
        pairs = zip(review.sentences, review.found.best, strict=True)
        return to_conll(replace(one, labels=(best,), annotators=()) for one, best in pairs)
    return to_csv(disputes_table(review) if name == "disputed" else doubts_table(review))
