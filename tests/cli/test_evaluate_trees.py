"""softq evaluate with trees.

Scores of a parser and of files, tables, two parsers, how it refuses.
"""

import dataclasses

import pytest
from test_predict_trees import as_text

from ner_commands import evaluated, predictions, refused, softq, well
from small_runs import single_thread
from softq import CRFTagger, DependencyParser
from softq.cli.kinds import base, parser
from softq.formats.conllu import TreeSentence, read_conllu
from softq.lab.worlds import TreeWorld
from softq.metrics import ATTACHMENT_METRICS, align_score, attachment_statistics

WORLD = TreeWorld(crossing=0.0, lemmas=6)
SMALL = {
    "bits": 12,
    "relation_bits": 8,
    "epochs": 2,
    "random_state": 0,
    "min_freq": 1,
    "templates": ["head.upos|dep.upos", "dep.word"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    train = WORLD.sample(50, seed=0)
    with single_thread():
        DependencyParser(**SMALL).fit(train).save(folder / "good")
        DependencyParser(**SMALL).fit(train[:4]).save(folder / "poor")
        DependencyParser(**SMALL).fit(train, [s.heads for s in train]).save(folder / "bare")
        CRFTagger(templates=["word[0]"]).fit([["a"]], [["O"]]).save(folder / "tagger")
    return folder


@pytest.fixture(scope="module")
def gold(tmp_path_factory):
    path = tmp_path_factory.mktemp("gold") / "gold.conllu"
    path.write_text(as_text(WORLD.sample(40, seed=1)), encoding="utf-8")
    return path


def test_predicting_and_scoring_are_evaluating(models, gold, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "AT_A_TIME", 7)
    predictions(models / "good", gold, "--out", tmp_path / "system.conllu")
    direct = evaluated(models / "good", gold)
    again = evaluated("--predictions", tmp_path / "system.conllu", gold)
    assert (direct.pop("model"), again.pop("model"), again.pop("predictions")) == (
        str(models / "good"),
        None,
        str(tmp_path / "system.conllu"),
    )
    assert direct == again
    sentences, system = read_conllu(gold), read_conllu(tmp_path / "system.conllu")
    sums = attachment_statistics(
        sentences, [s.heads for s in system], [s.relations for s in system]
    ).sum(0)
    for name, metric in ATTACHMENT_METRICS.items():
        assert direct[name] == float(metric(sums))
    assert 0.3 < direct["las"] < direct["uas"] < 1
    aligned = align_score(sentences, system)
    assert (aligned.uas.f1, aligned.las.f1, aligned.clas.f1) == pytest.approx(
        (direct["uas"], direct["las"], direct["clas"])
    )
    assert (direct["file"], direct["sentences"], direct["words"]) == (
        str(gold),
        40,
        sum(len(s.forms) for s in sentences),
    )


def test_tables_add_up(models, gold):
    found = evaluated(models / "good", gold)
    words = found["words"]
    for name, score in (("relations", found["las"]), ("arc_lengths", found["uas"])):
        rows = found[name].values()
        assert sum(row["predicted"] for row in rows) == sum(row["gold"] for row in rows) == words
        assert sum(row["precision"] * row["predicted"] for row in rows) == pytest.approx(
            score * words
        )
        assert sum(row["recall"] * row["gold"] for row in rows) == pytest.approx(score * words)
        for row in rows:
            total = row["precision"] + row["recall"]
            assert row["f1"] == pytest.approx(
                2 * row["precision"] * row["recall"] / total if total else 0.0
            )
    lengths = found["sentence_lengths"].values()
    assert (sum(row["sentences"] for row in lengths), sum(row["words"] for row in lengths)) == (
        found["sentences"],
        words,
    )
    for name, size in (("uas", "words"), ("las", "words"), ("exact_match", "sentences")):
        assert sum(row[name] * row[size] for row in lengths) == pytest.approx(
            found[name] * sum(row[size] for row in lengths)
        )


def test_rows_by_hand():
    sentence = TreeSentence(
        tuple("abcd"),
        *[("_",) * 4] * 4,
        heads=(2, 0, 2, 1),
        relations=("det", "root", "obj:x", "det"),
    )
    heads, names = [(2, 0, 4, 2)], [("det", "root", "obj", "obj")]
    relations, arc_lengths = parser._by_relation_and_arc([sentence], heads, names)
    rows = attachment_statistics([sentence], heads, names)
    assert relations["det"] == (1.0, 0.5, 2 / 3, 1, 2)
    assert relations["obj"] == (0.0, 0.0, 0.0, 2, 1)
    assert list(arc_lengths) == ["root", "1", "2", "3-5"]
    assert arc_lengths["1"] == (
        0.5,
        0.5,
        0.5,
        2,
        2,
    )  # 1 and 3 are gold, 1 and 3 (to 4) predicted
    assert arc_lengths["2"] == (0.0, 0.0, 0.0, 1, 0)
    assert arc_lengths["3-5"] == (0.0, 0.0, 0.0, 0, 1)
    assert parser._by_length([sentence], rows) == {
        "1-5": {"sentences": 1, "words": 4, "uas": 0.5, "las": 0.5, "exact_match": 0.0}
    }


def test_what_is_shown(models, gold):
    found = evaluated(models / "good", gold)
    shown = well(softq("evaluate", models / "good", gold))
    assert f"{gold}: 40 sentences, {found['words']:,} words" in shown
    rows = [line.split() for line in shown.splitlines() if line.split()]
    assert ["UAS", f"{found['uas']:.4f}"] in rows
    assert ["labelled", "exact", "match", f"{found['labelled_exact_match']:.4f}"] in rows
    for table in ("relations", "arc_lengths"):
        for kind, row in found[table].items():
            ratios = [f"{row[name]:.4f}" for name in ("precision", "recall", "f1")]
            assert [kind, *ratios, str(row["predicted"]), str(row["gold"])] in rows
    for kind, row in found["sentence_lengths"].items():
        assert [
            kind,
            *(f"{row[name]:.4f}" for name in ("uas", "las", "exact_match")),
            str(row["sentences"]),
            str(row["words"]),
        ] in rows


def test_one_parser_against_another(models, gold):
    first, second = (evaluated(models / name, gold) for name in ("good", "poor"))
    found = evaluated(models / "good", gold, "--against", models / "poor")
    others = found.pop("against")
    assert found == first
    assert others.pop("model") == str(models / "poor")
    assert others["relations"] == second["relations"]
    for name in ATTACHMENT_METRICS:
        row = others[name]
        assert row["score"] == pytest.approx(second[name])
        assert row["difference"]["value"] == pytest.approx(first[name] - second[name])
        assert row["difference"]["low"] <= row["difference"]["value"] <= row["difference"]["high"]
    gap = others["uas"]["difference"]
    assert 0 < gap["low"] < gap["value"] < gap["high"]
    shown = well(softq("evaluate", models / "good", gold, "--against", models / "poor"))
    assert (
        f"{gap['value']:+.4f}   [{gap['low']:+.4f}, {gap['high']:+.4f}]   {gap['p_value']:.3f}"
        in shown
    )
    bare = evaluated(models / "good", gold, "--against", models / "bare")["against"]
    assert {*bare} & {*ATTACHMENT_METRICS} == {"uas", "exact_match"}


def test_without_relations_there_are_no_labelled_scores(models, gold, tmp_path):
    found = evaluated(models / "bare", gold)
    assert [name for name in ATTACHMENT_METRICS if found[name] is None] == [
        "las",
        "las_subtypes",
        "clas",
        "labelled_exact_match",
    ]
    assert found["relations"] == {}
    assert all(row["las"] is None for row in found["sentence_lengths"].values())
    shown = well(softq("evaluate", models / "bare", gold))
    assert "nan" not in shown
    assert "LAS with subtypes" not in shown
    (tmp_path / "bare.conllu").write_text(
        "".join(s.text(s.heads, ["_"] * len(s.heads)) for s in read_conllu(gold))
    )
    found = evaluated(models / "good", tmp_path / "bare.conllu")
    assert (found["uas"], found["las"]) == (
        evaluated(models / "good", gold)["uas"],
        None,
    )


def test_words_that_differ_are_aligned(gold, tmp_path):
    sentences = read_conllu(gold)
    system = []
    for sentence in (
        sentences
    ):  # the last word in two where it is long enough, its second part hanging on the first
        n, last = len(sentence.forms), sentence.forms[-1]
        forms = (*sentence.forms[:-1], last[:1], last[1:]) if len(last) > 1 else sentence.forms
        more = len(forms) - n
        columns = [
            (*getattr(sentence, name), *["_"] * more)
            for name in ("lemmas", "upos", "xpos", "feats")
        ]
        system.append(
            TreeSentence(
                forms,
                *columns,
                (*sentence.heads, *[n] * more),
                (*sentence.relations, *["goeswith"] * more),
            )
        )
    assert any(len(s.forms) > len(g.forms) for s, g in zip(system, sentences, strict=True))
    (tmp_path / "system.conllu").write_text(as_text(system))
    found = evaluated("--predictions", tmp_path / "system.conllu", gold)
    expected = align_score(sentences, system)
    for name in ("words", "uas", "las", "clas"):
        assert found["aligned"][name] == getattr(expected, name)._asdict()
    assert (found["uas"], found["las"], found["clas"]) == (
        expected.uas.f1,
        expected.las.f1,
        expected.clas.f1,
    )
    assert 0.5 < found["uas"] < 1
    assert found["predicted_words"] == sum(len(s.forms) for s in system) > found["words"]
    rows = [
        line.split()
        for line in well(
            softq("evaluate", "--predictions", tmp_path / "system.conllu", gold)
        ).splitlines()
    ]
    sizes = [str(found["predicted_words"]), str(found["words"])]
    assert ["UAS", *(f"{value:.4f}" for value in expected.uas[:3]), *sizes] in rows
    assert ["words", *(f"{value:.4f}" for value in expected.words[:3]), *sizes] in rows
    (tmp_path / "other.conllu").write_text(
        as_text([dataclasses.replace(s, lines=(), forms=("x", *s.forms[1:])) for s in sentences])
    )
    refused(
        softq("evaluate", "--predictions", tmp_path / "other.conllu", gold),
        "gold.conllu and ",
        "expected gold and system words of the",
    )


def test_a_missing_tree_is_refused_with_its_line(models, gold, tmp_path):
    path = tmp_path / "half.conllu"
    first, second = read_conllu(gold)[:2]
    path.write_text(first.text(first.heads) + "# sent_id = empty\n1\ta\ta\tX\tX\t_\t_\t_\t_\t_\n\n")
    line = first.text(first.heads).count("\n") + 1
    expected = (
        f"half.conllu, line {line} (sentence empty): expected a sentence with its tree, got _"
    )
    refused(softq("evaluate", models / "good", path), expected)
    refused(softq("evaluate", "--predictions", path, gold), expected)
    refused(softq("evaluate", "--predictions", gold, path), expected)
    path.write_text(second.text([1] * len(second.heads)))
    refused(softq("evaluate", models / "good", path), "half.conllu, line ")


def test_relations_are_in_all_sentences_or_in_none(models, gold, tmp_path):
    first, second, *others = read_conllu(gold)
    begun = first.text(first.heads)
    path = tmp_path / "mixed.conllu"
    path.write_text(
        begun
        + second.text(second.heads, ["_"] * len(second.heads))
        + "".join(s.text(s.heads) for s in others)
    )
    line = begun.count("\n") + 1
    expected = (
        f"mixed.conllu, line {line} (sentence {second.sent_id}): expected relations in all"
        " sentences or in none, got _ as the DEPREL"
    )
    for arguments in (
        [models / "good", path],
        [models / "bare", path],
        ["--predictions", path, gold],
        ["--predictions", gold, path],
    ):
        refused(softq("evaluate", *arguments), expected)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["good"], ["expected a model and a file"]),
        (
            ["--predictions", "GOLD"],
            ["holds trees: expected the file of the true ones and nothing else"],
        ),
        (
            ["--predictions", "GOLD", "GOLD", "GOLD"],
            ["holds trees: expected the file of the true ones and nothing else"],
        ),
        (["--predictions", "GOLD", "GOLD", "--against", "good"], ["--against compares"]),
        (["--predictions", "GOLD", "GOLD", "--decoding", "mbr"], ["--decoding is for"]),
        (["--predictions", "GOLD", "GOLD", "--scheme", "bio"], ["--scheme is for taggers"]),
        (
            ["good", "GOLD", "--scheme", "bio"],
            ["--scheme is for taggers, and ", "good is a parser: leave it out"],
        ),
        (
            ["good", "GOLD", "--against", "tagger"],
            ["good is a parser: expected another one after --against", "a tagger"],
        ),
        (
            ["tagger", "GOLD", "--against", "good"],
            ["tagger is a tagger: expected another one after --against"],
        ),
        (["good", "nothing.conllu"], ["cannot read", "nothing.conllu"]),
    ],
)
def test_evaluate_refuses_in_one_line(models, gold, arguments, texts):
    names = {"GOLD": gold, "good": models / "good", "tagger": models / "tagger"}
    refused(softq("evaluate", *(names.get(argument, argument) for argument in arguments)), *texts)
