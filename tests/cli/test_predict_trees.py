"""softq predict with a parser: what comes back, what is kept to the byte, how it refuses."""

import dataclasses
import gzip
import itertools
import lzma

import numpy as np
import pytest
from safetensors.numpy import save_file

from ner_commands import predictions, refused, softq, told, well
from small_runs import single_thread
from softq import CRFTagger, DependencyParser
from softq.cli.kinds import PARSER, TAGGER, find_kind
from softq.cli.kinds import parser as parser_kind
from softq.formats import conllu
from softq.formats.conllu import read_conllu
from softq.lab.worlds import TreeWorld

WORLD = TreeWorld(crossing=0.0, lemmas=6)
SMALL = {"bits": 12, "relation_bits": 8, "epochs": 2, "random_state": 0, "min_freq": 1}
RAW = """\
# sent_id = one
# text = Gib's ihm
1-2\tGib's\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tGib\tgeben\tVERB\tVV\tMood=Imp\t0\troot\t0:root\tp=1|Note=a b
2\t's\tes\tPRON\tPP\t_\t1\tobj\t1:obj|4:x\t_
2.1\tnichts\tnichts\tPRON\tPP\t_\t_\t_\t1:obj\tCopyOf=1
3\tihm da\ter\tPRON\tPP\t_\t1\tiobj\t_\tLang=de

# a comment alone
1\tJa\tja\tINTJ\tII\t_\t_\t_\t_\t_

"""


def draw(count, seed):
    """Sentences with the treebank's own tags, which are the universal ones in small letters."""
    return [
        dataclasses.replace(s, xpos=tuple(map(str.lower, s.upos)))
        for s in WORLD.sample(count, seed=seed)
    ]


def as_text(sentences):
    return "".join(sentence.text(sentence.heads, sentence.relations) for sentence in sentences)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Parsers: plain, of bare trees, and of words alone; and a tagger."""
    folder = tmp_path_factory.mktemp("models")
    train = draw(40, seed=0)
    with single_thread():
        tagged = DependencyParser(
            **SMALL,
            templates=["head.upos|dep.upos", "head.xpos|dep.word"],
            relation_templates=["dep.upos"],
        )
        tagged.fit(train).save(folder / "parser")
        DependencyParser(**SMALL, templates=["head.upos|dep.upos"], decoding="mbr").fit(
            train, [s.heads for s in train]
        ).save(folder / "bare")
        DependencyParser(**SMALL).fit([s.forms for s in train], train).save(folder / "words")
        CRFTagger(templates=["word[0]"]).fit([["a"]], [["O"]]).save(folder / "tagger")
    return folder


@pytest.fixture(scope="module")
def test_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "test.conllu"
    path.write_text(as_text(draw(25, seed=1)), encoding="utf-8")
    return path


def changed_columns(before, after):
    """Columns (from 0) in which two texts of the same lines differ."""
    found = set()
    for line, other in zip(before.split("\n"), after.split("\n"), strict=True):
        columns, others = line.split("\t"), other.split("\t")
        assert len(columns) == len(others)
        found |= {
            number
            for number, pair in enumerate(zip(columns, others, strict=True))
            if pair[0] != pair[1]
        }
    return found


def test_models_say_what_they_are(models, tmp_path):
    assert find_kind(models / "parser") is PARSER
    assert find_kind(models / "tagger") is TAGGER
    (tmp_path / "best.safetensors").write_bytes((models / "parser").read_bytes())
    assert find_kind(tmp_path) is PARSER


def test_what_is_no_model_of_either_kind(models, test_file, tmp_path):
    (tmp_path / "text").write_text("no model")
    (tmp_path / "cut").write_bytes((models / "parser").read_bytes()[:-9])
    save_file({"about": np.frombuffer(b'{"format": "other 1"}', np.uint8)}, tmp_path / "other")
    save_file({"about": np.frombuffer(b"[1]", np.uint8)}, tmp_path / "list")
    reasons = {
        "nothing": "there is no such file",
        "text": "",
        "cut": "",
        "other": "its format is 'other 1'",
        "list": "expected an object of JSON in the tensor 'about'",
    }
    for command, (name, reason) in itertools.product(("predict", "evaluate"), reasons.items()):
        expected = (
            f"{name} is not a model of softq ({reason}",
            "): expected a run folder of softq train",
        )
        refused(softq(command, tmp_path / name, test_file), *expected)


@pytest.mark.parametrize("decoding", [None, "mode", "mbr"])
def test_trees_are_those_of_the_parser(models, test_file, tmp_path, decoding):
    found = predictions(
        models / "parser", test_file, *(["--decoding", decoding] if decoding else [])
    )
    (tmp_path / "found.conllu").write_text(found)
    model = DependencyParser.load(models / "parser").set_params(decoding=decoding or "mode")
    gold = read_conllu(test_file)
    sentences = read_conllu(tmp_path / "found.conllu")
    parses = model.predict(
        [dataclasses.replace(sentence, heads=(), relations=()) for sentence in gold]
    )
    assert [(s.heads, s.relations) for s in sentences] == [
        (parse.heads, parse.relations) for parse in parses
    ]
    assert changed_columns(test_file.read_text(), found) <= {6, 7}
    assert [s.heads for s in sentences] != [s.heads for s in gold]


def test_decodings_differ_and_the_model_s_own_is_usual(models, test_file):
    mode, mbr = (
        predictions(models / "bare", test_file, "--decoding", name) for name in ("mode", "mbr")
    )
    assert predictions(models / "bare", test_file) == mbr != mode


def test_all_else_is_kept_to_the_byte(models):
    found = predictions(models / "parser", "-", stdin=RAW)
    assert changed_columns(RAW, found) <= {6, 7}
    kept = [
        (line, other)
        for line, other in zip(RAW.split("\n"), found.split("\n"), strict=True)
        if not line.split("\t")[0].isdigit()
    ]
    assert all(line == other for line, other in kept)
    assert found.split("\n")[-3].split("\t")[6] == "0"
    parts = predictions(models / "parser", "-", "--probabilities", stdin=RAW)
    assert changed_columns(found, parts) == {9}
    misc = [line.split("\t")[9] for line in parts.split("\n") if line.split("\t")[0].isdigit()]
    assert misc[0].startswith("Note=a b|p=0.")  # the p that was there is replaced
    assert misc[1].startswith("p=0.")
    assert misc[2].startswith("Lang=de|p=0.")
    assert misc[3] == "p=1.0000"


def test_probabilities_are_marginals_of_the_heads(models, test_file, tmp_path):
    predictions(models / "parser", test_file, "--probabilities", "--out", tmp_path / "out.conllu")
    sentences = read_conllu(tmp_path / "out.conllu")
    tables = DependencyParser.load(models / "parser").predict_marginals(sentences)
    for sentence, table in zip(sentences, tables, strict=True):
        words = [line.split("\t") for line in sentence.lines if line[0] != "#"]
        assert [row[9] for row in words] == [
            f"p={table[head, word]:.4f}" for word, head in enumerate(sentence.heads, start=1)
        ]


def test_a_parser_without_relations_leaves_none(models):
    found = predictions(models / "bare", "-", stdin=RAW)
    assert {line.split("\t")[7] for line in found.split("\n") if line.split("\t")[0].isdigit()} == {
        "_"
    }


def test_files_of_any_size_go_in_parts(models, test_file, tmp_path, monkeypatch):
    text = test_file.read_bytes()
    whole = predictions(models / "parser", test_file, "--probabilities")
    monkeypatch.setattr(conllu, "_PART", 5)
    assert predictions(models / "parser", test_file, "--probabilities") == whole
    (tmp_path / "a.conllu.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.conllu.xz").write_bytes(lzma.compress(text.rstrip(b"\n")))
    both = [
        "predict",
        models / "parser",
        tmp_path / "a.conllu.gz",
        tmp_path / "b.conllu.xz",
        "--probabilities",
    ]
    facts = told(softq(*both, "--out", tmp_path / "out.gz", "--json"))
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()).decode() == 2 * whole
    words = 2 * sum(len(sentence.forms) for sentence in read_conllu(test_file))
    assert (facts["files"], facts["sentences"], facts["tokens"], facts["decoding"]) == (
        2,
        50,
        words,
        "mode",
    )
    assert predictions(models / "parser", "-", stdin="") == ""


def test_conll_x_is_read(models):
    eight = "1\tGib\tgeben\tVERB\tVV\t_\t_\t_\n2\tes\tes\tPRON\tPP\t_\t_\t_\n\n"
    rows = [
        line.split("\t") for line in predictions(models / "parser", "-", stdin=eight).split("\n")
    ]
    assert [len(row) for row in rows] == [8, 8, 1, 1]
    assert sorted(row[6] for row in rows[:2]) in (["0", "1"], ["0", "2"])


def test_conll_x_has_no_place_for_probabilities(models, test_file, tmp_path):
    for name, pack in (
        ("a.conllx", bytes),
        ("a.CONLLX", bytes),
        ("a.conllx.gz", gzip.compress),
        ("a.conllx.xz", lzma.compress),
    ):
        path = tmp_path / name
        path.write_bytes(pack(test_file.read_bytes()))
        expected = (
            f"{path} is CoNLL-X by its name, whose last column is PDEPREL, and --probabilities"
            " writes into MISC"
        )
        result = softq("predict", models / "parser", test_file, path, "--probabilities")
        refused(result, expected)
        assert result.stdout == ""  # before anything is written
        predictions(models / "parser", path)
    (tmp_path / "b.conllx").write_text("Ann ran\n")  # running text, whatever it is called
    predictions(models / "words", tmp_path / "b.conllx", "--plain", "--probabilities")


def test_running_text_for_a_parser_of_words(models):
    text = "Ann ran home\n\nYes\n"
    rows = [
        line.split("\t")
        for line in predictions(models / "words", "-", "--plain", stdin=text).split("\n")
    ]
    assert [row[1] for row in rows if len(row) > 1] == ["Ann", "ran", "home", "Yes"]
    assert [row[0] for row in rows] == ["1", "2", "3", "", "1", "", ""]
    parses = DependencyParser.load(models / "words").predict([["Ann", "ran", "home"], ["Yes"]])
    assert [int(row[6]) for row in rows if len(row) > 1] == [
        head for parse in parses for head in parse.heads
    ]
    refused(
        softq("predict", models / "parser", "-", "--plain", stdin=text),
        "parser needs parts of speech (UPOS or XPOS), and running text has none: give CoNLL-U",
    )


def test_tags_that_are_missing(models, test_file):
    rows = [line.split("\t") for line in test_file.read_text().split("\n")]

    def without(*columns):
        return "\n".join(
            "\t".join("_" if number in columns else text for number, text in enumerate(row))
            for row in rows
        )

    refused(
        softq("predict", models / "parser", "-", stdin=without(3, 4)),
        "standard input, line 1: ",
        "parser needs UPOS or XPOS, as in the files it was",
    )
    predictions(models / "parser", "-", stdin=without(2, 4, 5))  # words and UPOS
    train = WORLD.sample(9, seed=0)  # without such tags, templates that read them do no harm
    assert DependencyParser(**SMALL, templates=["head.xpos|dep.upos"]).fit(train).predict(train[:1])


def without_tags(sentences, bare):
    """A file whose sentences of these numbers lack UPOS and XPOS."""
    return as_text(
        [
            (
                dataclasses.replace(s, upos=("_",) * len(s.forms), xpos=("_",) * len(s.forms))
                if n in bare
                else s
            )
            for n, s in enumerate(sentences)
        ]
    )


def test_columns_are_looked_for_once_per_file(models, tmp_path, monkeypatch):
    monkeypatch.setattr(parser_kind, "_ENOUGH", 30)
    sentences = draw(40, seed=3)
    sizes = np.cumsum([len(s.forms) for s in sentences])
    enough = int(np.searchsorted(sizes, 30)) + 1  # sentences
    few, many, late = tmp_path / "few.conllu", tmp_path / "many.conllu", tmp_path / "late.conllu"
    few.write_text(without_tags(sentences, range(enough - 1)))
    many.write_text(without_tags(sentences, range(enough)))
    late.write_text(without_tags(sentences, range(enough, 40)))
    results = []
    for size in (1, 50, 10_000):  # lines
        monkeypatch.setattr(conllu, "_PART", size)
        results.append([predictions(models / "parser", path) for path in (few, late)])
        told_of = (
            "needs UPOS or XPOS, as in the files it was trained on, and none of the first"
            f" {sizes[enough - 1]} words"
        )
        result = softq("predict", models / "parser", few, many)
        refused(result, "many.conllu, line 1: ", told_of)
        refused(softq("evaluate", models / "parser", many), "many.conllu, line 1: ", told_of)
        well(softq("evaluate", models / "parser", few))
    assert results[0] == results[1] == results[2]


def test_decodings_of_the_other_kind(models, test_file):
    refused(
        softq("predict", models / "parser", test_file, "--decoding", "viterbi"),
        "is a parser, whose --decoding is mode or mbr, got viterbi",
    )
    refused(
        softq("predict", models / "tagger", test_file, "--decoding", "mode"),
        "is a tagger, whose --decoding is viterbi or mbr, got mode",
    )
    refused(
        softq("evaluate", models / "parser", test_file, "--decoding", "viterbi"),
        "is a parser, whose --decoding is mode or mbr",
    )
