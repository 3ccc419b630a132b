"""The translation experiment in a report, of results made by hand: tables beside the paper's, figures, words."""

import dataclasses
import re

import pytest

from report_cases import ORIGIN, legend_of, part, rows_of
from softq.lab.recipe import Objective
from softq.lab.report import paper
from softq.lab.report.parsing_load import mean_and_range
from softq.lab.report.systems import System
from softq.lab.report.translation import section
from softq.lab.report.translation_results import (
    Judged,
    TranslationResults,
    method_of,
    papers_corpus_bleu,
    papers_sentence_bleu,
)
from softq.lab.tasks.translation import (
    TranslationData,
    TranslationDecoding,
    TranslationRecipe,
    VocabularySettings,
)
from softq.metrics import Interval, PairedTest
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining
from softq.neural.text_generator import TranslatorSettings

FILES = TranslationData(train="a/train.tsv", dev="a/dev.tsv", test="a/test.tsv")
NGRAM, IMPORTANCE = (
    CandidateSettings(),
    CandidateSettings(sampler="hamming", estimator="importance"),
)
HAMMING = CandidateSettings(sampler="hamming", reward="hamming", estimator="importance")
MEASURES = ("sentence_bleu", "corpus_bleu", "average_reward", "exact_match")

# --- results made by hand -------------------------------------------------------------------------------


def system(
    objective,
    tau,
    dev,
    test,
    *,
    data=FILES,
    candidates=NGRAM,
    settings=None,
    seeds=(0,),
    without=(),
    **sections,
):
    """A system whose shares are told apart by small differences."""
    recipe = TranslationRecipe(
        data=data, objective=Objective(objective, tau), candidates=candidates, **sections
    )
    shares = {
        f"{split}_{name}": value - 0.01 * i
        for split, value in (("dev", dev), ("test", test))
        for i, name in enumerate(MEASURES)
    }
    numbers = {
        "epoch": 3.0,
        "test_perplexity": 4.5,
        "test_sacrebleu": 31.25,
        "test_length_ratio": 0.98,
        "parameters": 4096.0,
    }
    found = {"dev": dev, "test": test} | shares | numbers
    name = f"{objective}{tau}{sorted((settings or {}).items())}"
    scores = {key: Interval(value) for key, value in found.items() if key not in without}
    return System(name, ("g",), recipe, settings or {}, scores, seeds)


def make(systems, **fields):
    defaults = {
        "recipe": systems[0].recipe,
        "sentences": {"train": 1000, "dev": 100, "test": 200},
        "signatures": ["bleu"],
        "recipe_text": "task = translation",
    }
    return TranslationResults(systems=systems, **ORIGIN | defaults | fields)


def judged(level, gain=None):
    """Scores that fall from metric to metric, and gains over ML that fall with them."""
    scores = {
        name: Interval(level - 0.01 * i, level - 0.01 * i - 0.02, level - 0.01 * i + 0.02)
        for i, name in enumerate(MEASURES)
    }
    if gain is None:
        return Judged(scores, {})
    return Judged(
        scores,
        {
            name: PairedTest(Interval(gain, gain - 0.01, gain + 0.01), 0.004 * (i + 1))
            for i, name in enumerate(MEASURES)
        },
    )


def temperatures(data=FILES, **fields):
    """ML, RAML and SQDML; RAML is best at τ = 0.4 on the development part, SQDML, which is best of all, at 0.3."""
    systems = [
        system("ml", None, 0.31, 0.30, data=data),
        system("raml", 0.1, 0.30, 0.31, data=data),
        system("raml", 0.4, 0.33, 0.32, data=data),
        system("raml", 1.0, 0.32, 0.33, data=data),
        system("sqdml", 0.2, 0.32, 0.29, data=data),
        system("sqdml", 0.3, 0.34, 0.28, data=data),
    ]
    found = {systems[0].name: judged(0.30), systems[2].name: judged(0.32, 0.02)}
    return make(systems, **{"judged": found} | fields)


def ways(**fields):
    """ML once, and RAML by three ways to candidates."""
    names = ("sampler", "reward", "estimator")

    def settings(candidates):
        return {name: getattr(candidates, name) for name in names}

    systems = [system("ml", None, 0.31, 0.30, settings=settings(NGRAM))]
    for candidates, taus, level in (
        (NGRAM, (0.2, 0.4), 0.33),
        (IMPORTANCE, (0.7, 0.8), 0.32),
        (HAMMING, (0.85, 0.9), 0.325),
    ):
        systems += [
            system(
                "raml",
                tau,
                level + 0.01 * i,
                level,
                candidates=candidates,
                settings=settings(candidates),
            )
            for i, tau in enumerate(taus)
        ]
    return make(systems, **fields)


def test_the_papers_numbers():
    assert (
        list(paper.TRANSLATION_RAML)
        == list(paper.TRANSLATION_IMPORTANCE)
        == [round(0.1 * i, 1) for i in range(1, 11)]
    )
    assert list(paper.TRANSLATION_HAMMING) == [round(0.6 + 0.05 * i, 2) for i in range(10)]
    for i in range(2):  # bold in Table 4
        assert (
            max(paper.TRANSLATION_RAML, key=lambda tau: paper.TRANSLATION_RAML[tau][i])
            == paper.TRANSLATION_BEST_TAU.value
            == 0.4
        )
    for table, best, value in (
        (
            paper.TRANSLATION_IMPORTANCE,
            paper.TRANSLATION_IMPORTANCE_BEST_TAU,
            28.61,
        ),  # also at the foot of Table 9
        (paper.TRANSLATION_HAMMING, paper.TRANSLATION_HAMMING_BEST_TAU, 28.39),  # also in the text
    ):
        assert max(table, key=table.get) == best.value
        assert table[best.value] == value
        assert (
            min(table.values()) > paper.TRANSLATION_ML.corpus_bleu
        )  # "RAML performs consistently better than the ML (27.66)"
    ours = paper.TRANSLATION_OTHERS[-1]  # Tables 4, 5 and 6 agree
    assert (ours.ml, ours.proposed) == (
        paper.TRANSLATION_ML.corpus_bleu,
        paper.TRANSLATION_RAML[0.4].corpus_bleu,
    )
    assert all(work.proposed > work.ml for work in paper.TRANSLATION_OTHERS)
    assert (
        max(work.proposed for work in paper.TRANSLATION_OTHERS) == ours.proposed
    )  # bold in Table 5
    assert max(work.ml for work in paper.TRANSLATION_OTHERS) == 27.90
    assert (
        paper.TRANSLATION_EXACT_MATCH_ML.value > paper.TRANSLATION_EXACT_MATCH_RAML.value
    )  # bold in Table 6


def test_table_4_beside_the_papers():
    results = temperatures()
    table = part(section(results), "temperatures")
    rows = rows_of(table)
    assert list(rows) == [
        "ML",
        "RAML τ = 0.1",
        "RAML τ = 0.4 (best)",
        "RAML τ = 1",
        "SQDML τ = 0.2",
        "SQDML τ = 0.3 (best)",
    ]
    for row, one in zip(rows.values(), results.systems, strict=True):
        for title, score in (
            ("Dev sentence BLEU", "dev_sentence_bleu"),
            ("Test sentence BLEU", "test_sentence_bleu"),
            ("Test corpus BLEU", "test_corpus_bleu"),
            ("Average reward, %", "test_average_reward"),
            ("Exact match, %", "test_exact_match"),
        ):
            assert float(row[title]) == 100 * one.scores[score].value
    assert [row["Sentence BLEU, paper (IWSLT)"] for row in rows.values()] == [
        "29.15",
        "28.67",
        "29.8",
        "29.34",
        "",
        "",
    ]
    assert [row["Corpus BLEU, paper (IWSLT)"] for row in rows.values()] == [
        "27.66",
        "27.42",
        "28.77",
        "28.4",
        "",
        "",
    ]
    assert [row["Gain, paper (IWSLT)"] for row in rows.values()] == [
        "",
        "-0.24",
        "1.11",
        "0.74",
        "",
        "",
    ]
    best = rows["RAML τ = 0.4 (best)"]
    gain = "Gain over ML in corpus BLEU"
    assert [float(best[f"{gain}{end}"]) for end in ("", " low", " high")] == pytest.approx(
        [2, 1, 3]
    )
    assert float(rows["RAML τ = 1"][gain]) == pytest.approx(
        3
    )  # was not judged: the plain difference
    assert rows["RAML τ = 1"][f"{gain} low"] == rows["ML"][gain] == ""
    assert "its Table 4, on IWSLT 2014, which is another corpus" in table.note
    assert "range" not in table.note


def test_table_6_beside_the_papers():
    table = part(section(temperatures()), "metrics")
    rows = rows_of(table)
    titles = ["Sentence BLEU", "Corpus BLEU", "Average reward", "Exact match"]
    assert list(rows) == [
        f"{title}, {one}" for title in titles for one in ("RAML τ = 0.4", "SQDML τ = 0.3")
    ]
    raml = [rows[f"{title}, RAML τ = 0.4"] for title in titles]
    assert [row["ML, paper (IWSLT)"] for row in raml] == ["29.15", "27.66", "", "3.79"]
    assert [row["RAML, paper (IWSLT)"] for row in raml] == ["29.8", "28.77", "", "3.35"]
    assert [row["Gain, paper (IWSLT)"] for row in raml] == ["0.65", "1.11", "", "-0.44"]
    assert [float(row["p"]) for row in raml] == pytest.approx([0.004, 0.008, 0.012, 0.016])
    assert [float(raml[1][f"ML{end}"]) for end in ("", " low", " high")] == pytest.approx(
        [29, 27, 31]
    )
    assert [
        float(raml[1][f"Best temperature{end}"]) for end in ("", " low", " high")
    ] == pytest.approx([31, 29, 33])
    assert [float(raml[1][f"Gain{end}"]) for end in ("", " low", " high")] == pytest.approx(
        [2, 1, 3]
    )
    sqdml = rows["Corpus BLEU, SQDML τ = 0.3"]  # was not judged: as measured
    assert (float(sqdml["Best temperature"]), float(sqdml["Gain"]), sqdml["p"]) == (
        pytest.approx(27),
        pytest.approx(-2),
        "",
    )
    assert sqdml["RAML, paper (IWSLT)"] == ""
    alone = section(make([system("raml", 0.1, 0.8, 0.8)]))
    assert [one.name for one in alone.parts] == ["temperatures", "training", "previous-work"]


def test_table_5_holds_the_papers_and_ours():
    table = part(section(temperatures()), "previous-work")
    rows = rows_of(table)
    assert len(rows) == 6
    assert (rows["Ranzato et al., MIXER"]["ML"], rows["Ranzato et al., MIXER"]["Proposed"]) == (
        "20.1",
        "21.81",
    )
    assert float(rows["The paper"]["Gain"]) == 1.11
    ours = rows["Here, RAML τ = 0.4"]
    assert [float(ours[name]) for name in ("ML", "Proposed", "Gain")] == pytest.approx([29, 31, 2])
    assert table.note.endswith(
        "The last row is ours, on another corpus, so that only gains compare."
    )
    unjudged = rows_of(part(section(temperatures(judged={})), "previous-work"))[
        "Here, RAML τ = 0.4"
    ]
    assert float(unjudged["Gain"]) == pytest.approx(2)
    without = part(section(make([system("ml", None, 0.5, 0.5)])), "previous-work")
    assert len(without.rows) == 5
    assert "ours" not in without.note


def test_which_table_of_the_paper_a_system_is_of():
    def shown(candidates, objective="raml", tau=0.7):
        one = system(objective, None if objective == "ml" else tau, 0.5, 0.5, candidates=candidates)
        return method_of(one), papers_sentence_bleu(one), papers_corpus_bleu(one)

    assert shown(NGRAM) == ("ngram", 29.52, 28.59)
    assert (
        shown(IMPORTANCE)
        == shown(dataclasses.replace(IMPORTANCE, estimator="printed"))
        == ("importance", None, 28.61)
    )
    assert shown(HAMMING) == ("hamming", None, 28.18)
    assert shown(HAMMING, tau=0.1) == ("hamming", None, None)
    assert shown(CandidateSettings(sampler="model")) == ("other", None, None)
    assert shown(CandidateSettings(sampler="hamming", estimator="set")) == (
        "other",
        None,
        None,
    )  # draws that are not divided by their chance
    assert shown(NGRAM, "sqdml") == ("ngram", None, None)
    assert shown(IMPORTANCE, "ml") == ("importance", 29.15, 27.66)


def test_tables_8_and_9_share_the_ml_of_table_4():
    results = ways()
    shown = section(results)
    tables = [one for one in shown.parts if one.name == "temperatures"]
    assert [re.search(r"its Table (\d)", table.note)[1] for table in tables] == ["4", "8", "9"]
    for table, method in zip(
        tables, ("n-gram replacement", "importance sampling", "Hamming reward"), strict=True
    ):
        rows = rows_of(table)
        assert method in table.caption
        assert float(rows["ML"]["Test corpus BLEU"]) == pytest.approx(29)
        assert rows["ML"]["Corpus BLEU, paper (IWSLT)"] == "27.66"
        assert len(rows) == 3
        assert ("Sentence BLEU, paper (IWSLT)" in rows["ML"]) == (method == "n-gram replacement")
    assert [row["Corpus BLEU, paper (IWSLT)"] for row in rows_of(tables[1]).values()] == [
        "27.66",
        "28.61",
        "28.3",
    ]
    assert [row["Gain, paper (IWSLT)"] for row in rows_of(tables[2]).values()] == [
        "",
        "0.31",
        "0.73",
    ]
    assert float(
        rows_of(tables[2])["RAML τ = 0.9 (best)"]["Gain over ML in corpus BLEU"]
    ) == pytest.approx(2.5)
    assert len([one for one in results.chosen() if one[0].objective == "ML"]) == 1


def test_ways_to_candidates_beside_each_other():
    shown = section(ways())
    assert shown.parts[0].name == "methods"
    table = shown.parts[0]
    assert [row[:2] for row in table.rows] == [
        ("ML", None),
        ("RAML, n-gram replacement (sampler=ngram reward=bleu estimator=set)", 0.4),
        ("RAML, importance sampling (sampler=hamming reward=bleu estimator=importance)", 0.8),
        ("RAML, Hamming reward (sampler=hamming reward=hamming estimator=importance)", 0.9),
    ]
    assert [row[7:] for row in table.rows] == [
        (27.66, None),
        (28.77, 0.4),
        (28.61, 0.7),
        (28.39, 0.9),
    ]
    assert [row[5] for row in table.rows] == [None, *(pytest.approx(gain) for gain in (3, 2, 2.5))]
    told = " ".join(shown.intro)
    for words in (
        "n-gram replacement are references",
        "Importance sampling draws",
        "which is the reward itself",
    ):
        assert words in told
    assert any(
        "Best τ of RAML, importance sampling (sampler=hamming" in one and "0.8 here, 0.7 in" in one
        for one in shown.differences
    )
    assert not any("Best τ of RAML, n-gram" in one for one in shown.differences)
    assert any(
        one.startswith("With sampler=hamming reward=bleu estimator=importance: weights are divided")
        for one in shown.differences
    )
    assert not any(one.name == "methods" for one in section(temperatures()).parts)


def test_ml_of_other_data_is_not_shared():
    def one(objective, tau, candidates, merge):
        data = dataclasses.replace(FILES, merge=merge)
        settings = {"sampler": candidates.sampler, "merge": merge}
        return system(objective, tau, 0.5, 0.5, data=data, candidates=candidates, settings=settings)

    results = make(
        [
            one("ml", None, NGRAM, True),
            one("raml", 0.4, NGRAM, False),
            one("raml", 0.4, IMPORTANCE, True),
        ]
    )
    compared = {
        (variant.settings["sampler"], variant.settings["merge"]): variant.ml
        for variant in results.variants()
    }
    assert compared == {("ngram", False): None, ("hamming", True): results.systems[0]}
    assert all(
        len(shown.rows) < 3 for shown in section(results).parts if shown.name == "temperatures"
    )


def test_the_papers_corpus_is_known_by_its_name():
    for name, known in (
        ("iwslt14.tsv", True),
        ("IWSLT2014/train.de", True),
        ("iwslt/other/train.de", False),
        ("tatoeba.tsv", False),
    ):
        results = temperatures(dataclasses.replace(FILES, train=f"/data/{name}"))
        assert results.is_papers_corpus == known, name
        shown = section(results)
        assert ("another corpus" in part(shown, "temperatures").note) != known
        assert any("where the paper has IWSLT 2014" in told for told in shown.differences) != known


def test_words_and_figure_of_temperatures():
    shown = section(temperatures())
    names = [one.name for one in shown.parts]
    assert names == ["temperatures", "bleu-by-temperature", "metrics", "training", "previous-work"]
    assert (
        "LSTMs with attention (256 units) was trained to translate on train.tsv (1,000 sentences): by maximum"
        in shown.intro[0]
    )
    assert (
        "dev.tsv (100 sentences); the final numbers are of the test part, test.tsv (200 sentences)"
        in shown.intro[2]
    )
    assert (
        shown.intro[3]
        == "ML has a test sentence BLEU of 30.00 %; SQDML at τ = 0.3, its best on the development part, has 28.00 %."
    )
    assert len(shown.intro) == 4
    figure = part(shown, "bleu-by-temperature")
    assert (
        "Development sentence BLEU: RAML rises from 30.0 at τ 0.1 to 33.0 at τ 0.4, then falls to 32.0 at τ 1; SQDML"
        in figure.alt
    )
    assert (
        "RAML, paper (IWSLT) rises from -0.24 at τ 0.1 to 1.11 at τ 0.4, then falls to 0.74 at τ 1"
        in figure.alt
    )
    assert figure.title.endswith("the paper’s Table 4")
    labels, panels = legend_of(figure)
    assert labels == ["RAML", "SQDML", "ML", "RAML, paper (IWSLT)"]
    assert panels == [
        "Development sentence BLEU",
        "Test sentence BLEU",
        "Test corpus BLEU",
        "Gain over ML in test corpus BLEU",
    ]
    numbers = rows_of(figure.numbers)
    assert float(numbers["0.4"]["Test corpus BLEU: RAML"]) == pytest.approx(31)
    assert float(numbers["0.3"]["Gain over ML in test corpus BLEU: SQDML"]) == pytest.approx(-2)
    assert numbers["0.9"]["Test corpus BLEU: RAML"] == ""
    assert "Sentences of the train part: 1,000 here, 153,326 in the paper." in shown.differences
    curves = [one for one in section(ways()).parts if one.name == "bleu-by-temperature"]
    assert [one.title.rsplit(" ", 1)[1] for one in curves] == ["4", "8", "9"]
    assert "RAML, paper (IWSLT) rises from 0.30 at τ 0.6" in curves[2].alt


def test_the_best_temperature_in_words():
    results = temperatures()
    results = dataclasses.replace(
        results, systems=[one for one in results.systems if one.objective != "SQDML"]
    )
    assert section(results).intro[3] == (
        "ML has a test sentence BLEU of 30.00 %; RAML at τ = 0.4, its best on the development part, has 32.00 %, +2.00 points "
        "(+1.00 to +3.00). In corpus BLEU these are 29.00 and 31.00 %, +2.00 points (+1.00 to +3.00, p = 0.008)."
    )


def test_what_was_not_measured_is_a_dash():
    every = [f"{split}_{name}" for split in ("dev", "test") for name in MEASURES]
    gone = (*every, "test_perplexity", "test_sacrebleu", "test_length_ratio", "parameters")
    results = make(
        [system("raml" if tau else "ml", tau, 0.5, 0.5, without=gone) for tau in (None, 0.1, 0.4)]
    )
    shown = section(results)
    assert [one.name for one in shown.parts] == ["temperatures", "metrics", "previous-work"]
    assert {
        value
        for row in part(shown, "temperatures").rows
        for i, value in enumerate(row)
        if i in (1, 2, 4, 6, 8, 9)
    } == {None}
    assert part(shown, "previous-work").rows[-1][1:] == (None, None, None)
    some = make(
        [system("ml", None, 0.5, 0.5, without=("test_sacrebleu",)), system("raml", 0.4, 0.5, 0.5)]
    )
    rows = rows_of(part(section(some), "training"))
    assert (rows["ML"]["Test sacreBLEU"], rows["RAML τ = 0.4"]["Test sacreBLEU"]) == ("", "31.25")
    assert rows["ML"]["Test perplexity"] == "4.5"


def test_the_world_has_a_bayes_rule():
    data = TranslationData(references=3)
    bayes = {
        "sentence_bleu": 0.9,
        "corpus_bleu": 0.93,
        "average_reward": 0.5,
        "exact_match": 0.56,
        "expected_reward": 0.48,
    }
    systems = temperatures(data).systems
    systems = [
        dataclasses.replace(one, scores={**one.scores, "test_expected_reward": Interval(0.45)})
        for one in systems
    ]
    shown = section(make(systems, bayes={data: bayes}))
    row = rows_of(part(shown, "temperatures"))["Bayes rule"]
    assert [
        float(row[name]) for name in ("Test sentence BLEU", "Test corpus BLEU", "Exact match, %")
    ] == pytest.approx([90, 93, 56])
    figure = part(shown, "bleu-by-temperature")
    assert "Bayes rule 90.0" in figure.alt
    assert legend_of(figure)[0] == ["RAML", "SQDML", "ML", "Bayes rule", "RAML, paper (IWSLT)"]
    assert "4,000 sentences of the built-in world, each with 3 right translations" in shown.intro[0]
    assert shown.intro[3].endswith(
        "the reward to be expected of it is 45.00 %, and 48.00 % of the Bayes rule."
    )
    assert "made-up languages" in shown.differences[0]
    assert (
        "each with a right translation:"
        in section(temperatures(TranslationData(references=1))).intro[0]
    )
    assert [row["Expected reward"] for row in rows_of(part(shown, "training")).values()] == [
        "0.45"
    ] * 6


def test_what_differs_from_the_paper():
    def told(candidates=NGRAM, **sections):
        return section(
            make([system("raml", 0.4, 0.5, 0.5, candidates=candidates, **sections)])
        ).differences

    plain = " ".join(
        told(
            CandidateSettings(size=100, k=10, estimator="paper"),
            model=TranslatorSettings(dropout=0.0),
        )
    )
    for words in (
        "candidates",
        "beam",
        "Steps",
        "dropped",
        "transformer",
        "vectors",
        "subwords",
        "smoothed",
        "goes on",
    ):
        assert words not in plain, words
    other = told(
        CandidateSettings(size=20, k=5),
        model=TranslatorSettings(hidden=128, dropout=0.3),
        training=SequenceTraining(batch_size=32, start="runs/ml"),
        decoding=TranslationDecoding(beam=3),
        optimizer=Optimizer(label_smoothing=0.1),
        vocabulary=VocabularySettings(kind="subwords", size=8000),
    )
    for words in (
        "a step uses 5 of 20 candidates that are drawn anew (estimator set), in the paper 10 of a set of 100.",
        "Word vectors and states have 256 and 128 numbers, in the paper 256 each.",
        "Words are split into up to 8,000 subwords; the paper has 32,008 and 22,821 whole words.",
        "The beam holds 3 sentences, in the paper 5.",
        "Steps take 32 sentences; in the paper 64 by ML, and 100 by RAML.",
        "Training goes on from another model; the paper’s RAML begins anew.",
        "In training, 30 % are dropped out; the paper does not say how it regularised.",
        "Labels are smoothed by 0.1, in the paper not at all.",
    ):
        assert words in other, words
    assert any(
        "The model is a transformer" in one
        for one in told(model=TranslatorSettings(kind="transformer"))
    )
    assert "20 candidates are drawn of a sentence, in the paper 10." in told(
        dataclasses.replace(HAMMING, size=20)
    )
    assert not any("are drawn of a sentence" in one for one in told(IMPORTANCE))
    transformer = section(
        make([system("ml", None, 0.5, 0.5, model=TranslatorSettings(kind="transformer"))])
    )
    assert transformer.intro[0].startswith("A transformer (256 units) was trained")


def test_seeds_are_shown_by_their_range():
    two = system("ml", None, 0.5, 0.6, seeds=(0, 1))
    two = dataclasses.replace(
        two, scores={**two.scores, "test_corpus_bleu": mean_and_range([0.5, 0.7])}
    )
    table = part(section(make([two])), "temperatures")
    assert "under them the range" in table.note
    assert [
        float(rows_of(table)["ML"][f"Test corpus BLEU{end}"]) for end in ("", " low", " high")
    ] == pytest.approx([60, 50, 70])
