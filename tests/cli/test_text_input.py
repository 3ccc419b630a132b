"""Running text for taggers and parsers: recognised, asked for, refused.

From text to tags and tree in one call.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ner_commands import FAST, predictions, refused, softq, told
from softq import CRFTagger, DependencyParser
from softq.formats.words import looks_like_text, split_words
from softq.lab.worlds import TreeWorld

pytestmark = pytest.mark.usefixtures("one_thread")
SENTENCES = [["Angela", "Merkel", "visited", "Paris", "."], ["Ann", "is", "in", "Rome", "."]]
LABELS = [["B-PER", "I-PER", "O", "B-LOC", "O"], ["B-PER", "O", "O", "B-LOC", "O"]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tagger of names, one that looks at parts of speech too, one of parts of speech, and parsers with and without."""
    folder = tmp_path_factory.mktemp("models")
    CRFTagger(**FAST).fit(20 * SENTENCES, 20 * LABELS).save(folder / "names")
    pairs = [[(word, "NN") for word in sentence] for sentence in SENTENCES]
    CRFTagger(**FAST).fit(pairs, LABELS).save(folder / "with-pos")
    trees = [tree for tree in TreeWorld().sample(60, seed=0) if len(tree.forms) > 1]
    words, tags = [list(tree.forms) for tree in trees], [list(tree.upos) for tree in trees]
    CRFTagger(**FAST).fit(words, tags).save(folder / "pos")
    quick = {"epochs": 1, "bits": 12, "relation_bits": 8, "min_freq": 1, "spanning": True}
    DependencyParser(templates=["head.upos|dep.upos"], **quick).fit(trees).save(folder / "parser")
    DependencyParser(templates=["dep.word"], relation_templates=["dep.word"], **quick).fit(
        trees
    ).save(folder / "words")
    return folder


def rows(text):
    return [tuple(line.split("\t")) for line in text.splitlines() if line]


def test_text_becomes_words_and_labels(models, tmp_path):
    text = "Angela Merkel visited Paris.\nAnn is in Rome.\n"
    shown = predictions(models / "names", stdin=text)
    assert [row[0] for row in rows(shown)] == [word for words in SENTENCES for word in words]
    columns = "\n".join("\n".join(words) + "\n" for words in SENTENCES)
    assert shown == predictions(models / "names", stdin=columns)
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.conll").write_text(text)
    assert predictions(models / "names", tmp_path / "a.txt") == shown
    assert predictions(models / "names", tmp_path / "a.conll", "--text") == shown
    refused(
        softq("predict", models / "names", tmp_path / "a.conll"),
        "a.conll, line 1: expected a column file",
        "got what looks like running text: add --text",
    )
    split = predictions(models / "names", tmp_path / "a.conll", "--plain")
    assert [row[0] for row in rows(split)][:4] == ["Angela", "Merkel", "visited", "Paris."]


def test_columns_stay_columns(models):
    for text in (
        "Ann B-PER\nran O\n",
        "Ann\nran\n",
        "Ann\tB-PER\n",
        "# annotators = a\nAnn B-PER\n",
    ):
        shown = predictions(models / "names", stdin=text)
        assert len(shown.split("\n\n")[0].splitlines()) == len(text.splitlines())
    text = "Ann NNP x y\n"
    shown = predictions(models / "names", "--columns", stdin=text)
    assert shown.startswith("Ann NNP x y ")


def test_from_text_to_tags_and_tree(models):
    text = " ".join(TreeWorld().sample(1, seed=7)[0].forms) + "\n"
    for model, needs in (("parser", "UPOS"), ("with-pos", "parts of speech")):
        refused(softq("predict", models / model, stdin=text + text), needs, "--tagger")
    shown = predictions(models / "parser", "--tagger", models / "pos", stdin=text)
    tagged = predictions(models / "pos", "--text", stdin=text)
    assert [(row[1], row[3]) for row in rows(shown)] == rows(tagged)
    assert {row[6] for row in rows(shown)} != {"_"}
    bare = predictions(models / "words", stdin=text)
    assert [row[1] for row in rows(bare)] == [row[1] for row in rows(shown)]
    both = predictions(models / "with-pos", "--tagger", models / "pos", stdin=text)
    assert [row[:2] for row in rows(both)] == rows(tagged)
    refused(
        softq("predict", models / "parser", "--tagger", models / "names", stdin=text),
        "--tagger must be a tagger of parts of speech",
    )
    refused(
        softq("predict", models / "parser", "--tagger", models / "words", stdin=text),
        "words is none",
    )


def test_facts_of_text(models, tmp_path):
    facts = told(
        softq(
            "predict", models / "names", "--out", tmp_path / "o", "--json", stdin="Ann is in Rome."
        )
    )
    assert (facts["sentences"], facts["tokens"]) == (1, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, can't.", "I do n't , ca n't ."),
        ("L'homme d'Ann: 1,5 %", "L' homme d' Ann : 1,5 %"),
        ("Mr. Smith, of the U.S., left.", "Mr. Smith , of the U.S. , left ."),
        ("It was Mr.", "It was Mr ."),
        ("see www.a.org/x, ok? a.b@c.de!", "see www.a.org/x , ok ? a.b@c.de !"),
        ("„Straße“ – 東京 …", "„ Straße “ – 東 京 …"),
        ("", ""),
    ],
)
def test_words_of_text(text, words):
    assert split_words(text) == words.split()


@given(st.text())
def test_no_character_is_lost(text):
    assert "".join(split_words(text)) == "".join(text.split()).replace("￭", "■")


def test_what_looks_like_text():
    assert looks_like_text(["Ann went to Rome"])
    assert looks_like_text(["One sentence here.", "And another one!"])
    assert not looks_like_text(["a x", "b x", "c x"])
    assert not looks_like_text(["Ann NN", "ran VB"], labels={"NN", "VB"})
    assert not looks_like_text([])
