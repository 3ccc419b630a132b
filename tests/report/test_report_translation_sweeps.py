"""Sweeps of the translation experiment in a report: scripted runs, numbers against the cells they are of."""

import random
import re
import shutil

import pytest
import torch

from report_cases import part, rows_of, text_of
from small_runs import Scripted, ToyTask, single_thread
from softq.lab import report, tasks
from softq.lab.recipe import Objective
from softq.lab.report.load import find_sources, read_sections
from softq.lab.report.translation_load import JUDGED, judge
from softq.lab.sweep import SWEEP, Grid, read_sweep, run_sweep
from softq.lab.tasks.translation import TranslationData, TranslationRecipe, read_translations
from softq.metrics import (
    TRANSLATION_METRICS,
    ExampleCounts,
    corpus_bleu,
    paired_test,
    translation_statistics,
)
from softq.neural.recipe import SequenceTraining

WORLD = TranslationData(sentences=8, dev_sentences=30, references=2, dev_references_drawn=3)


def translations(recipe):
    """The references with words replaced: fewer by RAML than by ML, fewest at τ = 0.4 and by n-grams."""
    rng = random.Random(recipe.training.seed)
    share = (
        0.4
        if recipe.objective.name == "ml"
        else 0.1 + abs(recipe.objective.tau - 0.4) + 0.1 * (recipe.candidates.sampler != "ngram")
    )
    test = read_translations(recipe.data).test
    return [
        [rng.choice(["x", "<unk>"]) if rng.random() < share else word for word in one[0].split()]
        for one in test.references
    ]


def rows_for(recipe):
    test = read_translations(recipe.data).test
    return translation_statistics(
        translations(recipe), [[one.split() for one in several] for several in test.references]
    )


class Told(Scripted):
    """A learner whose model is known by its translations."""

    def __init__(self, recipe):
        rows = rows_for(recipe)
        super().__init__(
            [[float(TRANSLATION_METRICS["sentence_bleu"](rows.sum(0)))] * recipe.training.epochs]
        )
        self.counts = ExampleCounts.of(rows[None])

    def evaluate_best(self):
        return super().evaluate_best()._replace(measures=[{"test_perplexity": 7.0}])


class Translating(ToyTask):
    """The task without its training."""

    name, recipe_type, metric = "translation", TranslationRecipe, "sentence BLEU"
    metrics, chosen_by = TRANSLATION_METRICS, "sentence_bleu"

    def __init__(self):
        super().__init__(None, None)

    def learner(self, cells, workers):
        return Told(cells[0])

    def signature(self, recipe):
        return f"reward={recipe.candidates.reward}"


@pytest.fixture(autouse=True)
def task(monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "translation", Translating())
    return tasks.TASKS["translation"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    base = TranslationRecipe(
        data=WORLD, training=SequenceTraining(epochs=2, patience=0, device="cpu")
    )
    hamming = ("sampler=hamming", "estimator=importance")
    grids = [
        Grid("ngram", ("ml", "raml"), "0.2,0.4", seed="0:1"),
        Grid("importance", ("raml",), "0.4,0.5", seed="0:1", over=hamming),
    ]
    with single_thread():
        run_sweep(Translating(), base, grids, folder)
    return folder


def test_a_sweep_of_the_world(world, tmp_path):
    sections = read_sections(find_sources([world]))
    (shown,) = sections
    each = ["temperatures", "bleu-by-temperature", "metrics", "training"]
    assert [one.name for one in shown.parts] == [
        "methods",
        *each,
        *each,
        "previous-work",
        "learning-curves-translation-sentence BLEU",
    ]
    cells = read_sweep(Translating(), world).cells
    tables = [rows_of(one) for one in shown.parts if one.name == "temperatures"]
    assert [list(table) for table in tables] == [
        ["ML", "RAML τ = 0.2", "RAML τ = 0.4 (best)", "Bayes rule"],
        ["ML", "RAML τ = 0.4 (best)", "RAML τ = 0.5", "Bayes rule"],
    ]
    for table, sampler in zip(tables, ("ngram", "hamming"), strict=True):
        for tau in (None, 0.4):
            wanted = "ngram" if tau is None else sampler
            found = [
                100 * one.cell.measures["test_corpus_bleu"]
                for one in cells
                if (one.cell.tau, one.cell.settings["sampler"]) == (tau, wanted)
            ]
            assert len(found) == 2
            row = table["ML" if tau is None else "RAML τ = 0.4 (best)"]
            ends = [float(row[f"Test corpus BLEU{end}"]) for end in ("", " low", " high")]
            assert ends == pytest.approx([sum(found) / 2, min(found), max(found)])
    ours, theirs = (
        torch.stack(
            [
                rows_for(
                    TranslationRecipe(
                        data=WORLD, objective=one, training=SequenceTraining(seed=seed)
                    )
                )
                for seed in range(2)
            ]
        )
        for one in (Objective("raml", 0.4), Objective("ml"))
    )
    (test,) = paired_test(
        ours[None], theirs, corpus_bleu, generator=torch.Generator().manual_seed(0)
    )
    row = tables[0]["RAML τ = 0.4 (best)"]
    gain = [float(row[f"Gain over ML in corpus BLEU{end}"]) for end in ("", " low", " high")]
    assert gain == pytest.approx([100 * end for end in test.gain])
    assert float(
        rows_of(part(shown, "metrics"))["Corpus BLEU, RAML τ = 0.4"]["p"]
    ) == pytest.approx(test.p_value)
    assert (
        30
        < float(tables[0]["Bayes rule"]["Average reward, %"])
        < float(tables[0]["Bayes rule"]["Test sentence BLEU"])
        < 100
    )
    assert shown.provenance["Reward"] == "reward=bleu"
    assert shown.provenance["Seeds"] == "0, 1"
    assert "Sentences of the test part: 30 here, 6,750 in the paper." in shown.differences
    page, *written = report.write_report(sections, tmp_path / "page.html")
    text = text_of(page)
    assert text.count("<img ") == 3
    assert all(len(alt) > 60 for alt in re.findall(r'alt="([^"]*)"', text))
    assert "nan" not in text
    assert {path.name for path in written} >= {
        "bleu-by-temperature.svg",
        "temperatures.csv",
        "metrics.csv",
        "methods.csv",
        "previous-work.csv",
    }


def test_a_sweep_whose_files_are_gone(world, tmp_path):
    (before,) = read_sections(find_sources([world]))
    shutil.copytree(world, tmp_path / "sweep")
    place = tmp_path / "sweep" / SWEEP
    place.write_text(place.read_text().replace('train = ""', f'train = "{tmp_path / "some.tsv"}"'))
    (shown,) = read_sections(find_sources([tmp_path / "sweep"]))
    assert shown.intro[-1].startswith("The data cannot be read here (")
    assert "some.tsv" in shown.intro[-1]
    assert str(tmp_path) not in " ".join([*shown.intro, shown.recipe, shown.command])
    assert [one.name for one in shown.parts] == [one.name for one in before.parts]
    old, new = (part(one, "temperatures").rows for one in (before, shown))
    assert [row[:6] for row in new] == [row[:6] for row in old if row[0] != "Bayes rule"]
    assert {row[4] for row in part(shown, "metrics").rows} == {None}


# --- intervals ------------------------------------------------------------------------------------------


def test_scores_and_gains_by_every_metric():
    ours, theirs = (
        rows_for(TranslationRecipe(data=WORLD, objective=one))[None]
        for one in (Objective("raml", 0.4), Objective("ml"))
    )
    found = judge(ours, theirs)
    assert tuple(found.scores) == tuple(found.gains) == JUDGED
    for name in JUDGED:
        mine, other = (float(TRANSLATION_METRICS[name](one[0].sum(0))) for one in (ours, theirs))
        assert found.scores[name].value == pytest.approx(mine)
        assert found.scores[name].low <= mine <= found.scores[name].high
        assert found.gains[name].gain.value == pytest.approx(mine - other)
        assert 0 < found.gains[name].p_value <= 1
    assert found.gains["corpus_bleu"].p_value < 0.01
    assert judge(ours, None).gains == {}
    assert judge(ours, ours).gains["corpus_bleu"].p_value == 1
