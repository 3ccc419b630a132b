"""Taggers on the command line: predict and evaluate."""

import gzip
import io
import json
import lzma

import pytest

from ner_commands import (
    FAST,
    evaluated,
    make_corpus,
    make_runs,
    predictions,
    refused,
    softq,
    told,
    well,
)
from softq.cli.kinds import base
from softq.errors import DataError
from softq.formats.chunks import read_chunks, read_plain_chunks
from softq.formats.conll import read_conll
from softq.formats.tags import convert
from softq.lab.run import BEST
from softq.linear import CRFTagger
from softq.metrics import SpanScores, span_statistics


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    return make_runs(corpus, tmp_path_factory.mktemp("runs"))


def columns_of(text):
    return [line.split("\t") for line in text.split("\n")]


def without_last(text, count=1):
    return "\n".join("\t".join(columns[:-count]) for columns in columns_of(text))


# --- predict ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "decoding"), [("bio", None), ("bio", "mbr"), ("bioes", None), ("bioes", "viterbi")]
)
def test_lines_come_back_with_the_labels_that_the_tagger_finds(corpus, runs, name, decoding):
    path, model = corpus / "test.conll", runs[0] / name
    found = predictions(model, path, *(["--decoding", decoding] if decoding else []))
    assert without_last(found) == path.read_text()
    loaded = CRFTagger.load(model / BEST)
    tagger = loaded.tagger_
    tokens = [sentence.tokens for sentence in read_conll(path).sentences]
    expected = tagger.decode(tagger.index.transform(tokens), decoding or loaded.decoding)
    assert {label[0] for labels in expected for label in labels} == set(
        "OBI" if name == "bio" else "OBIES"
    )
    if name == "bioes":
        expected = [convert(labels, "bioes", "bio") for labels in expected]
    assert [row[-1] for row in columns_of(found) if row != [""]] == [
        label for labels in expected for label in labels
    ]
    assert found == predictions(
        model / BEST, path, "--decoding", decoding or loaded.decoding
    )  # the file, and once more


def test_decodings_differ(corpus, runs):
    viterbi, mbr = (
        predictions(runs[0] / "bioes", corpus / "test.conll", "--decoding", name)
        for name in ("viterbi", "mbr")
    )
    assert viterbi != mbr


def test_labels_need_not_be_there(corpus, runs):
    text = (corpus / "test.conll").read_text()
    expected = predictions(runs[0] / "bio", corpus / "test.conll")
    tokens = without_last(text)
    found = predictions(runs[0] / "bio", "-", stdin=tokens)
    assert found == "\n".join("\t".join(row[:1] + row[2:]) for row in columns_of(expected))
    sentences = [" ".join(block.split("\n")) for block in tokens.split("\n\n") if block]
    assert (
        predictions(runs[0] / "bio", "-", "--plain", stdin="\n".join(sentences) + "\n\n") == found
    )
    spaced = text.replace("\t", "  ")
    assert predictions(runs[0] / "bio", "-", stdin=spaced).split() == expected.split()


def test_what_is_no_token_stays_as_it_is(runs, tmp_path):
    text = "\ufeff-DOCSTART- -X- O O\r\n\r\nAnn  NN \r\nran VB\r\n \r\n\r\n-DOCSTART-\r\nHi UH"
    found = predictions(runs[0] / "bio", "-", stdin=text.encode()).split("\n")
    assert [
        line.rsplit(" ", 1)[0] if line.startswith(("Ann", "ran", "Hi")) else line for line in found
    ] == [
        *("-DOCSTART- -X- O O", "", "Ann  NN", "ran VB", "", "", "-DOCSTART-", "Hi UH", "", ""),
    ]
    crowd = "# annotators = u v\nAnn\tB-PER\tO\n\n# annotators = w\nHi\tO\n\n"
    found = predictions(runs[0] / "bio", "-", stdin=crowd)
    (tmp_path / "crowd.conll").write_text(found)
    first, second = read_conll(tmp_path / "crowd.conll").sentences
    assert (first.annotators, second.annotators) == (("u", "v", "softq"), ("w", "softq"))
    assert (first.labels[:2], second.labels[:1]) == ((("B-PER",), ("O",)), (("O",),))
    refused(
        softq("predict", runs[0] / "bio", "-", "--probabilities", stdin=crowd),
        "standard input, line 1: annotators have names here",
    )


@pytest.mark.parametrize("name", ["bio", "bioes"])
def test_probabilities_are_those_of_the_labels(corpus, runs, name):
    path, model = corpus / "test.conll", runs[0] / name
    found = predictions(model, path, "--probabilities")
    assert without_last(found) == predictions(model, path)
    loaded = CRFTagger.load(model / BEST)
    tagger = loaded.tagger_
    matrix = tagger.index.transform([sentence.tokens for sentence in read_conll(path).sentences])
    expected = [
        f"{float(row[tagger.labels.index(label)]):.4f}"
        for table, labels in zip(
            tagger.marginals(matrix), tagger.decode(matrix, loaded.decoding), strict=True
        )
        for row, label in zip(table, labels, strict=True)
    ]
    assert [row[-1] for row in columns_of(found) if row != [""]] == expected


def test_packed_files_several_files_and_a_file_for_the_result(corpus, runs, tmp_path):
    text, model = (corpus / "test.conll").read_bytes(), runs[0] / "bio"
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.conll.xz").write_bytes(lzma.compress(text.rstrip(b"\n")))
    expected = predictions(model, corpus / "test.conll")
    both = ["predict", model, tmp_path / "a.conll.gz", tmp_path / "b.conll.xz"]
    assert well(softq(*both)) == 2 * expected
    for end, unpack in {"conll": bytes, "gz": gzip.decompress, "xz": lzma.decompress}.items():
        out = tmp_path / f"out.{end}"
        found = told(softq(*both, "--out", out, "--json"))
        assert unpack(out.read_bytes()).decode() == 2 * expected
        tokens = 2 * sum(
            len(sentence.tokens) for sentence in read_conll(corpus / "test.conll").sentences
        )
        assert (found["files"], found["sentences"], found["tokens"], found["out"]) == (
            2,
            160,
            tokens,
            str(out),
        )
        assert found["tokens_per_second"] == pytest.approx(tokens / found["seconds"])
        before = out.read_bytes()
        assert well(softq(*both, "--out", out)).startswith(
            f"{out}: 160 sentences, {tokens:,} tokens, "
        )
        assert out.read_bytes() == before
    *lines, last = well(softq(*both, "--json")).splitlines()
    assert ("\n".join(lines) + "\n", json.loads(last)["out"]) == (2 * expected, None)
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.conll.gz",
        "b.conll.xz",
        "out.conll",
        "out.gz",
        "out.xz",
    }


def test_an_error_leaves_the_old_result(runs, tmp_path):
    out = tmp_path / "out.conll"
    out.write_text("old\n")
    refused(
        softq("predict", runs[0] / "bio", "-", "--out", out, stdin="Ann\tO\nran\n"),
        "standard input, line 2: expected 2 columns",
    )
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("out.conll", "old\n")
    ]


def test_an_empty_input_has_an_empty_result(runs):
    assert predictions(runs[0] / "bio", "-", stdin="") == ""


def test_parts_of_speech(corpus, runs):
    model = runs[0] / "pos"
    found = predictions(model, corpus / "test.pos")
    assert without_last(found) == (corpus / "test.pos").read_text()
    unlabelled = without_last((corpus / "test.pos").read_text())
    assert [row[-1] for row in columns_of(predictions(model, "-", stdin=unlabelled))] == [
        row[-1] for row in columns_of(found)
    ]
    refused(
        softq("predict", model, "-", stdin="Ann\n"),
        "standard input, line 1: the model needs parts of speech in column 2",
        "got 1 columns",
    )
    refused(
        softq("predict", model, corpus / "test.conll"),
        "test.conll, line 1: the model needs parts of speech in column 2, got labels such as 'B-",
    )
    refused(
        softq("predict", model, "-", "--plain", stdin="Ann\n"),
        "needs parts of speech (column 2), and running text has none",
    )
    refused(
        softq("evaluate", model, corpus / "test.conll"),
        "test.conll, line 1: expected parts of speech in column 2",
    )


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.conll", None, ["cannot read", "a.conll", "No such file"]),
        ("a.conll", b"Ann\tO\n\nran\t\n", ["a.conll, line 3: column 2 is empty"]),
        ("a.conll", b"Ann O\n ran\n", ["a.conll, line 2: column 1 is empty"]),
        (
            "a.conll",
            b"Ann\n\nr\xffn\n",
            ["a.conll, line 3: expected UTF-8, got byte 0xff at offset 6 of the file"],
        ),
        ("a.conll", "Ann".encode("utf-16"), ["expected UTF-8, got UTF-16"]),
        ("a.conll.gz", gzip.compress(b"Ann\n" * 99, mtime=0)[:-9], ["cannot read", "a.conll.gz"]),
        ("a.conll.xz", b"no archive", ["cannot read", "a.conll.xz"]),
    ],
)
def test_predict_refuses_in_one_line(runs, tmp_path, name, content, texts):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(softq("predict", runs[0] / "bio", tmp_path / name), *texts)


def test_tabs_and_spaces_do_not_go_together(runs, tmp_path):
    for name, text in {"tabs": "Ann\tO\n", "spaces": "Ann O\n", "one": "Ann\n"}.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in ("tabs", "one", "spaces")]
    refused(
        softq("predict", runs[0] / "bio", *paths),
        "spaces and ",
        "tabs separate columns differently",
    )


def test_what_is_no_model(corpus, runs, tmp_path):
    file = corpus / "test.conll"
    (tmp_path / "sweep.toml").write_text("")
    (tmp_path / "empty").mkdir()
    for command in ("predict", "evaluate"):
        refused(softq(command, tmp_path / "nothing", file), "nothing is not a model of softq")
        refused(softq(command, file, file), "test.conll is not a model of softq")
        refused(
            softq(command, tmp_path, file),
            f"is a sweep of many models: name one of the run folders in {tmp_path / 'runs'}",
        )
        refused(
            softq(command, tmp_path / "empty", file),
            "holds no model: expected best.safetensors in it",
        )


def test_files_of_the_estimator(corpus, tmp_path):
    sentences = read_conll(corpus / "train.pos").sentences
    labels = [sentence.labels[0] for sentence in sentences]
    words = CRFTagger(**FAST, templates=["word[0]"], decoding="mbr").fit(
        [s.tokens for s in sentences], labels
    )
    words.save(tmp_path / "words")
    tests = read_conll(corpus / "test.conll").sentences
    found = predictions(tmp_path / "words", corpus / "test.conll")
    predicted = words.predict([sentence.tokens for sentence in tests])
    assert [row[-1] for row in columns_of(found) if row != [""]] == [
        label for labels in predicted for label in labels
    ]
    scores = SpanScores.of(
        span_statistics([sentence.labels[0] for sentence in tests], predicted, "bio")
    )
    assert evaluated(tmp_path / "words", corpus / "test.conll")["f1"] == scores.f1
    pairs = [list(zip(s.tokens, s.extra[0], strict=True)) for s in sentences]
    CRFTagger(**FAST, templates=["word[0]", "pos[0]"]).fit(pairs, labels).save(tmp_path / "pairs")
    assert (
        without_last(predictions(tmp_path / "pairs", corpus / "test.pos"))
        == (corpus / "test.pos").read_text()
    )
    features = CRFTagger(**FAST).fit(
        [[{"w": token} for token in s.tokens] for s in sentences], labels
    )
    features.save(tmp_path / "features")
    refused(
        softq("predict", tmp_path / "features", corpus / "test.conll"),
        "was trained on features that a program made",
    )
    speech = CRFTagger(**FAST, templates=["word[0]"]).fit(
        [s.tokens for s in sentences], [s.extra[0] for s in sentences]
    )
    speech.save(tmp_path / "speech")
    refused(
        softq("evaluate", tmp_path / "speech", corpus / "test.conll"),
        "test.conll: expected labels of the model's, such as IN, NN, VB, got ",
    )


# --- parts of files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000_000])
def test_parts_are_the_whole(corpus, size):
    data = (corpus / "test.pos").read_bytes()
    chunks = list(read_chunks(io.BytesIO(data), "a file", size=size))
    assert [line for chunk in chunks for line in chunk.lines] == data.decode().removesuffix(
        "\n"
    ).split("\n")
    found = [(block.line, tuple(block.columns)) for chunk in chunks for block in chunk.blocks]
    whole = read_conll(corpus / "test.pos").sentences
    assert found == [(s.line, (s.tokens, *s.extra, *s.labels)) for s in whole]
    assert len(chunks) == 1 if size == 1_000_000 else len(chunks) > 10
    text = "".join(" ".join(s.tokens) + "\n\n" for s in whole).encode()
    plain = list(read_plain_chunks(io.BytesIO(text), "a file", size=size))
    assert [block.columns[0] for chunk in plain for block in chunk.blocks] == [
        s.tokens for s in whole
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\n\nb\tO\n", "a file, line 3: expected no tab, as in the lines before, got one"),
        ("a\n\nb O\n", "a file, line 3: expected one column, as before, got several"),
        (
            "a O\n\nb O\nc O O\n",
            (
                "a file, line 4: expected 2 columns separated by spaces, as in the rest of the"
                " sentence, got 3"
            ),
        ),
        (
            "a O\n\n\ufeffb O\n",
            "a file, line 3: the line begins with a byte-order mark: were files joined?",
        ),
        (
            "a O\n\nb O\rb O\n",
            "a file, line 3: the line holds a carriage return that does not end it",
        ),
    ],
)
def test_faults_of_later_parts_have_their_line(text, message):
    with pytest.raises(DataError) as caught:
        list(read_chunks(io.BytesIO(text.encode()), "a file", size=1))
    assert str(caught.value) == message


# --- evaluate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bio", "bioes"])
def test_predicting_and_scoring_are_evaluating(corpus, runs, tmp_path, name, monkeypatch):
    monkeypatch.setattr(base, "AT_A_TIME", 7)
    model, file, labelled = runs[0] / name, corpus / "test.conll", tmp_path / "labelled.conll"
    predictions(model, file, "--out", labelled)
    direct = evaluated(model, file)
    again = evaluated("--predictions", labelled)
    assert (direct.pop("model"), direct.pop("file")) == (str(model), str(file))
    assert (again.pop("model"), again.pop("file")) == (None, str(labelled))
    assert direct == again
    sentences = read_conll(labelled).sentences
    gold, predicted = [s.extra[0] for s in sentences], [s.labels[0] for s in sentences]
    scores = SpanScores.of(span_statistics(gold, predicted, "bio"))
    assert 0.1 < direct["f1"] == scores.f1 < 1
    assert direct["kinds"]["PER"] == scores.kinds["PER"]._asdict()
    assert (direct["scheme"], direct["sentences"]) == ("bio", 80)
    shown = well(softq("evaluate", model, file))
    rows = {words[0]: words[1:] for line in shown.splitlines() if (words := line.split())}
    assert rows["all"][:3] == [
        f"{value:.4f}" for value in (scores.precision, scores.recall, scores.f1)
    ]
    assert rows["PER"] == [
        *(f"{value:.4f}" for value in scores.kinds["PER"][:3]),
        *map(str, scores.kinds["PER"][3:]),
    ]
    assert (
        f"token accuracy {scores.token_accuracy:.4f}, exact match {scores.exact_match:.4f}" in shown
    )


def test_a_file_in_another_scheme_has_the_same_scores(corpus, runs, tmp_path):
    expected = evaluated(runs[0] / "bio", corpus / "test.conll")
    for scheme in ("iob1", "bioes"):
        text = "".join(
            "".join(
                f"{token}\t{label}\n"
                for token, label in zip(s.tokens, convert(s.labels[0], "bio", scheme), strict=True)
            )
            + "\n"
            for s in read_conll(corpus / "test.conll").sentences
        )
        (tmp_path / scheme).write_text(text)
        found = evaluated(runs[0] / "bio", tmp_path / scheme)
        assert (found["scheme"], found["f1"], found["kinds"]) == (
            scheme,
            expected["f1"],
            expected["kinds"],
        )
    refused(
        softq("evaluate", runs[0] / "bio", tmp_path / "bioes", "--scheme", "bio"),
        "bioes, line ",
        "such as B-PER, got '",
        "(bio)",
    )


def test_one_model_against_another(corpus, runs):
    file = corpus / "test.conll"
    first, second = (evaluated(runs[0] / name, file) for name in ("bio", "bioes"))
    found = evaluated(runs[0] / "bio", file, "--against", runs[0] / "bioes")
    others = found.pop("against")
    assert found == first
    assert others.pop("model") == str(runs[0] / "bioes")
    assert others["kinds"] == second["kinds"]
    for name in ("f1", "precision", "recall", "token_accuracy", "exact_match"):
        row = others[name]
        assert row["score"] == pytest.approx(second[name])
        assert row["difference"]["value"] == pytest.approx(first[name] - second[name])
        assert row["difference"]["low"] < row["difference"]["value"] < row["difference"]["high"]
    back = evaluated(runs[0] / "bioes", file, "--against", runs[0] / "bio")["against"]["f1"][
        "difference"
    ]
    assert back["value"] == pytest.approx(-others["f1"]["difference"]["value"])
    assert back["low"] == pytest.approx(-others["f1"]["difference"]["high"])
    shown = well(softq("evaluate", runs[0] / "bio", file, "--against", runs[0] / "bioes"))
    gap = others["f1"]["difference"]
    assert (
        f"{gap['value']:+.4f}   [{gap['low']:+.4f}, {gap['high']:+.4f}]   {gap['p_value']:.3f}"
        in shown
    )
    same = evaluated(runs[0] / "bio", file, "--against", runs[0] / "bio")["against"]["f1"][
        "difference"
    ]
    assert same == {"value": 0.0, "low": 0.0, "high": 0.0, "p_value": 1.0}


def test_decoding_for_evaluation(corpus, runs, tmp_path):
    predictions(
        runs[0] / "bioes", corpus / "test.conll", "--decoding", "viterbi", "--out", tmp_path / "out"
    )
    found = evaluated(runs[0] / "bioes", corpus / "test.conll", "--decoding", "viterbi")
    assert found["token_accuracy"] == evaluated("--predictions", tmp_path / "out")["token_accuracy"]
    assert (
        found["token_accuracy"]
        != evaluated(runs[0] / "bioes", corpus / "test.conll")["token_accuracy"]
    )


@pytest.mark.parametrize(
    ("arguments", "text", "texts"),
    [
        ([], "", ["expected a model and a file, as in softq evaluate RUN FILE"]),
        (["RUN"], "", ["expected a model and a file"]),
        (
            ["RUN", "FILE", "--predictions", "FILE"],
            "a\tO\tO\n",
            ["--predictions FILE stands alone"],
        ),
        (
            ["--predictions", "FILE", "--decoding", "mbr"],
            "a\tO\tO\n",
            ["--decoding is for taggers and parsers", "file.conll holds predictions"],
        ),
        (
            ["--predictions", "FILE"],
            "a\tO\n",
            ["file.conll, line 1: expected a token, its true label and the predicted one"],
        ),
        (
            ["--predictions", "FILE"],
            "a\tB-X\tO\nb\tO\tNN\n",
            ["file.conll, line 2: expected a tag of bio such as B-PER or O", "got 'NN'"],
        ),
        (
            ["--predictions", "FILE"],
            "a\tB-X\tO\nb\tNN\tO\n",
            ["file.conll, line 2: expected a tag of bio such as B-PER or O", "got 'NN'"],
        ),
        (
            ["--predictions", "FILE"],
            "a\tNN\tNN\n",
            ["file.conll, line 1: expected a tag of bio such as B-PER or O", "got 'NN'"],
        ),
        (["RUN", "FILE"], "a\n", ["file.conll, line 1: expected 2 columns"]),
        (
            ["RUN", "FILE"],
            "# annotators = u\na\tO\n",
            ["file.conll, line 2: expected one true label for each token, got those of annotators"],
        ),
        (
            ["RUN", "FILE"],
            "a\tS-X\n\nb\tS-X\n\nc\tZ-X\n",
            ["file.conll, line 5: expected a tag of bioes such as B-PER or O", "got 'Z-X'"],
        ),
    ],
)
def test_evaluate_refuses_in_one_line(runs, tmp_path, arguments, text, texts):
    path = tmp_path / "file.conll"
    path.write_text(text)
    names = {"RUN": runs[0] / "bio", "FILE": path}
    refused(softq("evaluate", *(names.get(argument, argument) for argument in arguments)), *texts)


def test_labels_without_entities_have_the_scheme_of_the_model(runs, tmp_path):
    (tmp_path / "a").write_text("a\tO\n")
    assert evaluated(runs[0] / "bio", tmp_path / "a")["scheme"] == "bio"
    (tmp_path / "b").write_text("a\tO\tS-X\n")
    assert evaluated("--predictions", tmp_path / "b")["scheme"] == "bioes"
    (tmp_path / "c").write_text("a\tO\tO\n")
    assert evaluated("--predictions", tmp_path / "c")["exact_match"] == 1
