"""Labels of annotators from JSON: the shapes of annotation tools, faults, and spans as labels and back."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softq.errors import DataError, DataWarning
from softq.formats.annotations import (
    check_annotations,
    is_json,
    looks_annotated,
    read_annotations,
)
from softq.formats.conll import Sentence, read_conll, to_conll
from softq.formats.tags import spans
from softq.formats.words import place_words, split_words

TEXT = "Ann Lee met Bob."
LEE = ("B-PER", "I-PER", "O", "O", "O")
BOB = ("O", "O", "O", "B-PER", "O")
NOTHING = ("O",) * 5


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def array(*records):
    return json.dumps(records) + "\n"


def labels(text, **options):
    """Labels by annotator of each sentence."""
    found = read_annotations(text, **options).sentences
    return [list(zip(one.annotators or ("",), one.labels, strict=True)) for one in found]


def task(text, *annotations, number=1, **more):
    """A task as Label Studio exports it."""
    return {
        "id": number,
        "data": {"text": text},
        "annotations": list(annotations),
        "predictions": [{"result": [region(0, 16, "ORG")], "model_version": "m"}],
        "drafts": [],
    } | more


def region(start, end, label, **more):
    value = {"start": start, "end": end, "labels": [label]} | more
    return {"value": value, "from_name": "label", "to_name": "text", "type": "labels", "id": "x"}


def annotation(by, *regions, cancelled=False):
    return {"completed_by": by, "result": list(regions), "was_cancelled": cancelled}


# --- shapes of tools ----------------------------------------------------------------------------


def test_label_studio():
    link = {"from_id": "x", "to_id": "y", "type": "relation"}
    choice = {"value": {"choices": ["good"]}, "type": "choices"}
    text = array(
        task(
            TEXT,
            annotation(7, region(0, 7, "PER"), link, choice),
            annotation({"id": 8, "email": "b c@x.org"}, region(12, 15, "PER")),
            annotation(9),
            annotation(10, region(0, 3, "PER"), cancelled=True),
        )
    )
    assert labels(text) == [[("7", LEE), ("b_c@x.org", BOB), ("9", NOTHING)]]
    assert read_annotations(text).sentences[0].comments == ("# sent_id = 1",)


def test_label_studio_where_nobody_labelled_a_text():
    text = array(
        task(TEXT, annotation(1, region(0, 7, "PER")), annotation(2)),
        task("Later.", number=2),
        task("Skipped.", annotation(1, cancelled=True), number=3),
    )
    with pytest.warns(DataWarning, match="the text: texts that nobody labelled, left out: 2"):
        assert labels(text) == [[("1", LEE), ("2", NOTHING)]]


def test_label_studio_calls_the_text_as_the_project_does():
    text = array(task(None, annotation(1, region(0, 7, "PER")), data={"ner": TEXT, "page": 3}))
    assert labels(text) == [[("", LEE)]]
    unclear = array(task(None, annotation(1), data={"ner": TEXT, "title": "Who"}))
    with pytest.raises(DataError, match="record 1: expected a text under 'text'"):
        read_annotations(unclear)


def test_label_studio_json_min_has_a_record_for_each_annotation():
    span = {"start": 0, "end": 7, "text": "Ann Lee", "labels": ["PER"]}
    about = {"text": TEXT, "id": 1, "annotation_id": 5, "created_at": "2026", "lead_time": 1.5}
    text = array(
        about | {"label": [span], "annotator": 3},
        about | {"annotator": "d@x.org"},  # who marked nothing
        about | {"id": 2, "entity": [span], "annotator": 3},  # as the project calls labels
    )
    assert labels(text) == [[("3", LEE), ("d@x.org", NOTHING)], [("3", LEE)]]


def test_offsets_in_units_of_utf_16_are_found_by_the_text_that_is_quoted():
    text = "\U0001f600 Ann ran"
    for start in (2, 3):  # in characters, in units
        value = region(start, start + 3, "PER", text="Ann")
        assert labels(array(task(text, annotation(1, value)))) == [[("", ("O", "B-PER", "O"))]]
    value = region(0, 1, "PER", text="Ann")
    with pytest.warns(DataWarning, match="not have the text that the file quotes for them: 1"):
        read_annotations(array(task(text, annotation(1, value))))


@pytest.mark.parametrize(
    "record",
    [
        {"id": 4, "text": TEXT, "label": [[0, 7, "PER"]], "Comments": []},
        {"id": 4, "data": TEXT, "label": [[0, 7, "PER"]]},
        {"doc_id": 4, "text": TEXT, "labels": [[0, 7, "PER"]], "meta": {}},
        {
            "text": TEXT,
            "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 7}],
            "relations": [],
        },
        {"text": TEXT, "annotations": [["PER", 0, 7]], "annotation_approver": None},
        {"text": TEXT, "spans": [{"start": 0, "end": 7, "label": "PER"}]},
        {"text": TEXT, "annotation": [["PER", 0, 7, 0.0]], "prediction": [["ORG", 0, 3]]},
    ],
)
def test_spans_that_are_nobodys(record):
    assert labels(lines(record)) == [[("", LEE)]]
    assert labels(lines(record), annotators="all") == [[("1", LEE)]]


@pytest.mark.parametrize(
    "key", ["annotator", "user", "username", "annotation_approver", "annotation_agent"]
)
def test_spans_of_whom_a_record_names(key):
    records = [
        {"text": TEXT, "label": [[0, 7, "PER"]], key: "w 1"},
        {"text": TEXT, "label": [], key: 2},
    ]
    assert labels(lines(*records)) == [[("w_1", LEE), ("2", NOTHING)]]


def test_doccano_with_the_user_of_each_span():
    spans_of = [
        {"label": 7, "start_offset": 0, "end_offset": 7, "user": 1},
        {"label": 7, "start_offset": 12, "end_offset": 15, "user": 2},
    ]
    text = lines(
        {"id": 1, "text": TEXT, "annotations": spans_of},
        {"id": 2, "text": "No.", "annotations": []},
    )
    with pytest.warns(DataWarning, match="nobody labelled, left out: 1"):
        found = labels(text)
    assert found == [
        [("1", ("B-7", "I-7", "O", "O", "O")), ("2", ("O", "O", "O", "B-7", "O"))],
    ]


def test_doccano_with_a_file_for_each_annotator(tmp_path):
    files = {
        "admin.jsonl": [{"id": 1, "text": TEXT, "label": [[0, 7, "PER"]]}, {"id": 2, "text": "Hi.", "label": []}],
        "j.doe.jsonl.gz": [{"id": 2, "text": "Hi.", "label": []}, {"id": 1, "text": TEXT, "label": []}],
    }  # fmt: skip
    for name, records in files.items():
        pack = gzip.compress if name.endswith("gz") else bytes
        (tmp_path / name).write_bytes(pack(lines(*records).encode()))
    corpus = read_annotations(*(tmp_path / name for name in files))
    assert [one.annotators for one in corpus.sentences] == [("admin", "j.doe")] * 2
    assert corpus.sentences[0].labels == (LEE, NOTHING)
    (tmp_path / "eve.conll").write_text("Ann B-PER\nLee I-PER\nmet O\nBob O\n. O\n\nHi O\n. O\n")
    (tmp_path / "admin.jsonl").write_text(lines({"text": TEXT, "label": []}))
    corpus = read_annotations(tmp_path / "admin.jsonl", tmp_path / "eve.conll")
    assert corpus.sentences[0] == Sentence(
        tuple(split_words(TEXT)), (NOTHING, LEE), ("admin", "eve")
    )
    assert len(corpus.sentences) == 2


def test_argilla_1():
    record = {
        "text": TEXT,
        "tokens": ["Ann", "Lee", " ", "met", "Bob."],
        "annotation": [{"label": "PER", "start": 0, "end": 7, "score": 1.0}],
        "annotation_agent": "ann",
        "prediction": None,
        "status": "Validated",
    }
    others = record | {"annotation": None}, record | {"status": "Discarded"}
    with pytest.warns(DataWarning, match="left out: 2"):
        found = read_annotations(array(record, *others), annotators="all").sentences
    assert found == [Sentence(("Ann", "Lee", "met", "Bob."), (("B-PER", "I-PER", "O", "O"),), ("ann",))]  # fmt: skip


def test_argilla_2():
    span = [{"label": "PER", "start": 0, "end": 7}]
    nested = {
        "id": "a",
        "fields": {"sentence": TEXT},
        "suggestions": {"entities": {"value": [], "agent": "m"}},
        "responses": {
            "entities": [{"value": span, "user_id": "u1"}, {"value": [], "user_id": "u2"}],
            "quality": [{"value": "good", "user_id": "u1"}],
        },
    }
    flat = {
        "id": "a",
        "text": TEXT,
        "entities.responses": [span, [], span],
        "entities.responses.users": ["u1", "u2", "u3"],
        "entities.responses.status": ["submitted", "submitted", "discarded"],
        "entities.suggestion": span,
        "quality.responses": ["good"],
        "quality.responses.users": ["u1"],
    }
    for text in (array(nested), lines(flat)):
        assert labels(text) == [[("u1", LEE), ("u2", NOTHING)]]
    empty = flat | {"entities.responses": None, "quality.responses": None}
    with pytest.warns(DataWarning, match="left out: 1"):
        assert len(labels(lines(flat, empty))) == 1
    both = flat | {"more.responses": [span], "more.responses.users": ["u1"]}
    with pytest.raises(DataError, match="answers to one question of spans, got 'entities"):
        read_annotations(lines(both))


def test_labels_of_tokens():
    tokens = ["Ann", "ran", "home", "."]
    crowd = {"w1": ["B-PER", "O", "O", "O"], "w2": None, "w3": ["O", None, "O", "O"]}
    assert labels(lines({"tokens": tokens, "annotations": crowd})) == [
        [("w1", ("B-PER", "O", "O", "O")), ("w3", ("O", "?", "O", "O"))]
    ]
    soft = ["O", {"B-PER": 0.7, "O": 0.3}, None, ["B-PER", "B-ORG"]]
    text = lines({"tokens": tokens, "labels": soft})
    assert labels(text) == [[("", ("O", "B-PER=0.7|O=0.3", "?", "B-ORG|B-PER"))]]
    assert not check_annotations(text)
    (sentence,) = read_annotations(text).sentences
    assert list(sentence.pieces()) == [("", 0, ("O",))]
    several = [{"annotator": "w1", "labels": ["O"] * 4}, {"labels": ["B-X"] + ["O"] * 3}]
    assert [name for name, _ in labels(lines({"tokens": tokens, "annotations": several}))[0]] == ["w1", "2"]  # fmt: skip


def test_as_the_input_of_a_tagger():
    text = lines(
        {"text": "Ann ran", "label": [[0, 3, "PER"]], "user": "w2"},
        {"text": "Ann ran", "label": [], "user": "w1"},
        {"text": "Hi", "label": [], "user": "w1"},
    )
    found = read_annotations(text).X_y()
    assert (found.X, found.annotators) == ([["Ann", "ran"], ["Hi"]], ("w1", "w2"))
    assert found.y == [[["O", "O"], ["B-PER", "O"]], [["O"], None]]


def test_the_same_words_again_are_another_sentence_unless_their_id_is_the_same():
    one = {"text": "Yes", "label": [], "user": "w1"}
    assert labels(lines(one, one, one | {"user": "w2"})) == [
        [("w1", ("O",)), ("w2", ("O",))],
        [("w1", ("O",))],
    ]
    again = one | {"id": 3}
    assert labels(lines(again, again, again | {"id": 4})) == [
        [("w1", ("O",)), ("w1", ("O",))],
        [("w1", ("O",))],
    ]


def test_files_by_their_names_and_beginnings(tmp_path):
    record = {"text": TEXT, "label": [[0, 7, "PER"]]}
    for name, content in {
        "a.json": array(record),
        "b.json": "\ufeff\n " + json.dumps([record], indent=2),
        "c.jsonl": "\ufeff\n" + lines(record) + "\n  \n",
        "d.json": lines(record, record),  # as old versions of doccano name lines
        "e.json": json.dumps(record, indent=1),
    }.items():
        (tmp_path / name).write_text(content)
        assert is_json(tmp_path / name)
        assert read_annotations(tmp_path / name).sentences[0].labels == (LEE,)
        assert looks_annotated(tmp_path / name)
    captions = {"dataset": "x", "images": [{"sentences": [{"tokens": ["a"], "raw": "A."}]}]}
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    assert not looks_annotated(tmp_path / "captions.json")
    columns = "[ O\n{ O\n\n"
    assert read_annotations(columns) == read_conll(columns)
    assert read_annotations("a O B\n", annotators=2).sentences[0].annotators == ("1", "2")
    assert check_annotations("a B-X\nb I-Y\n", scheme="bio")[0].line == 2


# --- spans --------------------------------------------------------------------------------------


def test_spans_are_widened_to_words_and_counted():
    text = "Berlin-based New York, Rome."
    found = [[0, 6, "LOC"], [12, 21, "LOC"], [23, 25, "LOC"], [25, 27, "LOC"], [22, 23, "X"]]
    with pytest.warns(DataWarning) as told:
        (row,) = labels(lines({"text": text, "label": found}))
    assert row == [("", ("B-LOC", "B-LOC", "I-LOC", "O", "B-LOC", "O"))]
    assert str(told[0].message) == (
        "the text: spans that begin or end inside a word and were widened: 2; spans that were left"
        " out, of white space or of a word that another span has: 2"
    )


def test_in_another_scheme():
    text = lines({"text": TEXT, "label": [[0, 7, "PER"], [12, 15, "PER"]]})
    assert labels(text, scheme="bioes") == [[("", ("B-PER", "E-PER", "O", "S-PER", "O"))]]
    assert labels(text, scheme="iob1") == [[("", ("I-PER", "I-PER", "O", "I-PER", "O"))]]
    assert not check_annotations(text, scheme="bioes")
    wrong = lines({"tokens": ["a", "b"], "labels": ["O", "I-X"]})
    with pytest.raises(DataError, match=r"line 1, token 2: expected O or B-\* after O, got I-X"):
        read_annotations(wrong, scheme="bio")
    assert "token 2: expected O or B-* after O" in check_annotations(wrong + lines(json.loads(wrong) | {"labels": ["B-X", "I-X"]}))[0].message  # fmt: skip


@st.composite
def entities(draw):
    """Words, and entities of some of them."""
    words = draw(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=8))
    cuts = sorted(draw(st.sets(st.integers(0, len(words)), max_size=6)))
    kinds = st.sampled_from(["PER", "LOC", None])
    found = [(draw(kinds), *pair) for pair in pairwise(cuts)]
    return words, [one for one in found if one[0]]


@given(entities())
def test_spans_become_labels_and_labels_the_same_spans(drawn):
    words, found = drawn
    text = " ".join(words)
    places = place_words(text, words)
    given_spans = [[places[start][0], places[end - 1][1], kind] for kind, start, end in found]
    for record in ({"text": text}, {"text": text, "tokens": words}):
        ((row,),) = labels(lines(record | {"label": given_spans}))
        assert [tuple(span) for span in spans(row[1], "bio")] == found


@given(st.text())
def test_the_places_of_words_are_theirs_and_leave_out_white_space_alone(text):
    words = split_words(text)
    places = place_words(text, words)
    shown = text.replace("￭", "■")
    assert [shown[start:end] for start, end in places] == words
    assert "".join(words) == "".join(shown.split())


def test_columns_and_back(tmp_path):
    text = array(task(TEXT, annotation("w1", region(0, 7, "PER")), annotation("w2")))
    found = read_annotations(text).sentences
    assert read_conll(to_conll(found)).sentences == found


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (3, "expected a record such as"),
        ({}, "expected labels under one of 'annotations', .*got nothing"),
        ({"text": "a b"}, "expected labels under one of .*got 'text'"),
        ({"label": [[0, 1, "X"]]}, "expected a text under 'text'"),
        ({"text": "  ", "label": []}, "expected a text under 'text'"),
        ({"tokens": [], "labels": ["O"]}, "expected a text under 'text', or a list of words"),
        ({"tokens": ["a", ""], "labels": ["O", "O"]}, "none of them empty"),
        ({"tokens": ["a"], "spans": [[0, 1, "X"]]}, "expected the text of which spans count"),
        ({"text": "a", "tokens": ["b"], "spans": [[0, 1, "X"]]}, "got 'b', which is not in 'a'"),
        ({"text": "a b", "label": [[0, 4, "X"]]}, "span of the 3 characters .* got 0 to 4"),
        ({"text": "a b", "label": [[-1, 2, "X"]]}, "got -1 to 2"),
        ({"text": "a b", "label": [[2, 1, "X"]]}, "got 2 to 1"),
        ({"text": "a b", "label": [[0, 3, "X"], [2, 3, "Y"]]}, r"not overlap, got \[0, 3, 'X'\]"),
        ({"text": "a b", "label": [[0, 1.5, "X"]]}, "expected start, end and one label"),
        ({"text": "a b", "label": [[0, True, "X"]]}, "expected start, end and one label"),
        ({"text": "a b", "label": [[0, 1, " "]]}, "expected start, end and one label"),
        ({"text": "a", "label": [{"start": 0, "end": 1, "labels": ["X", "Y"]}]}, "one label of"),
        ({"text": "a b", "label": ["good"]}, "expected spans such as"),
        ({"text": "a b", "label": "good"}, "expected a list of spans or labels, got 'good'"),
        ({"tokens": ["a"], "labels": ["O", "O"]}, "a label for each of the 1 tokens"),
        ({"tokens": ["a"], "labels": [3]}, "expected a label, null, a list"),
        ({"tokens": ["a"], "labels": [True]}, "expected a label, null, a list"),
        ({"tokens": ["a"], "labels": [""]}, "expected a label"),
        ({"tokens": ["a"], "labels": [{"X": 0.5, "O": 2}]}, "labels with probabilities"),
        ({"tokens": ["a"], "labels": [["X|Y"]]}, "expected a label, null, a list"),
        ({"tokens": ["a"], "labels": [[["X"]]]}, "expected"),
        (
            {"text": "a b", "label": [{"start": 0, "end": 1, "label": "X", "user": 1}, [2, 3, "X"]]},
            "expected the name of an annotator for all labels",
        ),
        (
            task("a b", annotation(1, {"value": {"hypertextlabels": ["X"], "start": "/p"}})),
            "expected labels of a text, got .*hypertextlabels",
        ),
        (task("a b", {"result": 3}), "expected .*, got 'int' object is not iterable"),
    ],
)  # fmt: skip
def test_faults_have_a_line_or_a_record(tmp_path, record, message):
    good = {"text": TEXT, "label": [[0, 7, "PER"]]}
    with pytest.raises(DataError, match=f"the text, line 2: .*{message}"):
        read_annotations(lines(good, record))
    (tmp_path / "a.json").write_text(array(good, record, record))
    with pytest.raises(DataError, match=rf"a\.json: record 2: .*{message}.*\(and 1 more"):
        read_annotations(tmp_path / "a.json")
    found = check_annotations(tmp_path / "a.json")
    assert [fault.message.partition(":")[0] for fault in found] == ["record 2", "record 3"]
    assert [fault.line for fault in check_annotations(lines(good, record, good, record))] == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no labelled text: expected records such as"),
        (b"[]", "no labelled text"),
        (b"[{]", "expected JSON in .*a.json, got Expecting .* line 1"),
        (b'{"text": "a"\n', "line 1: expected JSON in the line, got Expecting"),
        (b"[" * 100_000, "expected JSON in .*, got"),
        (b'{"text": "\xff", "label": []}\n', "line 1: expected UTF-8, got byte 0xff"),
        ("[]".encode("utf-16"), "line 1: expected UTF-8, got UTF-16"),
        (b'[{"text": "a", "label": [[NaN, 1, "X"]]}]', "got NaN, which JSON has not"),
        (b'{"id": 2, "data": {"text": "a"}, "annotations": []}\n', "no labelled text"),
        (
            b'{"text": "a", "label": [], "user": 1}\n{"text": "a", "label": [[0, 1, "X"]]}\n',
            "line 2: expected the name of an annotator, as in other records",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_annotations(path)
    assert "\n" not in str(error.value)
    assert check_annotations(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_annotations(tmp_path / "a.jsonl")
    assert "cannot read" in check_annotations(tmp_path / "a.jsonl")[0].message
