"""CoNLL-U: what is read, what is refused and where, and that what is written is the file again."""

import gzip
import io
import lzma

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softq.errors import DataError, ShapeError
from softq.formats import conllu
from softq.formats.conllu import (
    MultiwordToken,
    TreeSentence,
    check_conllu,
    is_conllu,
    iter_conllu,
    read_conllu,
)

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

FULL = (
    "# newdoc\n# sent_id = a-1 \n# text = Vámonos al mar ya \n"
    "1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No\n"
    "1\tVamos\tir\tVERB\tV\tMood=Imp|Number=Plur\t0\troot\t0:root\t_\n"
    "2\tnos\tnosotros\tPRON\t_\tCase=Acc\t1\tobj\t1:obj\tGloss=us|p=0.1\n"
    "2.1\t_\t_\tX\t_\t_\t_\t_\t1:dep\t_\n"
    "2.2\tb\t_\tX\t_\t_\t_\t_\t1:dep\t_\n"
    "3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_\n"
    "4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_\n"
    "5\tmar de ayer\tmar\tNOUN\t_\t_\t1\tobl:arg\t_\t_\n"
    "\n"
    "0.1\t_\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\t#\t#\tSYM\t_\t_\t0\tpunct\t_\tA=1|B\n\n"
)


def word(number, head, relation="dep", form="w", **columns):
    row = [number, form, "_", "_", "_", "_", head, relation, "_", "_"]
    for column, value in columns.items():
        row[int(column[1:])] = value
    return "\t".join(map(str, row)) + "\n"


def write(path, text, packed=""):
    path = path.with_name(path.name + packed)
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packed](content))
    return path


@pytest.fixture
def place(tmp_path):
    return tmp_path / "a.conllu"


def written(sentences):
    return "".join(sentence.text(sentence.heads, sentence.relations) for sentence in sentences)


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_a_file_with_everything(place, packed):
    path = write(place, FULL, packed)
    first, second = read_conllu(path)
    assert first.forms == ("Vamos", "nos", "a", "el", "mar de ayer")
    assert first.lemmas == ("ir", "nosotros", "a", "el", "mar")
    assert first.upos == ("VERB", "PRON", "ADP", "DET", "NOUN")
    assert first.xpos == ("V", "_", "_", "_", "_")
    assert first.feats == ("Mood=Imp|Number=Plur", "Case=Acc", "_", "_", "_")
    assert first.heads == (0, 1, 5, 5, 1)
    assert first.relations == ("root", "obj", "case", "det", "obl:arg")
    assert (first.sent_id, first.line, first.lines) == ("a-1", 1, tuple(FULL.split("\n")[:12]))
    assert first.multiword_tokens() == [MultiwordToken(1, 2, "Vámonos"), MultiwordToken(3, 4, "al")]
    assert (first.empty_nodes(), second.empty_nodes(), second.multiword_tokens()) == (2, 1, [])
    assert (second.forms, second.heads, second.relations, second.sent_id, second.line) == (
        ("#",),
        (0,),
        ("punct",),
        "",
        14,
    )
    assert written([first, second]) == FULL
    assert check_conllu(path) == []
    assert first.forms[0] is read_conllu(path)[0].forms[0]  # one string for all that are equal


def test_without_trees_nothing_of_them_is_looked_at(place):
    broken = FULL.replace("\t0\troot\t", "\t\t\t").replace("\t5\tcase\t", "\tx\t_\t")
    path = write(place, broken)
    sentences = read_conllu(path, trees=False)
    assert [(sentence.heads, sentence.relations) for sentence in sentences] == [((), ())] * 2
    assert written(sentences) == broken
    assert (
        sentences[0].text((0, 1, 5, 5, 1), ("root", "obj", "case", "det", "obl:arg"))
        + sentences[1].text(())
        == FULL
    )


def test_trees_where_there_are_any(place):
    treeless = word(1, "_", "_") + word(2, "_", "dep") + "\n"
    unlabelled = word(1, 2, "_") + word(2, 0, "_") + "\n"
    path = write(place, treeless + unlabelled + word(1, 0))
    found = read_conllu(path, trees=None)
    assert [(sentence.heads, sentence.relations) for sentence in found] == [
        ((), ()),
        ((2, 0), ()),
        ((0,), ("dep",)),
    ]
    assert written(found) == treeless + unlabelled + word(1, 0) + "\n"
    assert [fault.line for fault in check_conllu(path)] == [1, 4, 5]
    with pytest.raises(
        DataError,
        match=(
            r"line 1: expected a tree, got _ as the HEAD of every word \(sentence 1 of the file\)"
        ),
    ):
        read_conllu(path)
    write(place, treeless * 2)
    assert check_conllu(path) == []  # a file to be parsed
    write(place, word(1, 2, "_") + word(2, 0, "root"))
    with pytest.raises(DataError, match=r"line 1: expected a DEPREL beside the HEAD, got _"):
        read_conllu(path, trees=None)


def test_line_ends_marks_and_blank_lines(place):
    plain = read_conllu(write(place, FULL))
    for other in (
        "\ufeff" + FULL,
        FULL.replace("\n", "\r\n"),
        FULL.rstrip("\n"),
        "\n\n" + FULL.replace("\n\n", "\n \t\n\n"),
    ):
        found = read_conllu(write(place, other))
        assert found == plain
        assert written(found) == FULL


def test_conll_x(place):
    row = "1\tA b\ta\tN\tNN\t_\t2\tSBJ"
    ten, eight = (
        f"{row}\t_\t_\n2\tc\t_\tV\tV\t_\t0\tROOT\t0\tROOT\n\n",
        f"{row}\n2\tc\t_\tV\tV\t_\t0\tROOT\n\n",
    )
    for text in (ten, eight):
        (sentence,) = found = read_conllu(write(place, text))
        assert (sentence.forms, sentence.upos, sentence.xpos, sentence.heads) == (
            ("A b", "c"),
            ("N", "V"),
            ("NN", "V"),
            (2, 0),
        )
        assert written(found) == text
    assert (
        sentence.text((0, 1), None, ("p=1", None))
        == "1\tA b\ta\tN\tNN\t_\t0\tSBJ\t_\tp=1\n2\tc\t_\tV\tV\t_\t1\tROOT\t_\t_\n\n"
    )
    write(place, eight + ten)
    with pytest.raises(
        DataError,
        match=r"line 4: expected 8 columns, ID to DEPREL, got 10 \(sentence 2 of the file\)",
    ):
        read_conllu(place)


def test_text_with_another_tree_and_misc(place):
    first, second = read_conllu(write(place, FULL))
    changed = first.text(
        [2, 0, 1, 3, 4], ["a", "b", "c", "d", "e"], ["p=0.5", "p=0.9", None, "x=1|y=2", "q"]
    )
    expected = (
        FULL.split("\n\n")[0]
        .replace("\t0\troot\t0:root\t_", "\t2\ta\t0:root\tp=0.5")
        .replace("\t1\tobj\t1:obj\tGloss=us|p=0.1", "\t0\tb\t1:obj\tGloss=us|p=0.9")
        .replace("\t5\tcase\t_\t_", "\t1\tc\t_\t_")
        .replace("\t5\tdet\t_\t_", "\t3\td\t_\tx=1|y=2")
        .replace("\t1\tobl:arg\t_\t_", "\t4\te\t_\tq")
    )
    assert changed == expected + "\n\n"
    assert "\tA=1|B=2\n\n" in second.text((0,), None, ("B=2",))
    assert first.text(first.heads) == FULL.split("\n\n")[0] + "\n\n"
    for arguments in (((0, 1),), ((), ("a",)), ((), None, ()), ((), None, ("p=1",))):
        with pytest.raises(ShapeError, match="for 5 words"):
            first.text(*arguments)
    for text in ("a\tb", "a\n", ""):
        with pytest.raises(DataError, match="expected text without tabs"):
            second.text((0,), (text,))
        with pytest.raises(DataError, match="expected text without tabs"):
            second.text((0,), None, (text,))


columns = st.text(
    st.characters(exclude_characters="\t\n\r\0\ufeff ", exclude_categories=["Cs"]),
    min_size=1,
    max_size=5,
)


@st.composite
def made(draw):
    n = draw(st.integers(1, 6))

    def column(kind):
        return tuple(draw(st.lists(kind, min_size=n, max_size=n)))

    order = draw(st.permutations(range(1, n + 1)))
    heads = [0] * n
    for number, dependent in enumerate(order[1:], start=1):
        heads[dependent - 1] = order[draw(st.integers(0, number - 1))]
    others = (column(columns) for _ in range(4))
    relations = column(columns.filter(lambda text: text != "_"))
    return TreeSentence(
        column(columns | st.just("a b")),
        *others,
        tuple(heads),
        relations,
        sent_id=draw(st.sampled_from(["", "s1", "é 2"])),
    )


@QUICK
@given(st.lists(made(), min_size=1, max_size=4), st.sampled_from([1, 3, 1000]))
def test_made_sentences_are_read_back(place, sentences, part):
    text = written(sentences)
    found = read_conllu(write(place, text))
    for one, other in zip(found, sentences, strict=True):
        for name in ("forms", "lemmas", "upos", "xpos", "feats", "heads", "relations", "sent_id"):
            assert getattr(one, name) == getattr(other, name)
    assert written(found) == text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conllu, "_PART", part)
        parts = list(iter_conllu(io.BytesIO(text.encode()), "a file"))
    assert [sentence for some in parts for sentence in some] == found
    assert [sentence.line for some in parts for sentence in some] == [
        sentence.line for sentence in found
    ]
    assert len(parts) == (len(sentences) if part == 1 else len(parts))


def test_made_sentences_must_fit():
    for forms, lemmas in (
        (("a", "b"), ("_",)),
        ((), ()),
        ((" ",), ("_",)),
        (("a\tb",), ("_",)),
        (("a",), ("",)),
    ):
        with pytest.raises(DataError, match="expected"):
            TreeSentence(forms, lemmas, *[("_",) * len(forms)] * 3).text(())


SOUND = "# sent_id = ok\n" + word(1, 0) + "\n"  # three lines


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (word(1, 0) + word(2, 3) + word(3, 2), 5, "expected a tree, got the cycle 2 -> 3 -> 2"),
        (word(1, 0) + word(2, 0), 5, "expected one root, got a second one (the first is word 1)"),
        (word(1, 2) + word(2, 1), 4, "expected a root, a word with head 0, got none (and 1 more;"),
        (word(1, 0) + word(2, 3), 5, "expected a head in 0..2, got 3"),
        (word(1, 0) + word(2, -1), 5, "expected a head in 0..2, got -1"),
        (word(1, 0) + word(2, 2), 5, "expected another word or 0 as the head of word 2, got the"),
        (word(1, 0) + word(2, "x"), 5, "expected the number of a word as HEAD, or 0, got 'x'"),
        (word(1, 0) + word(2, "01"), 5, "expected the number of a word as HEAD, or 0, got '01'"),
        (word(1, 0) + word(2, "1.1"), 5, "expected the number of a word as HEAD, or 0, got '1.1'"),
        (word(1, 0) + word(2, "9" * 5000), 5, "expected the number of a word as HEAD"),
        (word(1, 0) + word(2, "_"), 5, "expected a HEAD, as other words of the sentence have,"),
        (word(1, "_") + word(2, "_"), 4, "expected a tree, got _ as the HEAD of every word"),
        (word(1, 0) + word(2, 1, "_"), 5, "expected a DEPREL beside the HEAD, got _"),
        (word(1, 0) + word(2, 1, ""), 5, "expected _ where there is nothing to say, got an empty"),
        (word(1, 0, form=""), 4, "expected a word, got an empty FORM"),
        (word(1, 0, form="  "), 4, "expected a word, got an empty FORM"),
        (word(1, 0, _5=""), 4, "expected _ where there is nothing to say, got an empty FEATS"),
        (word(1, 0).replace("\t_\n", "\n"), 4, "expected 10 columns, ID to MISC, got 9"),
        (word(1, 0).replace("\n", "\t_\n"), 4, "expected 10 columns, ID to MISC, got 11"),
        (word(1, 0).replace("\t", "  "), 4, "expected 10 columns, ID to MISC, got 1; columns"),
        (word(1, 0) + "# late\n" + word(2, 1), 5, "expected comments before the first word of a"),
        (word(1, 0) + word(3, 1), 5, "expected ID 2, got '3'"),
        (word(1, 0) + word(1, 1), 5, "expected ID 2, got '1'"),
        (word("x", 0), 4, "expected ID 1, got 'x'"),
        (word(1, 0) + word("02", 1), 5, "expected ID 2, got '02'"),
        (word("1-2", "_") + word(1, 0), 4, "expected a range within the 1 words of the sentence,"),
        (
            word("1-3", "_") + word(1, 0) + word("2-3", "_") + word(2, 1) + word(3, 1),
            6,
            "expected a range beyond word 3, with which",
        ),
        (word(1, 0) + word("1-2", "_") + word(2, 1), 5, "expected a range that begins with the"),
        (word("1-" + "9" * 5000, "_") + word(1, 0), 4, "expected a range that begins with the"),
        (word("9" * 5000 + "-1", "_") + word(1, 0), 4, "expected a range that begins with the"),
        (word("1-0", "_") + word(1, 0), 4, "expected a range that begins with the next word, 1,"),
        (word(1, 0) + word("2.1", "_"), 5, "expected 1.1 as the ID of an empty node here, got 2.1"),
        (word(1, 0) + word("1.2", "_"), 5, "expected 1.1 as the ID of an empty node here, got 1.2"),
        (word(1, 0) + word("1.01", "_"), 5, "expected ID 2, got '1.01'"),
        (word("0.1", "_"), 4, "expected at least one word, got none"),
    ],
)
def test_faults_are_told_with_line_and_sentence(place, text, line, message):
    for comment, name in (("", "2 of the file"), ("# sent_id = b-2\n", "b-2")):
        number = line + len(comment[:1])
        path = write(place, SOUND + comment + text)
        with pytest.raises(DataError) as caught:
            read_conllu(path)
        told, _, more = message.partition(" (and ")
        assert str(caught.value).startswith(f"{path}, line {number}: {told}")
        assert f" (sentence {name})" in str(caught.value)
        assert more in str(caught.value)
        with pytest.raises(DataError) as again:
            list(iter_conllu(io.BytesIO((SOUND + comment + text).encode()), str(path)))
        assert str(again.value) == str(caught.value)
        assert any(
            fault.line == number
            and fault.message.startswith(told)
            and fault.message.endswith(f"(sentence {name})")
            for fault in check_conllu(path)
        )
        assert read_conllu(write(place, SOUND + comment + word(1, 0)))  # the comment was not it


def test_an_id_below_zero_is_the_only_fault(place):
    path = write(place, SOUND + word(1, 0) + word(-5, 1) + word(2, 1))
    assert check_conllu(path) == [(5, "expected ID 2, got '-5' (sentence 2 of the file)")]


def test_every_fault_is_listed(place):
    text = (
        SOUND
        + word(1, 7)
        + word(2, 2, "_")
        + "\n# c\n\n"
        + word(1, 0)
        + word(3, 1)
        + word(4, 1)
        + "1\n"
    )
    path = write(place, text)
    assert check_conllu(path) == [
        (4, "expected a head in 0..2, got 7 (sentence 2 of the file)"),
        (4, "expected a root, a word with head 0, got none (sentence 2 of the file)"),
        (5, "expected a DEPREL beside the HEAD, got _ (sentence 2 of the file)"),
        (
            5,
            (
                "expected another word or 0 as the head of word 2, got the word itself (sentence 2"
                " of the file)"
            ),
        ),
        (7, "expected words after the comments, got none (sentence 3 of the file)"),
        (12, "expected 10 columns, ID to MISC, got 1 (sentence 4 of the file)"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.conllu: no sentences: expected lines of ten columns"),
        (b"\n \n", "a.conllu: no sentences"),
        (word(1, 0).encode() + b"\xff\n", "line 2: expected UTF-8, got byte 0xff"),
        (word(1, 0).replace("w", "a\0b").encode(), "line 1: the line holds a NUL"),
        (word(1, 0).encode("utf-16"), "line 1: expected UTF-8, got UTF-16"),
    ],
)
def test_files_that_are_no_text(place, content, message):
    path = write(place, content)
    with pytest.raises(DataError, match=message):
        read_conllu(path)
    assert check_conllu(path)


def test_files_that_cannot_be_read(tmp_path):
    cut = tmp_path / "cut.conllu.gz"
    cut.write_bytes(gzip.compress(FULL.encode())[:-12])
    for path in (tmp_path / "absent.conllu", tmp_path, cut):
        with pytest.raises(DataError, match="cannot read"):
            read_conllu(path)
        ((line, message),) = check_conllu(path)
        assert line == 0
        assert message.startswith("cannot read")
    assert list(iter_conllu(io.BytesIO(b""), "nothing")) == []


def test_lines_of_later_parts_are_counted_from_the_start(monkeypatch):
    monkeypatch.setattr(conllu, "_PART", 1)
    parts = iter_conllu(io.BytesIO((SOUND * 5 + word(1, 1)).encode()), "a file")
    assert [next(parts)[0].line for _ in range(5)] == [1, 4, 7, 10, 13]
    with pytest.raises(DataError, match=r"a file, line 16: .* \(sentence 6 of the file\)"):
        next(parts)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.conllu", "", True),
        ("a.conllx.gz", "", True),
        ("a.CONLLU", "", True),
        ("a.conll", "\ufeff# c\n\n" + word(1, 0), True),
        ("a.conll.gz", word(1, "_").replace("\n", "\r\n"), True),
        ("a.txt", "1-2\tab" + "\t_" * 8 + "\n", True),
        ("a.conll", "0.1\ta" + "\t_" * 8, True),
        ("a.conll", "\t".join(["1", "a", "_", "_", "_", "_", "0", "root"]), True),
        ("a.conll", "Ann\tB-PER\n", False),
        ("a.conll", "1\t" + "\t".join(["O"] * 9), False),
        ("a.conll", word(1, 0).replace("\t", " "), False),
        ("a.conll", word("Ann", 0), False),
        ("a.conll", "", False),
        ("a.conll", "#\n" * 40_000 + word(1, 0), False),
    ],
)
def test_which_files_hold_trees(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert is_conllu(path) == expected


def test_a_file_that_cannot_be_opened_is_told_by_its_name(tmp_path):
    assert is_conllu(tmp_path / "absent.conllu")
    assert not is_conllu(tmp_path / "absent.conll")
