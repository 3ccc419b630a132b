"""The paper's experiments in a report.

Small sweeps of each task, numbers against what their runs have stored.
"""

import random
import re
import shutil

import pytest

import captioning_runs
import parsing_runs
from report_cases import interval, part, rows_of, text_of
from small_runs import Scripted, ToyTask, single_thread
from softq.lab import report
from softq.lab.report import find_sources, galleries, pictures, read_sections
from softq.lab.run import RunFolder
from softq.lab.sweep import SWEEP, Grid, read_sweep, run_sweep
from softq.lab.tasks import TASKS
from softq.lab.tasks.ner_recipe import NerData, NerRecipe
from softq.lab.tasks.sequence_recipe import TranslationData, TranslationRecipe
from softq.lab.tasks.translation import Translation, read_translations
from softq.metrics import (
    TRANSLATION_METRICS,
    ExampleCounts,
    SpanScores,
    span_f1,
    span_statistics,
    translation_statistics,
)
from softq.neural.recipe import SequenceTraining

pytestmark = pytest.mark.usefixtures("one_thread")


def section_of(folder):
    with single_thread():
        (section,) = read_sections(find_sources([folder]))
    return section


def check_page(section, tmp_path):
    """It can be written, shows no missing value as such, and no place of a file."""
    page = report.write_report([section], tmp_path / "page.html")[0]
    words = text_of(page)
    assert not re.search(r"\bnan\b", words)
    assert page.stat().st_size < 1_500_000
    return words


# --- named entities -------------------------------------------------------------------------------------

SENTENCES = [
    "Ann/B-PER Lee/I-PER lives/O in/O Rome/B-LOC",
    "Bob/B-PER saw/O Oslo/B-LOC",
    "the/O man/O went/O to/O Rome/B-LOC",
    "Eve/B-PER met/O Bob/B-PER Lee/I-PER",
    "in/O Oslo/B-LOC it/O rains/O",
    "Ann/B-PER ran/O",
]


def write_file(path, sentences):
    blocks = ["".join(pair.replace("/", "\t") + "\n" for pair in one.split()) for one in sentences]
    path.write_text("".join(block + "\n" for block in blocks))
    return str(path)


@pytest.fixture(scope="module")
def entities(tmp_path_factory):
    """Temperatures, from files that are named by their whole paths."""
    place = tmp_path_factory.mktemp("files")
    train = write_file(place / "some.conll", SENTENCES * 2)
    test = write_file(place / "held.conll", SENTENCES[:4])
    grids = [Grid("plain", ("ml", "raml"), "0.2,0.4", over=("c2=0.1,1",))]
    with single_thread():
        recipe = NerRecipe(data=NerData(train=train, test=test, folds=2))
        run_sweep(TASKS["ner"], recipe, grids, place / "sweep")
    return place / "sweep"


@pytest.fixture(scope="module")
def annotated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    weighted = ("references=all", "weights=dawid-skene", "entity_weight=1,2,3")
    grids = [
        Grid("vote", ("ml",), over=("references=vote", "ties=outside,entity")),
        Grid("sqdml", ("sqdml",), "0.3", over=weighted),
    ]
    with single_thread():
        recipe = NerRecipe(data=NerData(sentences=60, dev_sentences=40))
        run_sweep(TASKS["ner"], recipe, grids, folder)
    return folder


def test_temperatures_of_a_tagger(entities, tmp_path):
    section = section_of(entities)
    rows = rows_of(part(section, "temperatures"))
    best = {}
    for cell in (member.cell for member in read_sweep(TASKS["ner"], entities).cells):
        key = "ML" if cell.tau is None else f"RAML τ = {cell.tau:g}"
        best[key] = max(best.get(key, cell), cell, key=lambda one: one.dev)
    assert rows.keys() == best.keys()
    for name, cell in best.items():  # each at its best c2
        assert float(rows[name]["Dev F1, %"]) == 100 * cell.dev
        accuracy = 100 * cell.measures["test_token_accuracy"]
        assert float(rows[name]["Test token accuracy, %"]) == accuracy
        assert rows[name]["c2"] == f"{cell.settings['c2']:g}"
    assert rows["RAML τ = 0.2"]["Test F1, paper (CoNLL-2003)"] == "86.0"
    assert rows["RAML τ = 0.2"]["Gain, paper (CoNLL-2003)"] == "1.1"
    (choice,) = [one for one in read_sweep(TASKS["ner"], entities).choices if one.tau]
    gain = interval(rows[f"RAML τ = {choice.tau:g}"], "Gain over ML in F1")
    assert gain == pytest.approx([100 * end for end in choice.gain])
    types = part(section, "types")
    assert [(row[0], row[-1]) for row in types.rows] == [("LOC", 3), ("PER", 4)]
    data = rows_of(part(section, "data"))
    assert data["train"] == {
        "Split": "train", "From": "some.conll", "Sentences": "12", "In the paper": "14987"
    }  # fmt: skip
    assert data["dev"]["From"] == "2 folds of some.conll"
    words = check_page(section, tmp_path)
    assert 'train = "some.conll"' in section.recipe
    assert rows_of(section.differences)["data.folds"]["Here"] == "2"
    assert "held.conll" in words


def test_the_report_needs_no_data(entities, tmp_path):
    before = section_of(entities)
    shutil.copytree(entities, tmp_path / "sweep")
    file = tmp_path / "sweep" / SWEEP
    file.write_text(file.read_text().replace(str(entities.parent), str(tmp_path / "gone")))
    after = section_of(tmp_path / "sweep")
    assert [one.name for one in after.parts] == [one.name for one in before.parts]
    assert part(after, "temperatures").rows == part(before, "temperatures").rows
    assert part(after, "types").rows == part(before, "types").rows


def test_annotators(annotated, tmp_path):
    section = section_of(annotated)
    rows = rows_of(part(section, "methods"))
    assert list(rows) == [
        "ML on the vote, ties to O",
        "ML on the vote, ties to the entity",
        "SQDML on all annotators, Dawid–Skene weights",
        "Bayes rule",
    ]
    cells = [member.cell for member in read_sweep(TASKS["ner"], annotated).cells]
    vote = max((one for one in cells if one.objective == "ml"), key=lambda one: one.dev)
    ours = max((one for one in cells if one.objective == "sqdml"), key=lambda one: one.dev)
    row = rows["SQDML on all annotators, Dawid–Skene weights"]
    assert row["entity_weight"] == f"{ours.settings['entity_weight']:g}"
    gain = interval(row, "Gain over the best vote in F1")
    assert gain[0] == pytest.approx(100 * (ours.test - vote.test))
    assert gain[1] <= gain[0] <= gain[2]
    run = next(path for path in (annotated / "runs").iterdir() if ours.hash in path.name)
    facts = RunFolder(run).result()["facts"]
    bayes = facts["bayes"]["test_token_accuracy"]
    assert float(rows["Bayes rule"]["Test token accuracy, %"]) == pytest.approx(100 * bayes)
    share = 100 * ours.measures["test_token_accuracy"] / bayes
    assert float(row["Token accuracy, % of the Bayes rule"]) == pytest.approx(share)
    known = rows_of(part(section, "annotators"))
    for annotator in facts["annotators"]:
        assert float(known[annotator["name"]]["Weight"]) == annotator["weight"]
    assert len(part(section, "all-annotators").numbers.rows) == len(known)
    curve = part(section, "by-entity_weight").numbers
    assert [row[0] for row in curve.rows] == [1.0, 2.0, 3.0]
    assert "the vote, ties" in check_page(section, tmp_path)


def test_facts_of_a_tagger_are_those_of_its_counts(annotated):
    run = RunFolder(next(iter(sorted((annotated / "runs").iterdir()))))
    counts = run.test_counts().model(0)
    (cell,) = run.result()["cells"]
    assert float(span_f1(counts.sum(0))) == cell["test"]
    types = run.result()["facts"]["types"].values()
    assert sum(one["gold"] for one in types) == int(counts.sum(0)[2])
    gold = [["B-PER", "O"]]
    kinds = SpanScores.of(span_statistics(gold, gold, "bio")).kinds
    assert kinds["PER"]._asdict().keys() == next(iter(types)).keys()


# --- parsing --------------------------------------------------------------------------------------------


def test_a_parser_of_the_world(tmp_path):
    flags = ["--sentences", 24, "--dev-sentences", 12, "--annotators", 2]
    grids = [Grid("g", ("ml", "raml"), "0.2,0.5", seed="0:1")]
    with single_thread():
        run_sweep(TASKS["parsing"], parsing_runs.recipe(*flags), grids, tmp_path / "sweep")
    section = section_of(tmp_path / "sweep")
    rows = rows_of(part(section, "temperatures"))
    assert list(rows) == ["ML", "RAML τ = 0.2", "RAML τ = 0.5", "Bayes rule"]
    sweep = read_sweep(TASKS["parsing"], tmp_path / "sweep")
    for name, tau in (("ML", None), ("RAML τ = 0.2", 0.2), ("RAML τ = 0.5", 0.5)):
        cells = [member.cell for member in sweep.cells if member.cell.tau == tau]
        found = [100 * cell.measures["test_uas"] for cell in cells]
        ends = interval(rows[name], "Test UAS, %")
        assert ends == pytest.approx([sum(found) / 2, min(found), max(found)])
    (choice,) = [one for one in sweep.choices if one.objective == "raml"]
    gain = interval(rows[f"RAML τ = {choice.tau:g}"], "Gain over ML in UAS")
    assert gain == pytest.approx([100 * end for end in choice.gain])
    facts = RunFolder(sweep.cells[0].run).result()["facts"]
    assert float(rows["Bayes rule"]["Test UAS, %"]) == 100 * facts["bayes"]["test_uas"]
    right = ", ".join(f"{100 * share:.1f} %" for share in facts["annotator_scores"])
    assert part(section, "data").note.endswith(f"has right: {right}.")
    assert len(part(section, "learning-curves-parsing-UAS").numbers.rows) == 2
    check_page(section, tmp_path)


# --- translation ----------------------------------------------------------------------------------------

WORLD = TranslationData(sentences=8, dev_sentences=30, references=2, dev_references_drawn=3)


def counts_of(recipe):
    """The references with words replaced.

    Fewer by RAML than by ML, fewest at τ = 0.4 and by n-grams.
    """
    rng = random.Random(recipe.training.seed)
    others = 0.1 * (recipe.candidates.sampler != "ngram")
    tau = recipe.objective.tau
    share = 0.4 if tau is None else 0.1 + abs(tau - 0.4) + others
    references = [
        [one.split() for one in several]
        for several in read_translations(recipe.data).test.references
    ]
    found = [["x" if rng.random() < share else word for word in one[0]] for one in references]
    return translation_statistics(found, references)


class Told(Scripted):
    """A learner whose model is known by its translations."""

    def __init__(self, recipe):
        counts = counts_of(recipe)
        score = float(TRANSLATION_METRICS["sentence_bleu"](counts.sum(0)))
        super().__init__([[score] * recipe.training.epochs])
        self.counts = ExampleCounts.of(counts[None])


class Translating(ToyTask):
    """The task without its training."""

    name, recipe_type, metrics = "translation", TranslationRecipe, TRANSLATION_METRICS
    titles = {"sentence_bleu": "sentence BLEU"}  # noqa: RUF012

    def __init__(self):
        super().__init__(None, None)

    def learner(self, cells, workers):
        return Told(cells[0])

    def signature(self, recipe):
        return f"reward={recipe.candidates.reward}"

    def facts(self, recipe, outputs):
        return Translation().facts(recipe, outputs)


def test_translation_by_several_candidates(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "translation", Translating())
    training = SequenceTraining(epochs=2, patience=0, device="cpu")
    hamming = ("sampler=hamming", "estimator=importance")
    grids = [
        Grid("ngram", ("ml", "raml"), "0.2,0.4", seed="0:1"),
        Grid("importance", ("raml",), "0.4,0.5", seed="0:1", over=hamming),
    ]
    with single_thread():
        base = TranslationRecipe(data=WORLD, training=training)
        run_sweep(Translating(), base, grids, tmp_path / "sweep")
    section = section_of(tmp_path / "sweep")
    tables = [rows_of(one) for one in section.parts if one.name == "temperatures"]
    assert [list(table) for table in tables] == [
        ["ML", "RAML τ = 0.2", "RAML τ = 0.4", "Bayes rule"],
        ["ML", "RAML τ = 0.4", "RAML τ = 0.5", "Bayes rule"],
    ]
    assert tables[0]["ML"]["Test corpus BLEU, %"] == tables[1]["ML"]["Test corpus BLEU, %"]
    printed = "Test corpus BLEU, paper (IWSLT)"
    assert [table["RAML τ = 0.4"][printed] for table in tables] == ["28.77", "28.31"]
    cells = [member.cell for member in read_sweep(Translating(), tmp_path / "sweep").cells]
    for table, sampler in zip(tables, ("ngram", "hamming"), strict=True):
        found = [
            100 * one.measures["test_corpus_bleu"]
            for one in cells
            if (one.tau, one.settings["sampler"]) == (0.4, sampler)
        ]
        row = interval(table["RAML τ = 0.4"], "Test corpus BLEU, %")
        assert row == pytest.approx([sum(found) / 2, min(found), max(found)])
    methods = rows_of(part(section, "methods"))
    assert list(methods)[:3] == ["ML", "RAML, n-gram replacement", "RAML, importance sampling"]
    assert methods["RAML, importance sampling"]["Best τ, paper"] == "0.7"
    gains = [rows_of(one)["RAML over ML"] for one in section.parts if one.name == "gains"]
    assert [row["Corpus BLEU, paper (IWSLT)"] for row in gains] == ["1.11", "0.95"]
    bayes = Translation().facts(base, [])["bayes"]
    shown = tables[0]["Bayes rule"]["Test sentence BLEU, %"]
    assert float(shown) == pytest.approx(100 * bayes["test_sentence_bleu"])
    assert rows_of(part(section, "previous-work"))["The paper"]["Gain"] == "1.11"
    assert section.provenance["Seeds"] == "0, 1"
    differences = rows_of(section.differences)
    assert differences["Sentences, test"]["Here"] == "30"
    check_page(section, tmp_path)


# --- captioning -----------------------------------------------------------------------------------------


def caption_sweep(folder, *flags):
    # models that say a lot of different things, after next to no training
    wild = ["--init", 3, "--epochs", 1, "--device", "cpu"]
    grid = Grid("all", ("ml", "raml", "sqdml"), "0.1,0.4")
    with single_thread():
        recipe = captioning_runs.recipe(*wild, *flags)
        run_sweep(captioning_runs.TASK, recipe, [grid], folder)
    return folder


def test_captions_of_the_world(tmp_path):
    folder = caption_sweep(tmp_path / "sweep", "--dev-scenes", 16)
    section = section_of(folder)
    sweep = read_sweep(captioning_runs.TASK, folder)
    study, others = part(section, "case-study"), part(section, "disagreements")
    rows = rows_of(part(section, "scores"))
    assert list(rows)[-2:] == ["Bayes rule", "References against each other"]
    best = {}
    for member in sweep.cells:
        if member.cell.dev > best.get(member.cell.objective, (-1, None))[0]:
            best[member.cell.objective] = (member.cell.dev, member)
    ours, theirs = (RunFolder(best[name][1].run).outputs() for name in ("sqdml", "raml"))
    leads = [
        sum(a["rewards"]) / len(a["rewards"]) - sum(b["rewards"]) / len(b["rewards"])
        for a, b in zip(ours, theirs, strict=True)
    ]
    order = sorted(range(len(leads)), key=lambda i: -leads[i])
    wanted = [ours[i]["image"] for i in order[: galleries.IN_STUDY] if leads[i] > 1e-9]
    assert [one.name for one in study.examples] == wanted
    first = study.examples[0]
    assert first.outputs["SQDML"] == (ours[order[0]]["text"] or "(no words)")
    assert [row[0] for row in first.scores.rows[:-2]] == ours[order[0]]["references"]
    assert first.scores.rows[0][-1] == 100 * ours[order[0]]["rewards"][0]
    assert first.picture.content.startswith(b"\x89PNG")
    assert len(others.examples) <= galleries.MOST_AHEAD + galleries.MOST_BEHIND
    measures = best["sqdml"][1].cell.measures
    row = rows[f"SQDML τ = {best['sqdml'][1].cell.tau:g}"]
    share = 100 * measures["test_expected_reward"] / measures["test_ceiling"]
    assert float(row["Expected reward, % of the Bayes rule"]) == pytest.approx(share)
    gains = rows_of(part(section, "gains"))["SQDML over RAML"]
    assert gains["Average reward, paper (MSCOCO)"] == "0.03"
    check_page(section, tmp_path)


def test_pictures_of_photographs(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (800, 400), "red").save(tmp_path / "large.jpg")
    found = pictures.thumbnail(str(tmp_path), "some/where/large.jpg")
    assert (found.kind, found.width, found.height) == ("jpeg", 144, 72)
    assert len(found.content) < 3000
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    assert pictures.thumbnail(str(tmp_path), "broken.jpg") is None
    assert pictures.thumbnail(str(tmp_path), "missing.jpg") is None
