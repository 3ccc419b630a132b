"""The named-entity experiment in a report: its kinds of results, made by hand."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from report_cases import ORIGIN, legend_of, part, rows_of
from softq.annotators.reliability import AnnotatorRow
from softq.lab import report
from softq.lab.recipe import Objective
from softq.lab.report import paper
from softq.lab.report.ner import section
from softq.lab.report.ner_load import judge
from softq.lab.report.ner_results import Judged, NerResults
from softq.lab.report.systems import System
from softq.lab.tasks import TASKS
from softq.lab.tasks.ner_recipe import Annotations, Data, NerRecipe, Optimizer
from softq.lab.worlds.entities import ANNOTATORS
from softq.metrics import Interval, KindScores, span_f1, token_accuracy

TASK = TASKS["ner"]
SHARES = ("f1", "precision", "recall", "token_accuracy", "exact_match")

# --- results made by hand -------------------------------------------------------------------------------


def system(
    name,
    objective,
    tau,
    dev,
    test,
    *,
    data=None,
    grids=("g",),
    settings=None,
    annotations=None,
    c2=0.5,
    **scores,
):
    """A system whose shares are told apart by small differences."""
    recipe = NerRecipe(
        data=data or Data(train="a/train.conll", folds=5),
        objective=Objective(objective, tau),
        annotations=annotations or Annotations(),
        optimizer=Optimizer(c2=c2),
    )
    shares = {
        f"{split}_{share}": value - 0.001 * i
        for split, value in (("dev", dev), ("test", test))
        for i, share in enumerate(SHARES)
    }
    numbers = {
        "iterations": 90.0,
        "cross_entropy": 2.5,
        "kl": 0.25,
        "gradient_norm": 9e-5,
        "converged": 1.0,
        "parameters": 1234.0,
    }
    found = {"dev": dev, "test": test} | shares | numbers | scores
    return System(
        name, grids, recipe, settings or {}, {key: Interval(value) for key, value in found.items()}
    )


def make(kind, systems, **fields):
    defaults = {
        "choices": [(one.grids[0], one.name) for one in systems],
        "recipe": systems[0].recipe,
        "sentences": {"train": 1000, "test": 200},
        "signatures": ["token-accuracy"],
        "recipe_text": "task = ner",
    }
    return NerResults(kind=kind, systems=systems, **ORIGIN | defaults | fields)


def temperatures(**fields):
    """ML and three temperatures at two values of c2: c2 = 2 is best for ML and τ = 0.2, c2 = 0.5 for the others."""
    dev = {
        ("ml", None): (0.70, 0.71),
        ("raml", 0.1): (0.72, 0.70),
        ("raml", 0.2): (0.73, 0.74),
        ("raml", 0.3): (0.69, 0.60),
    }
    systems = [
        system(f"{name}{tau}-{c2}", name, tau, pair[i], pair[i] - 0.1, settings={"c2": c2}, c2=c2)
        for (name, tau), pair in dev.items()
        for i, c2 in enumerate((0.5, 2.0))
    ]
    gain = Interval(0.03, 0.01, 0.05)
    judged = {
        "raml0.2-2.0": Judged(
            Interval(0.64, 0.6, 0.7),
            Interval(0.9, 0.8, 0.95),
            gain,
            Interval(-0.001, -0.002, 0.003),
        )
    }
    return make("temperatures", systems, **{"judged": judged} | fields)


def test_table_2_beside_the_papers():
    results = temperatures()
    table = part(section(results), "temperatures")
    rows = rows_of(table)
    assert list(rows) == ["ML", "RAML τ = 0.1", "RAML τ = 0.2 (best)", "RAML τ = 0.3"]
    assert [float(row["c2"]) for row in rows.values()] == [2.0, 0.5, 2.0, 0.5]
    by_name = {one.name: one for one in results.systems}
    for row, name in zip(
        rows.values(), ("mlNone-2.0", "raml0.1-0.5", "raml0.2-2.0", "raml0.3-0.5"), strict=True
    ):
        scores = by_name[name].scores
        for title, score in (
            ("Dev accuracy", "dev_token_accuracy"),
            ("Dev F1", "dev_f1"),
            ("Test accuracy", "test_token_accuracy"),
            ("Test F1", "test_f1"),
            ("Exact match", "test_exact_match"),
        ):
            assert float(row[f"{title}, %"]) == 100 * scores[score].value
    best = rows["RAML τ = 0.2 (best)"]
    assert [
        float(best[f"{title}, paper"])
        for title in ("Dev accuracy", "Dev F1", "Test accuracy", "Test F1")
    ] == [98.4, 91.2, 97.3, 86.0]
    assert [row["Exact match, paper"] for row in rows.values()] == ["78.8", "", "80.1", ""]
    assert [
        float(best[f"Gain over ML in F1{end}"]) for end in ("", " low", " high")
    ] == pytest.approx([3, 1, 5])
    assert float(best["Gain in accuracy"]) == pytest.approx(-0.1)
    assert rows["ML"]["Gain over ML in F1"] == ""
    assert "another corpus" in table.note
    trained = rows_of(part(section(results), "training"))
    assert {row["Converged"] for row in trained.values()} == {"yes"}
    assert float(trained["ML"]["KL to the target"]) == 0.25


def test_the_papers_best_temperature():
    assert (
        max(paper.NER_RAML, key=lambda tau: paper.NER_RAML[tau].dev_f1) == paper.NER_BEST_TAU.value
    )
    assert all(
        max(paper.NER_RAML.values(), key=lambda row: row[i]) == paper.NER_RAML[0.2]
        for i in range(4)
    )
    assert list(paper.NER_RAML) == [round(0.1 * i, 1) for i in range(1, 10)]


def test_of_equal_temperatures_the_smallest():
    systems = [system(f"{tau}", "raml", tau, 0.5, 0.4) for tau in (0.3, 0.1, 0.2)]
    (variant,) = make("temperatures", systems).variants()
    assert variant.best.tau == 0.1
    assert [one.tau for one in variant.tuned] == [0.1, 0.2, 0.3]


def test_words_and_figure_of_temperatures():
    shown = section(
        temperatures(kinds={"PER": KindScores(0.5, 0.25, 1 / 3, 10, 20)}, kinds_of="raml0.2-2.0")
    )
    assert [one.name for one in shown.parts] == [
        "temperatures",
        "scores-by-temperature",
        "training",
        "types",
    ]
    assert (
        "trained on train.conll (1,000 sentences): by maximum likelihood (ML); by RAML"
        in shown.intro[0]
    )
    assert "5 folds of the training file" in shown.intro[1]
    assert shown.intro[2] == (
        "ML has a test F1 of 61.00 %; RAML at τ = 0.2, its best on the development part, has 64.00 %, +3.00 points (+1.00 to +5.00)."
    )
    assert len(shown.intro) == 3
    figure = part(shown, "scores-by-temperature")
    assert (
        "F1: RAML, dev rises from 72.0 at τ 0.1 to 74.0 at τ 0.2, then falls to 69.0 at τ 0.3; ML, dev 71.0"
        in figure.alt
    )
    assert (
        "F1 in the paper: RAML, dev rises from 90.5 at τ 0.1 to 91.2 at τ 0.2, then falls to 88.5 at τ 0.9; ML, dev 90.4"
        in figure.alt
    )
    labels, panels = legend_of(figure)
    assert labels == ["RAML, dev", "ML, dev", "RAML, test", "ML, test"]
    assert panels == ["F1", "Token accuracy", "F1 in the paper", "Token accuracy in the paper"]
    numbers = rows_of(figure.numbers)
    assert float(numbers["0.2"]["F1: RAML, test"]) == pytest.approx(64.0)
    assert numbers["0.9"]["F1: RAML, test"] == ""
    assert float(numbers["0.9"]["F1 in the paper: RAML, test"]) == 82.1
    types = part(shown, "types")
    assert types.rows == [("PER", 50.0, 25.0, pytest.approx(100 / 3), 10, 20)]
    assert types.caption == "RAML τ = 0.2 (c2=2) on the test part, by type of entity"
    assert "Sentences of the train part: 1,000 here, 14,987 in the paper." in shown.differences
    assert not any(told.startswith("Best τ") for told in shown.differences)


def test_what_has_not_converged_is_named():
    one = system("a", "ml", None, 0.5, 0.5, settings={"c2": 0.5})
    late = dataclasses.replace(
        system("b", "raml", 0.1, 0.5, 0.5, settings={"c2": 0.5}),
        scores={**one.scores, "converged": Interval(0.0)},
    )
    shown = section(make("temperatures", [one, late]))
    assert shown.intro[-1].endswith(
        "before training had converged, so the numbers are not the optimum’s: RAML τ = 0.1 (c2=0.5)."
    )
    assert [row[-1] for row in part(shown, "training").rows] == ["yes", "no"]
    assert not any(
        isinstance(one, report.Figure) for one in shown.parts
    )  # of one temperature there is no curve


def test_a_table_for_each_kind_of_model():
    systems = [
        system(
            f"{rule}{tau}",
            "raml" if tau else "ml",
            tau,
            0.5 + (tau or 0),
            0.5,
            settings={"constraints": rule, "c2": 1.0, "train": "x/y.conll"},
        )
        for rule in ("decode", "model")
        for tau in (None, 0.1, 0.2)
    ]
    shown = section(make("temperatures", systems))
    captions = [one.caption for one in shown.parts if one.name == "temperatures"]
    assert [re.search(r"\((.*)\)", caption)[1] for caption in captions] == [
        "constraints=decode",
        "constraints=model",
    ]
    assert shown.intro[2].startswith("With constraints=decode: ML has")
    assert not any("tag scheme" in told for told in shown.differences)


def test_the_papers_corpus_is_known_by_its_name():
    for name, known in (
        ("eng.train", True),
        ("CoNLL-2003.txt", True),
        ("conll03.gz", True),
        ("train.conll", False),
        ("conll.2003x", False),
    ):
        one = system("a", "ml", None, 0.5, 0.5, data=Data(train=f"/data/{name}"))
        assert make("temperatures", [one]).is_papers_corpus == known, name


# --- annotators -----------------------------------------------------------------------------------------

VOTE = {ties: Annotations(references="vote", ties=ties) for ties in ("entity", "outside")}
WEIGHTED = {
    weight: Annotations(weights="dawid-skene", entity_weight=weight) for weight in (1.0, 2.0, 4.0)
}


def crowd(kind="crowd", data=None, **fields):
    """The vote with ties to O is best on the development part, and not on the test part."""
    data = data or Data(train="x/crowd.gz", dev="x/gold.gz", halve_dev=True, annotators="all")
    systems = [
        system(
            "v1",
            "ml",
            None,
            0.60,
            0.66,
            data=data,
            grids=("vote-entity",),
            annotations=VOTE["entity"],
        ),
        system(
            "v2",
            "ml",
            None,
            0.62,
            0.61,
            data=data,
            grids=("vote-outside",),
            annotations=VOTE["outside"],
        ),
        system("p", "ml", None, 0.65, 0.60, data=data, grids=("pooled",)),
        system("r", "raml", 0.3, 0.64, 0.63, data=data, grids=("raml",)),
        *(
            system(
                f"s{weight}",
                "sqdml",
                0.2,
                0.7 - 0.01 * abs(weight - 2),
                0.69 + 0.01 * weight,
                data=data,
                grids=("sq",),
                annotations=how,
            )
            for weight, how in reversed(WEIGHTED.items())
        ),
    ]
    chosen = [one for one in systems if one.name not in ("s1.0", "s4.0")]
    gain = Interval(0.1, 0.05, 0.15)
    judged = {
        one.name: Judged(Interval(0.5, 0.4, 0.6), Interval(0.9, 0.85, 0.95), gain, gain)
        for one in chosen
    }
    judged["v2"] = Judged(Interval(0.61, 0.5, 0.7), Interval(0.9, 0.85, 0.95))
    return make(
        kind,
        systems,
        **{"choices": [(one.grids[0], one.name) for one in chosen], "judged": judged} | fields,
    )


def test_methods_against_the_best_vote():
    results = crowd()
    table = part(section(results), "methods")
    rows = rows_of(table)
    assert {name: row["Method"] for name, row in rows.items()} == {
        "vote-entity": "ML on the vote, ties to the entity",
        "vote-outside": "ML on the vote, ties to O (best vote)",
        "pooled": "ML on all annotators",
        "raml": "RAML on all annotators",
        "sq": "SQDML on all annotators, weighted (Dawid–Skene)",
    }
    assert results.baseline.name == "v2"
    assert {against.name for _, against in results.pairs()} == {"v2"}
    sqdml = next(one for one in results.systems if one.name == "s2.0")
    assert (
        float(rows["sq"]["τ"]),
        float(rows["sq"]["Entity weight"]),
        float(rows["sq"]["c2"]),
    ) == (0.2, 2.0, 0.5)
    for title, name in (
        ("Dev F1", "dev"),
        ("Test F1", "test"),
        ("Precision", "test_precision"),
        ("Recall", "test_recall"),
    ):
        assert float(rows["sq"][f"{title}, %"]) == 100 * sqdml.scores[name].value
    assert float(rows["sq"]["Gain over the best vote low"]) == 5.0
    assert rows["vote-outside"]["Gain over the best vote"] == ""
    assert "% of the Bayes rule" not in rows["sq"]
    assert (
        section(results)
        .intro[1]
        .startswith(
            "Settings were chosen by F1 on the development part, every other sentence of gold.gz"
        )
    )
    assert section(results).intro[2] == (
        "ML on the vote, ties to O is the best vote on the development part and has a test F1 of 61.00 %; SQDML on all annotators, "
        "weighted (Dawid–Skene) at τ = 0.2, the best of all on the development part, has 71.00 %, +10.00 points (+5.00 to +15.00)."
    )


def test_methods_that_words_do_not_tell_apart():
    one = crowd()
    twin = dataclasses.replace(one.systems[2], name="q", grids=("other",))
    results = dataclasses.replace(
        one,
        systems=[*one.systems, twin],
        choices=[*one.choices, ("other", "q"), ("again", "q"), ("pooled", "r")],
    )
    labels = [chosen.label for chosen in results.chosen()]
    assert "ML on all annotators (pooled)" in labels
    assert "ML on all annotators (other, again)" in labels
    assert [row[0] for row in part(section(results), "methods").rows][2:4] == [
        "pooled",
        "raml, pooled",
    ]


def test_without_a_vote_ml_is_the_baseline():
    one = crowd()
    results = dataclasses.replace(
        one, choices=[choice for choice in one.choices if "vote" not in choice[0]]
    )
    assert results.baseline.name == "p"
    assert part(section(results), "methods").columns[7].title == "Gain over the best ML"
    alone = dataclasses.replace(one, choices=[("pooled", "p")])
    assert "no other method is better there" in section(alone).intro[2]
    nobody = dataclasses.replace(one, choices=[("raml", "r")], judged={})
    assert nobody.baseline is None
    assert [shown.name for shown in section(nobody).parts] == ["methods"]
    assert (
        section(nobody).intro[2]
        == "RAML on all annotators at τ = 0.3, the best of all on the development part, has 63.00 %."
    )


def test_figures_of_methods():
    shown = section(crowd())
    figure = part(shown, "f1-by-method")
    assert "ML on the vote, ties to O 61.00 (50.00 to 70.00)" in figure.alt
    assert (
        "Gain over the best vote: ML on the vote, ties to the entity 10.00 (5.00 to 15.00)"
        in figure.alt
    )
    assert float(rows_of(figure.numbers)["RAML on all annotators"]["Test F1, % high"]) == 60.0
    curve = part(shown, "scores-by-entity-weight")
    assert [row[0] for row in curve.numbers.rows] == [1.0, 2.0, 4.0]
    assert curve.numbers.rows[2][1:] == pytest.approx((73.0, 72.9, 72.8))
    assert "F1 rises from 70.0 at weight 1 to 73.0 at weight 4" in curve.alt


@pytest.mark.parametrize(("count", "shown"), [(30, 30), (31, 20)])
def test_many_annotators(count, shown):
    found = [
        AnnotatorRow(f"w{i:02d}", 100 + i, 0.9, i / 100, i / 200, 0.1 + i) for i in range(count)
    ]
    drawn = section(crowd(annotators=found, annotator_model="dawid-skene"))
    table, figure = part(drawn, "annotators"), part(drawn, "all-annotators")
    assert len(table.rows) == shown
    assert (table.rows[0][0], table.rows[-1][0]) == (f"w{count - 1:02d}", "w00")
    assert (f"Of {count} annotators" in table.note) == (shown < count)
    assert {
        row["Annotator"]: float(row["Recall, %"]) for row in rows_of(figure.numbers).values()
    } == {one.name: 100 * one.recall for one in found}
    assert (
        f"{count} annotators by estimated recall and precision. w{count - 1} weighs most"
        in figure.alt
    )


def test_the_world_and_its_bayes_rule():
    data = Data()
    bayes = {
        "f1": 0.8,
        "precision": 0.81,
        "recall": 0.79,
        "token_accuracy": 0.95,
        "exact_match": 0.5,
    }
    rows = [AnnotatorRow(one.name, 10, 0.9, 0.8, 0.7, 5.0 - i) for i, one in enumerate(ANNOTATORS)]
    results = crowd(
        "world", data, bayes={data: bayes}, annotators=rows, annotator_model="dawid-skene"
    )
    shown = section(results)
    table = rows_of(part(shown, "methods"))
    for name, one in (("pooled", "p"), ("sq", "s2.0")):
        accuracy = (
            next(found for found in results.systems if found.name == one)
            .scores["test_token_accuracy"]
            .value
        )
        assert float(table[name]["% of the Bayes rule"]) == pytest.approx(100 * accuracy / 0.95)
    assert float(table["Bayes rule"]["Test F1, %"]) == 80.0
    assert float(table["Bayes rule"]["Token accuracy, %"]) == 95.0
    assert "Bayes rule 95.00" in part(shown, "accuracy-by-method").alt
    known = part(shown, "annotators")
    first = ANNOTATORS[0]
    assert known.rows[0][:5] == (first.name, *(100 * rate for rate in first[1:]))
    assert known.rows[0][5] == pytest.approx(100 * 0.98 * 0.99 * 0.99)
    right = [(1 - one.miss) * (1 - one.wrong_type) * (1 - one.wrong_boundary) for one in ANNOTATORS]
    assert right == sorted(
        right, reverse=True
    )  # so they are in the order of the weights made up above
    assert known.note.endswith("weight: 1.000.")
    assert shown.provenance["Files"] == "none: the built-in world"


# --- intervals ------------------------------------------------------------------------------------------


def test_intervals_are_of_the_same_sentences():
    rng = np.random.default_rng(0)
    gold, tokens = rng.integers(1, 4, 60), rng.integers(5, 9, 60)
    found = [rng.binomial(gold, share) for share in (0.9, 0.5)]
    ours, theirs = (
        torch.tensor(np.stack([hit, gold, gold, tokens - 1, tokens, hit == gold, gold * 0 + 1], 1))[
            None
        ].double()
        for hit in found
    )
    judged = judge(ours, theirs)
    f1, other = (float(span_f1(one.sum((0, 1)))) for one in (ours, theirs))
    assert judged.f1.value == pytest.approx(f1)
    assert judged.f1.low < f1 < judged.f1.high
    assert judged.f1_gain.value == pytest.approx(f1 - other)
    assert judged.f1_gain.low > 0
    assert judged.accuracy.value == pytest.approx(float(token_accuracy(ours.sum((0, 1)))))
    assert judged.accuracy_gain == (0, 0, 0)
    assert judge(ours, None).f1_gain is None
    assert judge(ours, theirs[:, :30]).f1_gain is None
    assert judge(ours, theirs.flip(1)).f1_gain is None  # as many sentences, but not the same
