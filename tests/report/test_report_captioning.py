"""The captioning experiment in a report, of results made by hand: tables beside the paper's, figures, words."""

import dataclasses

import pytest

from report_cases import ORIGIN, legend_of, part, rows_of
from softq.cli.recipes import RECIPES
from softq.lab.recipe import Objective
from softq.lab.report import paper
from softq.lab.report.captioning import section
from softq.lab.report.captioning_examples import systems_of_study
from softq.lab.report.captioning_results import CaptioningResults, papers_best, papers_scores
from softq.lab.report.captioning_tables import METRICS
from softq.lab.report.parsing_load import mean_and_range
from softq.lab.report.sentence_results import Judged
from softq.lab.report.systems import System
from softq.lab.sweep import read_recipe
from softq.lab.sweep.grids import expand, varied
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import settings_of
from softq.lab.tasks.captioning import (
    CaptionData,
    CaptionDecoding,
    CaptioningRecipe,
    CaptionVocabulary,
)
from softq.metrics import Interval, PairedTest
from softq.neural.recipe import CandidateSettings, SequenceTraining
from softq.neural.text_generator import CaptionerSettings

FILES = CaptionData(
    train="a/train.tsv", dev="a/dev.tsv", test="a/test.tsv", encoder="efficientnet-lite0"
)
WORLD = CaptionData()
SCORES = ["average_reward", "max_reward", "corpus_bleu", "rouge_l", "cider_d", "exact_match"]
PAIRS = {"SQDML over RAML": 0.01, "SQDML over ML": 0.03, "RAML over ML": 0.02}


def system(
    objective, tau, dev, test, *, data=FILES, settings=None, without=(), seeds=(0,), **sections
):
    """A system whose scores are told apart by small differences; of the world, also those that are exact."""
    recipe = CaptioningRecipe(data=data, objective=Objective(objective, tau), **sections)
    found = {
        "dev": dev,
        "test": test,
        "epoch": 3.0,
        "test_agreement": 0.125,
        "test_perplexity": 4.5,
        "parameters": 4096.0,
    }
    found |= {
        f"{split}_{name}": value - 0.01 * i
        for split, value in (("dev", dev), ("test", test))
        for i, name in enumerate(SCORES)
    }
    if not data.train:
        found |= {"test_expected_reward": test, "test_ceiling": 0.5}
    scores = {name: Interval(value) for name, value in found.items() if name not in without}
    return System(
        f"{objective}{tau}{sorted((settings or {}).items())}",
        ("g",),
        recipe,
        settings or {},
        scores,
        seeds,
    )


def make(systems, **fields):
    defaults = {
        "recipe": dataclasses.replace(systems[0].recipe, objective=Objective("ml")),
        "sentences": {"train": 1000, "dev": 100, "test": 200},
        "signatures": ["bleu"],
        "recipe_text": "task = captioning",
    }
    return CaptioningResults(systems=systems, **ORIGIN | defaults | fields)


def paired(gain):
    return {name: PairedTest(Interval(gain, gain - 0.005, gain + 0.005), 0.004) for name in SCORES}


def judged(level, gain=None):
    scores = {
        name: Interval(level - 0.01 * i, level - 0.01 * i - 0.02, level - 0.01 * i + 0.02)
        for i, name in enumerate(SCORES)
    }
    return Judged(scores, {} if gain is None else paired(gain))


def temperatures(data=FILES, **fields):
    """RAML is best at τ = 0.9 on the development part, SQDML at 0.8."""
    ml, *others = systems = [
        system("ml", None, 0.31, 0.30, data=data),
        system("raml", 0.8, 0.32, 0.31, data=data),
        system("raml", 0.9, 0.34, 0.32, data=data),
        system("sqdml", 0.8, 0.36, 0.33, data=data),
        system("sqdml", 2.0, 0.35, 0.34, data=data),
    ]
    found = {
        ml.name: judged(0.30),
        others[1].name: judged(0.32, 0.02),
        others[2].name: judged(0.33, 0.03),
    }
    return make(systems, **{"judged": found, "over_raml": {others[2].name: paired(0.01)}} | fields)


def test_the_papers_numbers():
    assert (
        list(paper.CAPTIONING_RAML)
        == list(paper.CAPTIONING_SQDML)
        == [round(0.8 + 0.05 * i, 2) for i in range(8)]
    )
    for table in (paper.CAPTIONING_RAML, paper.CAPTIONING_SQDML):
        for i in range(2):  # bold in Table 1
            assert (
                max(table, key=lambda tau: table[tau][i]) == paper.CAPTIONING_BEST_TAU.value == 0.9
            )
    assert papers_best("SQDML").average_reward - papers_best(
        "RAML"
    ).average_reward == pytest.approx(0.03)
    assert papers_best("RAML").corpus_bleu - papers_best("ML").corpus_bleu == pytest.approx(0.71)
    assert (
        min(row.average_reward for row in paper.CAPTIONING_RAML.values())
        > paper.CAPTIONING_ML.average_reward
    )  # "outperform ML"
    assert papers_scores(system("raml", 1.15, 0.1, 0.1)) == (10.77, 27.01)
    assert papers_scores(system("raml", 0.1, 0.1, 0.1)) is None
    assert tuple(METRICS) == tuple(SCORES)
    rows = rows_of(part(section(temperatures()), "paper-table-1"))
    assert list(rows["1.05"].values()) == [
        "1.05",
        "10.71",
        "10.82",
        "10.8",
        "26.91",
        "27.29",
        "27.2",
    ]


def test_table_1_beside_the_papers():
    results = temperatures()
    table = part(section(results), "temperatures")
    rows = rows_of(table)
    assert list(rows) == [
        "ML",
        "RAML τ = 0.8",
        "RAML τ = 0.9 (best)",
        "SQDML τ = 0.8 (best)",
        "SQDML τ = 2",
    ]
    for row, one in zip(rows.values(), results.systems, strict=True):
        for title in ("Dev average reward", "Test average reward", "Test corpus BLEU"):
            assert float(row[title]) == 100 * one.scores[title.lower().replace(" ", "_")].value
    assert [row["Average reward, paper (MSCOCO)"] for row in rows.values()] == [
        "10.71",
        "10.77",
        "10.88",
        "10.82",
        "",
    ]
    assert [row["Corpus BLEU, paper (MSCOCO)"] for row in rows.values()] == [
        "26.91",
        "27.02",
        "27.62",
        "27.08",
        "",
    ]
    assert [row["Gain, paper (MSCOCO)"] for row in rows.values()] == [
        "",
        "0.06",
        "0.17",
        "0.11",
        "",
    ]
    gain = "Gain over ML in average reward"
    assert [
        float(rows["SQDML τ = 0.8 (best)"][f"{gain}{end}"]) for end in ("", " low", " high")
    ] == pytest.approx([3, 2.5, 3.5])
    assert float(rows["SQDML τ = 2"][gain]) == pytest.approx(
        4
    )  # was not judged: the plain difference
    assert "MSCOCO, which is another corpus" in table.note
    coco = temperatures(dataclasses.replace(FILES, train="coco/train.tsv"))
    assert "another corpus" not in part(section(coco), "temperatures").note
    assert "Average reward, paper" in rows_of(part(section(coco), "temperatures"))["ML"]


def test_the_headline():
    shown = section(temperatures(WORLD))
    assert shown.intro[2] == (
        "In average reward on the test part, SQDML at its best τ = 0.8 has 33.00 % (31.00 to 35.00), RAML at its best τ = 0.9 has 32.00 % "
        "(30.00 to 34.00), ML has 30.00 % (28.00 to 32.00) (95 % intervals over test images). Gains: SQDML over RAML +1.00 points (+0.50 "
        "to +1.50, p = 0.004); SQDML over ML +3.00 points (+2.50 to +3.50, p = 0.004); RAML over ML +2.00 points (+1.50 to +2.50, "
        "p = 0.004). In the paper, on MSCOCO: SQDML over RAML +0.03, SQDML over ML +0.20, RAML over ML +0.17. Over all that may be said of "
        "a scene, the consensus captions have an expected reward of 50.00 %, which is the ceiling; of it, captions reach: SQDML 66.0 %, "
        "RAML 64.0 %, ML 60.0 %."
    )
    assert "400 scenes of the built-in world, each with 5 captions: by maximum" in shown.intro[0]
    assert "the test part, 300 others" in shown.intro[1]
    of_files = section(temperatures(judged={}, over_raml={}))
    assert "on train.tsv (1,000 images): by maximum" in of_files.intro[0]
    assert (
        "dev.tsv (100 images); the final numbers are of the test part, test.tsv (200 images)"
        in of_files.intro[1]
    )
    assert "SQDML at its best τ = 0.8 has 33.00 %, RAML" in of_files.intro[2]  # no intervals
    assert (
        "Gains: SQDML over RAML +1.00 points; SQDML over ML +3.00 points; RAML" in of_files.intro[2]
    )
    assert "ceiling" not in " ".join(of_files.intro)
    halves = section(temperatures(dataclasses.replace(FILES, test="", halve_dev=True)))
    assert "every other image of dev.tsv (100)" in halves.intro[1]


def test_all_scores():
    table = part(section(temperatures(WORLD)), "scores")
    rows = rows_of(table)
    assert list(rows) == ["ML", "RAML τ = 0.9", "SQDML τ = 0.8", "Consensus", "References"]
    sqdml = rows["SQDML τ = 0.8"]
    ends = [
        [float(sqdml[f"{title}{end}"]) for end in ("", " low", " high")]
        for title in ("Average reward, %", "ROUGE-L, %", "CIDEr-D")
    ]
    assert ends == [
        pytest.approx(one) for one in ([33, 31, 35], [30, 28, 32], [0.29, 0.27, 0.31])
    ]  # CIDEr-D as it is
    assert (float(sqdml["Expected reward, %"]), float(sqdml["Share of the ceiling, %"])) == (
        pytest.approx(33),
        pytest.approx(66),
    )
    assert (
        rows["Consensus"]["Expected reward, %"],
        rows["Consensus"]["Share of the ceiling, %"],
    ) == ("50.0", "100.0")
    assert rows["References"]["Average reward, %"] == "12.5"
    assert "10.09 % in the paper" in table.note
    of_files = rows_of(part(section(temperatures()), "scores"))
    assert "Consensus" not in of_files
    assert "Expected reward, %" not in of_files["ML"]
    assert "References" not in rows_of(
        part(section(make([system("ml", None, 0, 0, without=("test_agreement",))])), "scores")
    )


def test_gains_by_every_metric():
    for results, low in ((temperatures(), True), (temperatures(judged={}, over_raml={}), False)):
        rows = rows_of(part(section(results), "gains"))
        assert list(rows) == list(PAIRS)
        for row, gain in zip(rows.values(), PAIRS.values(), strict=True):
            for name, title in METRICS.items():
                scale = 1 if name == "cider_d" else 100
                assert float(row[title]) == pytest.approx(scale * gain)
                if low:
                    assert float(row[f"{title} low"]) == pytest.approx(scale * (gain - 0.005))
            assert row["p, average reward"] == ("0.004" if low else "")
        assert [row["Average reward, paper (MSCOCO)"] for row in rows.values()] == [
            "0.03",
            "0.2",
            "0.17",
        ]
        assert [row["Corpus BLEU, paper (MSCOCO)"] for row in rows.values()] == [
            "-0.08",
            "0.63",
            "0.71",
        ]


def test_an_objective_with_one_temperature_is_a_point_beside_the_others():
    one_each = [
        system("ml", None, 0.31, 0.30),
        system("raml", 3.0, 0.32, 0.31),
        system("sqdml", 0.05, 0.36, 0.33),
    ]
    figure = part(section(make(one_each)), "reward-by-temperature")
    assert legend_of(figure)[0] == ["RAML", "SQDML", "ML"]
    assert float(rows_of(figure.numbers)["0.05"]["Test average reward: SQDML"]) == pytest.approx(33)
    alone = section(make([one_each[0], one_each[1], system("sqdml", 3.0, 0.36, 0.33)]))
    assert "reward-by-temperature" not in [
        one.name for one in alone.parts
    ]  # nothing goes along an axis


def test_figures_of_temperatures():
    shown = section(temperatures(WORLD))
    figure = part(shown, "reward-by-temperature")
    labels, panels = legend_of(figure)
    assert labels == ["RAML", "SQDML", "ML"]
    assert panels == [
        "Development average reward",
        "Test average reward",
        "Test corpus BLEU",
        "The paper’s average reward, MSCOCO",
    ]
    assert (
        "Test average reward: RAML rises from 31.0 at τ 0.8 to 32.0 at τ 0.9; SQDML rises from 33.0 at τ 0.8"
        in figure.alt
    )
    numbers = rows_of(figure.numbers)
    assert numbers["0.9"]["The paper’s average reward, MSCOCO: SQDML"] == "10.91"
    assert float(numbers["2.0"]["Test average reward: ML"]) == pytest.approx(30)
    exact = part(shown, "expected-reward-by-temperature")
    assert legend_of(exact)[0] == ["RAML", "SQDML", "ML", "Ceiling"]
    assert "Ceiling 50.0" in exact.alt
    assert float(rows_of(exact.numbers)["0.8"]["Share of the ceiling: SQDML"]) == pytest.approx(66)
    assert not [one for one in section(temperatures()).parts if one.name.startswith("expected")]


def test_sweeps_that_are_not_whole():
    def names(*systems):
        return [one.name for one in section(make(list(systems))).parts]

    ml, raml, sqdml = (
        system(name, tau, 0.3, 0.3) for name, tau in (("ml", None), ("raml", 0.1), ("sqdml", 0.1))
    )
    assert names(ml) == ["temperatures", "scores", "paper-table-1", "training"]
    assert (
        names(ml, sqdml)
        == names(raml, sqdml)
        == ["temperatures", "scores", "gains", "paper-table-1", "training"]
    )
    assert section(make([ml])).intro[2] == "In average reward on the test part, ML has 30.00 %."
    assert "In the paper, on MSCOCO: SQDML over ML +0.20." in section(make([ml, sqdml])).intro[2]
    bare = [
        dataclasses.replace(
            one, scores={name: one.scores[name] for name in ("dev", "test", "epoch")}
        )
        for one in (ml, raml, sqdml)
    ]
    shown = section(make(bare, missing="gone", no_study="images are gone"))
    assert shown.intro[2].startswith(
        "In average reward on the test part, SQDML at τ = 0.1 has 30.00 %, RAML"
    )
    assert shown.intro[3:] == [
        "There is no case study: images are gone.",
        "The data cannot be read here (gone), so intervals and whatever else needs it are left out.",
    ]
    assert {value for row in part(shown, "scores").rows for value in row[1:]} == {None}
    two = [
        dataclasses.replace(
            one,
            seeds=(0, 1),
            scores={**one.scores, "test_average_reward": mean_and_range([0.5, 0.7])},
        )
        for one in (ml, raml)
    ]
    assert (
        "RAML at τ = 0.1 has 60.00 % (50.00 to 70.00), ML has 60.00 % (50.00 to 70.00) (means over 2 seeds)."
        in (section(make(two)).intro[2])
    )
    assert "under them the range" in part(section(make(two)), "temperatures").note


def test_which_candidates_served_best():
    def one(objective, tau, dev, sampler="ngram", size=10):
        candidates = CandidateSettings(sampler=sampler, size=size)
        return system(
            objective,
            tau,
            dev,
            dev,
            settings={"sampler": sampler, "candidates.size": size},
            candidates=candidates,
        )

    ml = one("ml", None, 0.2)
    results = make(
        [
            ml,
            one("raml", 0.1, 0.3),
            one("sqdml", 0.1, 0.3),
            one("sqdml", 0.2, 0.31),
            one("sqdml", 0.1, 0.4, "near+recombined"),
        ]
    )
    table = part(section(results), "candidate-sets")
    assert [row[:2] for row in table.rows] == [
        ("RAML, n-gram replacement", 0.1),
        ("SQDML, n-gram replacement", 0.2),
        ("SQDML, captions of images that are alike and references recombined (best)", 0.1),
    ]
    assert [row[4] for row in table.rows] == [
        pytest.approx(100 * gain) for gain in (0.1, 0.11, 0.2)
    ]  # over the one ML
    sizes = rows_of(
        part(
            section(make([ml, one("raml", 0.1, 0.3, size=10), one("raml", 0.1, 0.4, size=20)])),
            "candidate-sets",
        )
    )
    assert list(sizes) == [
        "RAML, n-gram replacement (candidates.size=10)",
        "RAML, n-gram replacement (candidates.size=20) (best)",
    ]
    assert (sizes["RAML, n-gram replacement (candidates.size=10)"]["Gain over ML"], len(sizes)) == (
        "",
        2,
    )  # another size is its best
    other = make(
        [ml, one("raml", 0.1, 0.3, size=10), one("sqdml", 0.1, 0.4, size=50)]
    )  # each has its own, as in the paper
    assert not [one for one in section(other).parts if one.name == "candidate-sets"]


def test_which_models_the_case_study_is_of():
    def one(objective, dev, sampler):
        return system(
            objective, None if objective == "ml" else 0.1, dev, dev, settings={"sampler": sampler}
        )

    ml, raml = one("ml", 0.2, "ngram"), one("raml", 0.3, "ngram")
    weak, strong, alone = (
        one("sqdml", dev, sampler)
        for dev, sampler in ((0.3, "ngram"), (0.4, "near"), (0.5, "model"))
    )
    rival = one("raml", 0.1, "near")
    assert systems_of_study(make([ml])) == systems_of_study(make([weak])) == []
    assert systems_of_study(make([ml, raml])) == [ml, raml]
    assert systems_of_study(make([ml, weak, strong])) == [ml, strong]
    assert systems_of_study(make([ml, raml, weak, strong, rival, alone])) == [
        ml,
        rival,
        strong,
    ]  # nothing to compare the best one with


def test_the_papers_recipe_is_one_comparison():
    """RAML has other batches, candidates and examples than SQDML there; they stand in one table all the same."""
    base, grids = read_recipe(TASKS["captioning"], RECIPES / "captioning-paper.toml")
    flags = varied(TASKS["captioning"], grids)
    systems = [
        dataclasses.replace(
            system("ml", None, 0.3, 0.3),
            name=name,
            recipe=recipe,
            settings=settings_of(recipe, flags),
        )
        for name, (recipe, _) in expand(TASKS["captioning"], base, grids).items()
    ]
    results = make(systems, recipe=base, sentences={"train": 113_000, "dev": 5_000, "test": 5_000})
    (variant,) = results.variants()
    assert (len(variant.systems), variant.objectives, variant.ml is None) == (
        17,
        ["RAML", "SQDML"],
        False,
    )
    shown = section(results)
    assert [row[3] is None for row in part(shown, "temperatures").rows] == [False] * 17
    assert not [
        told
        for told in shown.differences
        if not told.startswith(("Best τ", "In training", "Steps take"))
    ], shown.differences


def test_what_differs_from_the_paper():
    told = section(
        make(
            [
                system(
                    "raml",
                    0.4,
                    0.5,
                    0.5,
                    candidates=CandidateSettings(sampler="recombined", size=20, k=5),
                    training=SequenceTraining(batch_size=32),
                )
            ],
            recipe=CaptioningRecipe(
                data=FILES,
                model=CaptionerSettings(hidden=128, dropout=0.2),
                vocabulary=CaptionVocabulary(min_freq=1),
                training=SequenceTraining(start="runs/ml"),
                decoding=CaptionDecoding(beam=3),
            ),
        )
    ).differences
    for words in (
        "The images are those of train.tsv, where the paper has MSCOCO.",
        "Images of the train part: 1,000 here, 113,000 in the paper.",
        "Features are by efficientnet-lite0, in the paper vgg16-fc7.",
        "Word vectors and states have 256 and 128 numbers, in the paper 256 and 512.",
        "Words are known that occur 1 time or more, in the paper 5 times.",
        "The beam holds 3 captions, in the paper 5.",
        "Steps take so many examples: 32 by RAML; in the paper 10 by ML, and 100 by RAML and SQDML.",
        "In training, 20 % are dropped out; the paper does not say how it regularised.",
        "Training goes on from another model; the paper’s begins anew.",
        "Best τ of RAML: 0.4 here, 0.9 in the paper.",
        "A step of RAML takes 5 of 20 candidates by references recombined, drawn anew (estimator set); in the paper 10 of a set of 100 by "
        "n-gram replacement.",
    ):
        assert words in told, words
    assert "rendered scenes" in section(temperatures(WORLD)).differences[0]
