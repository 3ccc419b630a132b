"""Column files: what is read, what is refused and where, and that what is written is read back."""

import gzip
import io
import lzma

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softq import CRFTagger
from softq.errors import DataError
from softq.formats import read_conllu
from softq.formats.chunks import read_chunks
from softq.formats.conll import (
    MISSING,
    Fault,
    Sentence,
    check_conll,
    find_scheme,
    read_conll,
    to_conll,
)
from softq.formats.tags import faults

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Any text that a column can hold, white space beyond ASCII and line separators of Unicode included.
columns = st.text(
    st.characters(exclude_characters="\t\n\r\0\ufeff ", exclude_categories=["Cs"]),
    min_size=1,
    max_size=6,
)
tokens = columns.filter(
    lambda text: text != "-DOCSTART-" and not text.startswith("#")
) | st.sampled_from(["#", "# annotators", "a b", " a", "", " "])
tags = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])


FRAGMENTS = [
    b"a",
    b"O",
    b"B-P",
    b"\t",
    b"a\tO\n",
    b" ",
    b"a O\n",
    b"\n",
    b"\n\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xc2\xa0",
    b"?",
]
FRAGMENTS += [b"# annotators =", b"# annotators = u v\na\tO\tO\n\n", b"-DOCSTART-"]


@st.composite
def sentences_of(draw, annotated, extra=None):
    """A list of sentences, with as many extra columns everywhere, and some or no annotators."""
    extra = draw(st.integers(0, 2)) if extra is None else extra
    found = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 5))
        names = (
            draw(st.lists(st.sampled_from(["w1", "w2", "é3"]), min_size=1, max_size=4))
            if annotated
            else []
        )
        label = tags | st.just(MISSING) if annotated else tags | columns

        def column(kind, n=n):
            return tuple(draw(st.lists(kind, min_size=n, max_size=n)))

        labels = tuple(column(label) for _ in range(len(names) or 1))
        others = tuple(column(columns) for _ in range(extra))
        comments = tuple(
            draw(
                st.lists(
                    st.sampled_from(["# sent_id = 7", "# a b", "# key =", "#  x  y"]), max_size=2
                )
            )
        )
        found.append(Sentence(column(tokens), labels, tuple(names), others, comments=comments))
    return found


def write(path, text, *, packed=""):
    path = path.with_name(path.name + packed)
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packed](content))
    return path


@pytest.fixture
def place(tmp_path):
    return tmp_path / "a.conll"


@QUICK
@given(st.booleans().flatmap(lambda annotated: sentences_of(annotated)))
def test_what_is_written_is_read_back(place, sentences):
    text = to_conll(sentences)
    found = read_conll(write(place, text)).sentences
    assert found == sentences
    assert to_conll(found) == text
    lines = text.split("\n")
    for sentence in found:
        assert [
            line.split("\t")[0] for line in lines[sentence.line - 1 :][: len(sentence.tokens)]
        ] == list(sentence.tokens)


@QUICK
@given(sentences_of(False), st.data())
def test_allowed_differences_change_nothing(place, sentences, data):
    text = to_conll(sentences)
    changes = {
        "documents": lambda text: text + "-DOCSTART-\t-X-\n\n-DOCSTART-\n",
        "blank lines": lambda text: "\n" + text.replace("\n\n", "\n\n  \n \t\n\n"),
        "spaces at the end": lambda text: text.replace("\n", "  \n"),
        "no last line end": lambda text: text.rstrip("\n"),
        "CR LF": lambda text: text.replace("\n", "\r\n"),
        "comments alone": lambda text: "# made = by hand\n# newdoc\n\n" + text,
        "byte-order mark": lambda text: "\ufeff" + text,
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(changes))))
    for name, change in changes.items():
        text = change(text) if name in chosen else text
    packed = data.draw(st.sampled_from(["", ".gz", ".xz"]))
    path = write(place, text, packed=packed)
    assert read_conll(path).sentences == sentences
    assert {fault.message for fault in check_conll(path) if "expected O" not in fault.message} <= {
        "the token is empty"
    }


def test_documents_and_runs_of_spaces(place):
    text = (
        "\n-DOCSTART- -X- O O\n\nU.N. NNP  I-NP B-ORG\n.\u00a0 .   O\u2028 O \n-DOCSTART- -X-"
        " O\nYes UH I-INTJ O\n-DOCSTARTED- NN O O\n\n\n"
    )
    found = read_conll(write(place, text)).sentences
    assert [sentence.tokens for sentence in found] == [("U.N.", ".\u00a0"), ("Yes", "-DOCSTARTED-")]
    assert found[0].extra == (("NNP", "."), ("I-NP", "O\u2028"))
    assert found[0].labels == (("B-ORG", "O"),)
    assert [sentence.line for sentence in found] == [4, 7]
    assert found[0].annotators == ()


def test_a_tab_anywhere_makes_tabs_the_separator(place):
    (sentence,) = read_conll(write(place, "New York\tB-LOC\n# annotators\tO\n")).sentences
    assert sentence.tokens == ("New York", "# annotators")


def test_annotators_by_number_by_name_and_all(place):
    path = write(place, "a\tX\tO\tB-P\nb\tY\tO\t?\n")
    assert read_conll(path).sentences == [
        Sentence(("a", "b"), (("B-P", "?"),), (), (("X", "Y"), ("O", "O")))
    ]
    (two,) = read_conll(path, annotators=2).sentences
    assert two == Sentence(("a", "b"), (("O", "O"), ("B-P", "?")), ("1", "2"), (("X", "Y"),))
    assert two.references == [("O", "O"), ("B-P", "?")]
    assert list(two.pieces()) == [("1", 0, ("O", "O")), ("2", 0, ("B-P",))]
    (three,) = read_conll(path, annotators="all").sentences
    assert three == Sentence(("a", "b"), (("X", "Y"), ("O", "O"), ("B-P", "?")), ("1", "2", "3"))
    ragged = write(place, "a\tO\nb\tO\n\na\tO\tO\nb\tO\tO\n")
    assert [
        len(sentence.labels) for sentence in read_conll(ragged, annotators="all").sentences
    ] == [1, 2]
    named = write(place, "# annotators = w1 w2 w1\na\tX\tO\tO\tO\n\n# annotators = w3\nb\tX\tO\n")
    found = read_conll(named).sentences
    assert [sentence.annotators for sentence in found] == [("w1", "w2", "w1"), ("w3",)]
    assert [sentence.extra for sentence in found] == [(("X",),), (("X",),)]


def test_empty_tokens_and_blank_lines_of_tabs_are_read(place):
    path = write(place, "a\tO\n\t\n\tO\n \tO\n \t \nb\tO\n")
    assert [sentence.tokens for sentence in read_conll(path).sentences] == [
        ("a",),
        ("", " "),
        ("b",),
    ]
    assert check_conll(path) == [Fault(line, "the token is empty") for line in (3, 4)]
    among_spaces = write(place, "a O\n\t\nb  O\n")  # a tab in a blank line separates no columns
    assert [sentence.tokens for sentence in read_conll(among_spaces).sentences] == [("a",), ("b",)]


def test_missing_is_a_label_where_there_are_no_annotators():
    sentence = Sentence(("a", "b"), (("?", "O"),))
    assert sentence.references == [("?", "O")]
    assert list(sentence.pieces()) == [("", 0, ("?", "O"))]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"", {}, ["0: no sentences: expected lines of a token and its label"]),
        (b"\xef\xbb\xbf\r\n \n-DOCSTART- O\n", {}, ["0: no sentences: expected lines of a token"]),
        (
            b"a\n\nb\n",
            {},
            ["1: expected 2 columns separated by", "3: expected 2 columns separated by"],
        ),
        (
            b"a X\nb O\n",
            {"annotators": 2},
            ["1: expected 3 columns separated by", "2: expected 3 columns separated by"],
        ),
        (b"a\tX\tX\tO\nb\tX\tO\n\nc\tX\tO\n", {}, ["1: expected 3 columns separated by tabs"]),
        (b"a O\nb\tO\n", {}, ["1: expected 2 columns separated by tabs (token, label), got 1"]),
        (
            b"a\tO\n\tO\nb\t \tO\n",
            {},
            ["3: column 2 is empty", "3: expected 2 columns separated by"],
        ),
        (b" a O\nb X O\n", {}, ["1: column 1 is empty"]),
        (
            b"a\tO\n\xe4b\tO\r\nc\tO\n\nd\xff\xff\tO\n",
            {},
            ["2: expected UTF-8, got byte 0xe4 at", "5: expected UTF-8, got byte 0xff at"],
        ),
        (
            b"\xef\xbb\xbfa\xc3\n",
            {},
            ["1: expected 2 columns separated by", "1: expected UTF-8, got byte 0xc3 at"],
        ),
        ("a\tO\n".encode("utf-16"), {}, ["1: expected UTF-8, got UTF-16; convert it, for"]),
        (b"a\tO\nb\0\tO\n", {}, ["2: the line holds a NUL character"]),
        (b"a\tO\r\r\nb\tO\n", {}, ["1: the line holds a carriage return that does not end it"]),
        (b"a\tO\n\n\xef\xbb\xbfb\tO\n", {}, ["3: the line begins with a byte-order mark: were"]),
        (
            b"a O O\nb O O\n\nc O O O\nd O O\ne O O O\n",
            {"annotators": "all"},
            ["5: expected 4 columns separated by spaces (token, 3 labels), got 3"],
        ),
        (b"# annotators = u v\na\tO\tO\n\nb\tO\tO\n", {}, ["4: expected a line '# annotators ="]),
        (
            b"# annotators = u v\na\tO\tO\tO\nb\tO\tO\tO\n\n# annotators = u\na\tO\n",
            {},
            ["6: expected 3 columns separated by tabs (token, 1 more, label), got 2"],
        ),
        (
            b"# annotators = u v\na\tO\tO\n",
            {"annotators": 3},
            ["1: expected names of 3 annotators, got 2"],
        ),
        (
            b"# annotators =\na\tO\n\n# annotators = u\n\n# annotators = u\na\tO\n",
            {},
            ["1: expected names of annotators and a", "4: expected names of annotators and a"],
        ),
        (
            b"a O\nb I-P\n\nc B-P\nd I-P\ne I-Q\n\nf B-P\n\ng B-P\n",
            {},
            ["2: expected O or B-* after O, got I-P", "6: expected O, B-* or I-P after I-P,"],
        ),
        (b"a O\nb B-P\n", {"scheme": "iob1"}, ["2: expected O or I-* after O, got B-P (iob1)"]),
        (
            b"a O ? B-P\nb I-P O ?\nc O B-P I-P\n",
            {"annotators": 3},
            ["2: annotator 1: expected O or B-*", "3: annotator 3: expected O or B-* at"],
        ),
        (b"a B-P\nb\nc I-P\n\nd B-P\n", {}, ["2: expected 2 columns separated by spaces (token,"]),
        (b"a I-P\nb\0 O\n\nd B-P\n", {}, ["2: the line holds a NUL character"]),
        (
            b"# annotators = u\na I-P\n",
            {"annotators": 3, "scheme": "bio"},
            ["1: expected names of 3 annotators, got 1"],
        ),
        (
            b"# annotators = u\na X O\n",
            {"annotators": "all"},
            ["2: expected 2 columns separated by spaces (token, label), got 3"],
        ),
        (b"a O\nb O O\nc O O\n", {"annotators": "all"}, ["1: expected 3 columns separated by"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa O\n", {}, ["1: the line begins with a byte-order mark:"]),
        (b"a DT\nb NN\n", {}, []),
    ],
)
def test_every_fault_with_its_line(place, content, options, expected):
    path = write(place, content)
    found = check_conll(path, **options)
    told = [f"{fault.line}: {fault.message}" for fault in found]
    assert all(map(str.startswith, told, expected))
    assert len(told) == len(expected)
    options.setdefault("scheme", "bio" if any("(bio)" in fault for fault in told) else None)
    if expected:
        with pytest.raises(DataError) as caught:
            read_conll(path, **options)
        line, message = found[0]
        more = (
            f" (and {len(expected) - 1} more; `softq data check` lists them)"
            if expected[1:]
            else ""
        )
        assert str(caught.value) == f"{path}{f', line {line}' if line else ''}: {message}{more}"
    else:
        read_conll(path, **options)


@QUICK
@given(sentences_of(False, extra=1), st.data())
def test_each_broken_line_is_found_and_no_other(place, sentences, data):
    sentences = [
        Sentence(
            tuple(token.strip(" ") or "a" for token in s.tokens),
            (("O",) * len(s.tokens),),
            (),
            s.extra,
        )
        for s in sentences
    ] + [Sentence(("z",) * 30, (("O",) * 30,), (), (("X",) * 30,))]
    lines = to_conll(sentences).encode().split(b"\n")
    full = [number for number, line in enumerate(lines) if line]
    broken = data.draw(st.lists(st.sampled_from(full), unique=True, max_size=10))
    for number in broken:
        how = data.draw(st.sampled_from(["more", "fewer", "bytes", "nul", "return", "empty"]))
        first, rest = lines[number].split(b"\t", 1)
        lines[number] = {
            "more": lines[number] + b"\tO",
            "fewer": first + b"\tO",
            "bytes": first + b"\xc0\x80\t" + rest,
            "nul": first + b"\0\t" + rest,
            "return": first + b"\r\t" + rest,
            "empty": first + b"\t\tO",
        }[how]
    path = write(place, b"\n".join(lines))
    found = check_conll(path)
    assert [fault.line for fault in found] == sorted(number + 1 for number in broken)
    if not broken:
        assert read_conll(path).sentences == sentences
    else:
        with pytest.raises(DataError, match=f"line {min(broken) + 1}: "):
            read_conll(path)


@QUICK
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14), st.sampled_from([0, 1, 2, "all"]))
def test_any_bytes_are_read_or_refused(place, content, annotators):
    path = write(place, b"".join(content))
    found = check_conll(path, annotators=annotators)
    assert found == sorted(found)
    structure = [
        fault
        for fault in found
        if "expected O" not in fault.message and fault.message != "the token is empty"
    ]
    try:
        sentences = read_conll(path, annotators=annotators).sentences
    except DataError:
        assert structure
    else:
        assert not structure
        assert sentences
        assert read_conll(write(place, to_conll(sentences))).sentences == sentences


@QUICK
@given(st.lists(tags, min_size=1, max_size=8))
def test_faults_of_tags_are_those_of_the_scheme(place, labels):
    path = write(place, "x y\n\n" + "".join(f"w {label}\n" for label in labels))
    lines = [3 + position for position, _ in faults(labels, "bioes")]
    assert [fault.line for fault in check_conll(path, scheme="bioes") if fault.line > 1] == lines


def test_scheme_that_fits_or_is_broken_least():
    def file(*labels):
        return [
            Sentence(tuple("abcdefgh"[: len(one.split())]), (tuple(one.split()),)) for one in labels
        ]

    assert find_scheme(file("O B-P I-P")) == "bio"
    assert find_scheme(file("O I-P I-P")) == "iob1"
    assert find_scheme(file("O S-P B-P E-P")) == "bioes"
    assert find_scheme(file("O B-P E-P", "O S-P", "S-P B-P")) == "bioes"  # one is left open
    assert find_scheme(file("O I-P", "I-P O", "O B-P")) == "iob1"  # the last is wrong
    assert find_scheme(file("O O", "NN")) is None
    assert find_scheme([]) is None


OUT = (("O",),)


@pytest.mark.parametrize(
    "sentences",
    [
        [Sentence((), ((),))],
        [Sentence(("a",), (("O", "O"),))],
        [Sentence(("a",), (("O",), ("O",)))],
        [Sentence(("a",), OUT, ("u", "v"))],
        [Sentence(("a\tb",), OUT)],
        [Sentence(("a\r",), OUT)],
        [Sentence(("a",), (("",),))],
        [Sentence(("a",), OUT, (), ((" ",),))],
        [Sentence(("a",), (("O ",),))],
        [Sentence(("-DOCSTART-",), OUT)],
        [Sentence(("a", "-DOCSTART- b"), (("O", "O"),))],
        [Sentence(("# annotators = x",), OUT)],
        [Sentence(("a",), OUT, comments=("a b",))],
        [Sentence(("a",), OUT, comments=("# a = b ",))],
        [Sentence(("a",), OUT, comments=("# annotators = b",))],
        [Sentence(("a",), OUT, comments=("# a = b\n",))],
        [Sentence(("\ufeffa",), OUT)],
        [Sentence(("a",), OUT, ("u v",))],
        [Sentence(("a",), OUT), Sentence(("a",), OUT, ("u",))],
        [Sentence(("a",), OUT), Sentence(("a",), OUT, (), (("X",),))],
    ],
)
def test_what_cannot_be_written(sentences):
    with pytest.raises(DataError, match="written in columns"):
        to_conll(sentences)


def test_files_that_cannot_be_opened(place):
    (fault,) = check_conll(place)
    assert fault.line == 0
    assert fault.message.startswith(f"cannot read {place}: ")
    with pytest.raises(DataError, match=f"cannot read {place}: "):
        read_conll(place)
    for packed in (".gz", ".xz"):
        path = place.with_name("b" + packed)
        for content in (
            b"no such thing",
            (gzip.compress if packed == ".gz" else lzma.compress)(b"a O\n" * 99)[:-9],
        ):
            path.write_bytes(content)
            assert [fault.line for fault in check_conll(path)] == [0]


def test_annotators_must_be_a_number(place):
    for use in (read_conll, check_conll):
        with pytest.raises(DataError, match="'all' or a number of columns, 0 or more, got -1"):
            use(write(place, "a O\n"), annotators=-1)


@pytest.mark.parametrize("separator", ["\t", " "])
def test_comments_are_kept_and_a_token_may_be_a_hash(place, separator):
    lines = [
        "# sent_id = 7",
        "# text = # 5 million",
        "#|O",
        "5|O",
        "# of|O" if separator == "\t" else "#|O",
        "",
        "#|B-X",
        "",
        "a|O",
    ]
    path = write(place, "\n".join(line.replace("|", separator) for line in lines))
    first, second, third = read_conll(path).sentences
    assert first.tokens == ("#", "5", "# of" if separator == "\t" else "#")
    assert (first.comments, first.line) == (("# sent_id = 7", "# text = # 5 million"), 3)
    assert (second.tokens, second.labels, second.comments) == (("#",), (("B-X",),), ())
    assert third.tokens == ("a",)
    assert read_conll(to_conll([first, second, third])).sentences == [first, second, third]
    assert check_conll(path) == []
    (chunk,) = read_chunks(io.BytesIO(path.read_bytes()), "a file")
    assert [(block.line, block.columns[0]) for block in chunk.blocks] == [
        (3, first.tokens),
        (7, ("#",)),
        (9, ("a",)),
    ]


def test_comments_with_tabs_in_a_file_of_spaces(place):
    path = write(place, "# id 7-a\tdomain=en\nil _ _ O\n# _ _ O\n\n# id 8\tdomain=en\n# _ _ B-X\n")
    first, second = read_conll(path).sentences
    assert (first.tokens, second.tokens) == (("il", "#"), ("#",))
    assert (first.comments, second.comments) == (("# id 7-a\tdomain=en",), ("# id 8\tdomain=en",))


def test_comments_of_annotated_sentences(place):
    text = (
        "# sent_id = 1\n# annotators = u v\n# text = a b\na\tO\tO\n\n# sent_id = 2\n#"
        " annotators=u\nb\tO\n\n"
    )
    first, second = read_conll(write(place, text)).sentences
    assert (first.annotators, first.comments) == (("u", "v"), ("# sent_id = 1", "# text = a b"))
    assert (second.annotators, second.comments) == (("u",), ("# sent_id = 2",))
    assert read_conll(to_conll([first, second])).sentences == [first, second]
    assert check_conll(text, annotators=3) == [
        Fault(2, "expected names of 3 annotators, got 2"),
        Fault(7, "expected names of 3 annotators, got 1"),
    ]
    twice = "# annotators = u\n# x = y\n# annotators = v\na O\n"
    assert check_conll(twice) == [
        Fault(3, "expected one line '# annotators = …' before a sentence, got a second one")
    ]


def test_text_in_place_of_a_file(place):
    text = "a\tO\nb\tB-X\n"
    assert (
        read_conll(text).sentences
        == read_conll(write(place, text)).sentences
        == read_conll(str(place)).sentences
    )
    assert (read_conll(text).name, read_conll(place).name) == ("the text", str(place))
    with pytest.raises(
        DataError,
        match=r"^the text, line 2: expected 2 columns separated by tabs \(token, label\), got 3",
    ):
        read_conll("a\tO\nb\tO\tO\nc\tO\n")
    with pytest.raises(DataError, match=r"^the text, line 2: expected UTF-8, got byte 0xed"):
        read_conll("a\tO\n\ud800\tO\n")
    with pytest.raises(DataError, match=r"^cannot read a b: "):
        read_conll("a b")


def test_what_a_tagger_is_fitted_to():
    crowd = (
        "# annotators = w2 w1\nAnn\tN\tB-X\tO\nran\tV\tO\tO\n\n# annotators = w3 w1"
        " w1\nHi\tI\t?\tO\tB-X\n\n# annotators = w3\nHi\tI\tO\n"
    )
    corpus = read_conll(crowd)
    found = corpus.X_y()
    assert found.annotators == ("w1", "w1", "w2", "w3")
    assert found.X == [["Ann", "ran"], ["Hi"], ["Hi"]]
    assert found.y == [
        [["O", "O"], None, ["B-X", "O"], None],
        [["O"], ["B-X"], None, None],
        [None, None, None, ["O"]],
    ]
    assert corpus.X_y(pos=2).X == [[("Ann", "N"), ("ran", "V")], [("Hi", "I")], [("Hi", "I")]]
    tagger = CRFTagger(c2=0.1, objective="sqdml", tau=0.5).fit(
        found.X, found.y, ref_weights="dawid-skene"
    )
    assert [found.annotators[int(row.name)] for row in tagger.annotators_] == list(found.annotators)
    assert read_conll("a O\nb X\n").X_y() == ([["a", "b"]], [["O", "X"]], ())
    for pos in (1, 3):
        with pytest.raises(
            DataError,
            match=f"the text: expected pos to be a column between token and labels, .* got {pos}",
        ):
            corpus.X_y(pos=pos)
    with pytest.raises(
        DataError,
        match="the text, line 2: expected an annotator who labelled a token of the sentence, got none",
    ):
        read_conll("# annotators = w1\na\t?\nb\t?\n").X_y()
    partly = read_conll("# annotators = w1 w2\na\tO\t?\nb\t?\t?\n").X_y()
    assert partly.y == [[["O", "?"], None]]


def test_parts_of_speech_of_a_treebank():
    text = "# sent_id = 1\n1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n\n"
    trees = read_conllu(text)
    assert trees.X_y() == ([["Hi"]], [["INTJ"]], ())
    assert trees.X_y("xpos").y == [["UH"]]
    with pytest.raises(DataError, match=r"^the text, line 2: expected 10 columns"):
        read_conllu("# sent_id = 1\n1\tHi\n\n")
