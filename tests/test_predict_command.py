"""Taggers on the command line: predict, evaluate, and what train, sweep and reproduce say of them."""

import gzip
import io
import json
import lzma
import math
import random
import warnings

import pytest
from typer.testing import CliRunner

from small_runs import single_thread, snapshot
from softq import cli
from softq.cli import evaluate_command, progress, report_command, shared
from softq.data.annotators import estimate
from softq.data.chunks import read_chunks, read_plain_chunks
from softq.data.conll import read_conll, to_conll
from softq.data.tags import convert
from softq.data.worlds import EntityWorld
from softq.errors import DataError
from softq.estimators import CRFTagger
from softq.evaluate import SpanScores, span_statistics
from softq.ranges import parse_seeds, parse_taus
from softq.recipe import read_toml
from softq.run import BEST, RunFolder
from softq.sweep import expand
from softq.tagging import ConvergenceWarning, Tagger
from softq.tasks import TASKS

QUICK = ["--templates", "word[0],word[-1],suffix[0]{2:2}", "--tolerance", "1e-2"]
POS = ("NN", "VB", "IN")
FAST = {"algorithm": "adagrad", "max_epochs": 2, "random_state": 0}


def softq(*arguments, stdin=None, terminal="dumb"):
    """A command in this process, on a wide plain terminal, so that nothing wraps or is coloured."""
    environment = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": terminal}
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin, env=environment)


def well(result):
    """The output of a command that went well in silence."""
    assert (result.exit_code, result.stderr) == (0, ""), (result.output, result.exception)
    return result.stdout


def told(result):
    return json.loads(well(result).splitlines()[-1])


def refused(result, *texts):
    """One line on stderr, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    for text in texts:
        assert text in result.stderr


def with_pos(sentences):
    """Columns of token, part of speech (made up from the word) and label."""
    rows = ([(token, POS[len(token) % 3], label) for token, label in zip(s.tokens, s.labels[0], strict=True)] for s in sentences)
    return "".join("".join("\t".join(row) + "\n" for row in sentence) + "\n" for sentence in rows)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Files of a made-up language: train, dev and test in BIO, and with parts of speech."""
    folder = tmp_path_factory.mktemp("corpus")
    world = EntityWorld(common=30, names=5, shared=2, double=2)
    for number, (name, count) in enumerate({"train": 150, "dev": 60, "test": 80}.items()):
        sentences = world.draw(count, seed=number)
        (folder / f"{name}.conll").write_text(to_conll(sentences), encoding="utf-8")
        (folder / f"{name}.pos").write_text(with_pos(sentences), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """Runs: plain, one trained in another scheme than that of its files, and one that knows parts of speech; and what training printed."""
    folder, printed = tmp_path_factory.mktemp("runs"), {}
    flags = {
        "bio": ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", "--c2", "0.5"],
        "bioes": ["--train", corpus / "train.conll", "--train-scheme", "bioes", "--folds", "2", "--c2", "2", "--decoding", "mbr"],
        "pos": ["--train", corpus / "train.pos", "--templates", "word[0],pos[0]", "--pos", "2"],
    }
    with single_thread():
        for name, more in flags.items():
            printed[name] = well(softq("train", "ner", *QUICK, *more, "--out", folder / name))
    return folder, printed


def columns_of(text):
    return [line.split("\t") for line in text.split("\n")]


def without_last(text, count=1):
    return "\n".join("\t".join(columns[:-count]) for columns in columns_of(text))


# --- predict ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "decoding"), [("bio", None), ("bio", "mbr"), ("bioes", None), ("bioes", "viterbi")])
def test_lines_come_back_with_the_labels_that_the_tagger_finds(corpus, runs, name, decoding):
    path, model = corpus / "test.conll", runs[0] / name
    found = well(softq("predict", model, path, *(["--decoding", decoding] if decoding else [])))
    assert without_last(found) == path.read_text()
    tagger, notes = Tagger.load(model / BEST)
    tokens = [sentence.tokens for sentence in read_conll(path).sentences]
    expected = tagger.decode(tagger.index.transform(tokens), decoding or notes["decoding"])
    assert {label[0] for labels in expected for label in labels} == set("OBI" if name == "bio" else "OBIES")
    if name == "bioes":
        expected = [convert(labels, "bioes", "bio") for labels in expected]
    assert [row[-1] for row in columns_of(found) if row != [""]] == [label for labels in expected for label in labels]
    assert found == well(softq("predict", model / BEST, path, "--decoding", decoding or notes["decoding"]))  # the file, and once more


def test_decodings_differ(corpus, runs):
    viterbi, mbr = (well(softq("predict", runs[0] / "bioes", corpus / "test.conll", "--decoding", name)) for name in ("viterbi", "mbr"))
    assert viterbi != mbr


def test_labels_need_not_be_there(corpus, runs):
    text = (corpus / "test.conll").read_text()
    expected = well(softq("predict", runs[0] / "bio", corpus / "test.conll"))
    tokens = without_last(text)
    found = well(softq("predict", runs[0] / "bio", "-", stdin=tokens))
    assert found == "\n".join("\t".join(row[:1] + row[2:]) for row in columns_of(expected))
    sentences = [" ".join(block.split("\n")) for block in tokens.split("\n\n") if block]
    assert well(softq("predict", runs[0] / "bio", "-", "--plain", stdin="\n".join(sentences) + "\n\n")) == found
    spaced = text.replace("\t", "  ")
    assert well(softq("predict", runs[0] / "bio", "-", stdin=spaced)).split() == expected.split()


def test_what_is_no_token_stays_as_it_is(runs, tmp_path):
    text = "\ufeff-DOCSTART- -X- O O\r\n\r\nAnn  NN \r\nran VB\r\n \r\n\r\n-DOCSTART-\r\nHi UH"
    found = well(softq("predict", runs[0] / "bio", "-", stdin=text.encode())).split("\n")
    assert [line.rsplit(" ", 1)[0] if line.startswith(("Ann", "ran", "Hi")) else line for line in found] == [
        *("-DOCSTART- -X- O O", "", "Ann  NN", "ran VB", "", "", "-DOCSTART-", "Hi UH", "", ""),
    ]
    crowd = "# annotators = u v\nAnn\tB-PER\tO\n\n# annotators = w\nHi\tO\n\n"
    found = well(softq("predict", runs[0] / "bio", "-", stdin=crowd))
    (tmp_path / "crowd.conll").write_text(found)
    first, second = read_conll(tmp_path / "crowd.conll").sentences
    assert (first.annotators, second.annotators) == (("u", "v", "softq"), ("w", "softq"))
    assert (first.labels[:2], second.labels[:1]) == ((("B-PER",), ("O",)), (("O",),))
    refused(softq("predict", runs[0] / "bio", "-", "--probabilities", stdin=crowd), "standard input, line 1: annotators have names here")


@pytest.mark.parametrize("name", ["bio", "bioes"])
def test_probabilities_are_those_of_the_labels(corpus, runs, name):
    path, model = corpus / "test.conll", runs[0] / name
    found = well(softq("predict", model, path, "--probabilities"))
    assert without_last(found) == well(softq("predict", model, path))
    tagger, notes = Tagger.load(model / BEST)
    matrix = tagger.index.transform([sentence.tokens for sentence in read_conll(path).sentences])
    expected = [
        f"{float(row[tagger.labels.index(label)]):.4f}"
        for table, labels in zip(tagger.marginals(matrix), tagger.decode(matrix, notes["decoding"]), strict=True)
        for row, label in zip(table, labels, strict=True)
    ]
    assert [row[-1] for row in columns_of(found) if row != [""]] == expected


def test_packed_files_several_files_and_a_file_for_the_result(corpus, runs, tmp_path):
    text, model = (corpus / "test.conll").read_bytes(), runs[0] / "bio"
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.conll.xz").write_bytes(lzma.compress(text.rstrip(b"\n")))
    expected = well(softq("predict", model, corpus / "test.conll"))
    both = ["predict", model, tmp_path / "a.conll.gz", tmp_path / "b.conll.xz"]
    assert well(softq(*both)) == 2 * expected
    for end, unpack in {"conll": bytes, "gz": gzip.decompress, "xz": lzma.decompress}.items():
        out = tmp_path / f"out.{end}"
        found = told(softq(*both, "--out", out, "--json"))
        assert unpack(out.read_bytes()).decode() == 2 * expected
        tokens = 2 * sum(len(sentence.tokens) for sentence in read_conll(corpus / "test.conll").sentences)
        assert (found["files"], found["sentences"], found["tokens"], found["out"]) == (2, 160, tokens, str(out))
        assert found["tokens_per_second"] == pytest.approx(tokens / found["seconds"])
        before = out.read_bytes()
        assert well(softq(*both, "--out", out)).startswith(f"{out}: 160 sentences, {tokens:,} tokens, ")
        assert out.read_bytes() == before
    *lines, last = well(softq(*both, "--json")).splitlines()
    assert ("\n".join(lines) + "\n", json.loads(last)["out"]) == (2 * expected, None)
    assert {path.name for path in tmp_path.iterdir()} == {"a.conll.gz", "b.conll.xz", "out.conll", "out.gz", "out.xz"}


def test_an_error_leaves_the_old_result(runs, tmp_path):
    out = tmp_path / "out.conll"
    out.write_text("old\n")
    refused(softq("predict", runs[0] / "bio", "-", "--out", out, stdin="Ann\tO\nran\n"), "standard input, line 2: expected 2 columns")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.conll", "old\n")]


def test_an_empty_input_has_an_empty_result(runs):
    assert well(softq("predict", runs[0] / "bio", "-", stdin="")) == ""


def test_parts_of_speech(corpus, runs):
    model = runs[0] / "pos"
    found = well(softq("predict", model, corpus / "test.pos"))
    assert without_last(found) == (corpus / "test.pos").read_text()
    unlabelled = without_last((corpus / "test.pos").read_text())
    assert [row[-1] for row in columns_of(well(softq("predict", model, "-", stdin=unlabelled)))] == [row[-1] for row in columns_of(found)]
    refused(
        softq("predict", model, "-", stdin="Ann\n"), "standard input, line 1: the model needs parts of speech in column 2", "got 1 columns"
    )
    refused(
        softq("predict", model, corpus / "test.conll"),
        "test.conll, line 1: the model needs parts of speech in column 2, got labels such as 'B-",
    )
    refused(softq("predict", model, "-", "--plain", stdin="Ann\n"), "needs parts of speech (column 2), and running text has none")
    refused(softq("evaluate", model, corpus / "test.conll"), "test.conll, line 1: expected parts of speech in column 2")


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.conll", None, ["cannot read", "a.conll", "No such file"]),
        ("a.conll", b"Ann\tO\n\nran\t\n", ["a.conll, line 3: column 2 is empty"]),
        ("a.conll", b"Ann O\n ran\n", ["a.conll, line 2: column 1 is empty"]),
        ("a.conll", b"Ann\n\nr\xffn\n", ["a.conll, line 3: expected UTF-8, got byte 0xff at offset 6 of the file"]),
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
    refused(softq("predict", runs[0] / "bio", *paths), "spaces and ", "tabs separate columns differently")


def test_what_is_no_model(corpus, runs, tmp_path):
    file = corpus / "test.conll"
    (tmp_path / "sweep.toml").write_text("")
    (tmp_path / "empty").mkdir()
    for command in ("predict", "evaluate"):
        refused(softq(command, tmp_path / "nothing", file), "nothing is not a model of softq")
        refused(softq(command, file, file), "test.conll is not a model of softq")
        refused(softq(command, tmp_path, file), f"is a sweep of many models: name one of the run folders in {tmp_path / 'runs'}")
        refused(softq(command, tmp_path / "empty", file), "holds no model: expected best.safetensors in it")


def test_files_of_the_estimator(corpus, tmp_path):
    sentences = read_conll(corpus / "train.pos").sentences
    labels = [sentence.labels[0] for sentence in sentences]
    words = CRFTagger(**FAST, templates=["word[0]"], decoding="mbr").fit([s.tokens for s in sentences], labels)
    words.save(tmp_path / "words")
    tests = read_conll(corpus / "test.conll").sentences
    found = well(softq("predict", tmp_path / "words", corpus / "test.conll"))
    predicted = words.predict([sentence.tokens for sentence in tests])
    assert [row[-1] for row in columns_of(found) if row != [""]] == [label for labels in predicted for label in labels]
    scores = SpanScores.of(span_statistics([sentence.labels[0] for sentence in tests], predicted, "bio"))
    assert told(softq("evaluate", tmp_path / "words", corpus / "test.conll", "--json"))["f1"] == scores.f1
    pairs = [list(zip(s.tokens, s.extra[0], strict=True)) for s in sentences]
    CRFTagger(**FAST, templates=["word[0]", "pos[0]"]).fit(pairs, labels).save(tmp_path / "pairs")
    assert without_last(well(softq("predict", tmp_path / "pairs", corpus / "test.pos"))) == (corpus / "test.pos").read_text()
    features = CRFTagger(**FAST).fit([[{"w": token} for token in s.tokens] for s in sentences], labels)
    features.save(tmp_path / "features")
    refused(softq("predict", tmp_path / "features", corpus / "test.conll"), "was trained on features that a program made")
    speech = CRFTagger(**FAST, templates=["word[0]"]).fit([s.tokens for s in sentences], [s.extra[0] for s in sentences])
    speech.save(tmp_path / "speech")
    refused(softq("evaluate", tmp_path / "speech", corpus / "test.conll"), "expected a model of entities", "got IN, NN, VB")


# --- parts of files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000_000])
def test_parts_are_the_whole(corpus, size):
    data = (corpus / "test.pos").read_bytes()
    chunks = list(read_chunks(io.BytesIO(data), "a file", size=size))
    assert [line for chunk in chunks for line in chunk.lines] == data.decode().removesuffix("\n").split("\n")
    found = [(block.line, tuple(block.columns)) for chunk in chunks for block in chunk.blocks]
    whole = read_conll(corpus / "test.pos").sentences
    assert found == [(s.line, (s.tokens, *s.extra, *s.labels)) for s in whole]
    assert len(chunks) == 1 if size == 1_000_000 else len(chunks) > 10
    text = "".join(" ".join(s.tokens) + "\n\n" for s in whole).encode()
    plain = list(read_plain_chunks(io.BytesIO(text), "a file", size=size))
    assert [block.columns[0] for chunk in plain for block in chunk.blocks] == [s.tokens for s in whole]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\n\nb\tO\n", "a file, line 3: expected no tab, as in the lines before, got one"),
        ("a\n\nb O\n", "a file, line 3: expected one column, as before, got several"),
        ("a O\n\nb O\nc O O\n", "a file, line 4: expected 2 columns separated by spaces, as in the rest of the sentence, got 3"),
        ("a O\n\n\ufeffb O\n", "a file, line 3: the line begins with a byte-order mark: were files joined?"),
        ("a O\n\nb O\rb O\n", "a file, line 3: the line holds a carriage return that does not end it"),
    ],
)
def test_faults_of_later_parts_have_their_line(text, message):
    with pytest.raises(DataError) as caught:
        list(read_chunks(io.BytesIO(text.encode()), "a file", size=1))
    assert str(caught.value) == message


# --- evaluate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bio", "bioes"])
def test_predicting_and_scoring_are_evaluating(corpus, runs, tmp_path, name, monkeypatch):
    monkeypatch.setattr(evaluate_command, "_AT_A_TIME", 7)
    model, file, labelled = runs[0] / name, corpus / "test.conll", tmp_path / "labelled.conll"
    well(softq("predict", model, file, "--out", labelled))
    direct = told(softq("evaluate", model, file, "--json"))
    again = told(softq("evaluate", "--predictions", labelled, "--json"))
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
    assert rows["all"][:3] == [f"{value:.4f}" for value in (scores.precision, scores.recall, scores.f1)]
    assert rows["PER"] == [*(f"{value:.4f}" for value in scores.kinds["PER"][:3]), *map(str, scores.kinds["PER"][3:])]
    assert f"token accuracy {scores.token_accuracy:.4f}, exact match {scores.exact_match:.4f}" in shown


def test_a_file_in_another_scheme_has_the_same_scores(corpus, runs, tmp_path):
    expected = told(softq("evaluate", runs[0] / "bio", corpus / "test.conll", "--json"))
    for scheme in ("iob1", "bioes"):
        text = "".join(
            "".join(f"{token}\t{label}\n" for token, label in zip(s.tokens, convert(s.labels[0], "bio", scheme), strict=True)) + "\n"
            for s in read_conll(corpus / "test.conll").sentences
        )
        (tmp_path / scheme).write_text(text)
        found = told(softq("evaluate", runs[0] / "bio", tmp_path / scheme, "--json"))
        assert (found["scheme"], found["f1"], found["kinds"]) == (scheme, expected["f1"], expected["kinds"])
    refused(
        softq("evaluate", runs[0] / "bio", tmp_path / "bioes", "--scheme", "bio"),
        "bioes, line ",
        "such as B-PER, got '",
        "(bio)",
    )


def test_one_model_against_another(corpus, runs):
    file = corpus / "test.conll"
    first, second = (told(softq("evaluate", runs[0] / name, file, "--json")) for name in ("bio", "bioes"))
    found = told(softq("evaluate", runs[0] / "bio", file, "--against", runs[0] / "bioes", "--json"))
    others = found.pop("against")
    assert found == first
    assert others.pop("model") == str(runs[0] / "bioes")
    assert set(others) == {"f1", "precision", "recall", "token_accuracy", "exact_match"}
    for name, row in others.items():
        assert row["score"] == pytest.approx(second[name])
        assert row["difference"]["value"] == pytest.approx(first[name] - second[name])
        assert row["difference"]["low"] < row["difference"]["value"] < row["difference"]["high"]
    back = told(softq("evaluate", runs[0] / "bioes", file, "--against", runs[0] / "bio", "--json"))["against"]["f1"]["difference"]
    assert back["value"] == pytest.approx(-others["f1"]["difference"]["value"])
    assert back["low"] == pytest.approx(-others["f1"]["difference"]["high"])
    shown = well(softq("evaluate", runs[0] / "bio", file, "--against", runs[0] / "bioes"))
    gap = others["f1"]["difference"]
    assert f"{gap['value']:+.4f}   [{gap['low']:+.4f}, {gap['high']:+.4f}]" in shown
    same = told(softq("evaluate", runs[0] / "bio", file, "--against", runs[0] / "bio", "--json"))["against"]["f1"]["difference"]
    assert same == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_decoding_for_evaluation(corpus, runs, tmp_path):
    well(softq("predict", runs[0] / "bioes", corpus / "test.conll", "--decoding", "viterbi", "--out", tmp_path / "out"))
    found = told(softq("evaluate", runs[0] / "bioes", corpus / "test.conll", "--decoding", "viterbi", "--json"))
    assert found["token_accuracy"] == told(softq("evaluate", "--predictions", tmp_path / "out", "--json"))["token_accuracy"]
    assert found["token_accuracy"] != told(softq("evaluate", runs[0] / "bioes", corpus / "test.conll", "--json"))["token_accuracy"]


@pytest.mark.parametrize(
    ("arguments", "text", "texts"),
    [
        ([], "", ["expected a model and a file, as in softq evaluate RUN FILE"]),
        (["RUN"], "", ["expected a model and a file"]),
        (["RUN", "FILE", "--predictions", "FILE"], "a\tO\tO\n", ["--predictions FILE stands alone"]),
        (["--predictions", "FILE", "--decoding", "mbr"], "a\tO\tO\n", ["--predictions FILE stands alone"]),
        (["--predictions", "FILE"], "a\tO\n", ["file.conll, line 1: expected a token, its true label and the predicted one"]),
        (["--predictions", "FILE"], "a\tB-X\tO\nb\tO\tNN\n", ["file.conll, line 2: expected a tag of bio such as B-PER or O", "got 'NN'"]),
        (["--predictions", "FILE"], "a\tB-X\tO\nb\tNN\tO\n", ["file.conll, line 2: expected a tag of bio such as B-PER or O", "got 'NN'"]),
        (["--predictions", "FILE"], "a\tNN\tNN\n", ["file.conll, line 1: expected a tag of bio such as B-PER or O", "got 'NN'"]),
        (["RUN", "FILE"], "a\n", ["file.conll, line 1: expected 2 columns"]),
        (["RUN", "FILE"], "# annotators = u\na\tO\n", ["file.conll, line 1: expected a column of true labels, got those of annotators"]),
        (["RUN", "FILE"], "a\tS-X\n\nb\tS-X\n\nc\tZ-X\n", ["file.conll, line 5: expected a tag of bioes such as B-PER or O", "got 'Z-X'"]),
    ],
)
def test_evaluate_refuses_in_one_line(runs, tmp_path, arguments, text, texts):
    path = tmp_path / "file.conll"
    path.write_text(text)
    names = {"RUN": runs[0] / "bio", "FILE": path}
    refused(softq("evaluate", *(names.get(argument, argument) for argument in arguments)), *texts)


def test_labels_without_entities_have_the_scheme_of_the_model(runs, tmp_path):
    (tmp_path / "a").write_text("a\tO\n")
    assert told(softq("evaluate", runs[0] / "bio", tmp_path / "a", "--json"))["scheme"] == "bio"
    (tmp_path / "b").write_text("a\tO\tS-X\n")
    assert told(softq("evaluate", "--predictions", tmp_path / "b", "--json"))["scheme"] == "bioes"
    (tmp_path / "c").write_text("a\tO\tO\n")
    assert told(softq("evaluate", "--predictions", tmp_path / "c", "--json"))["exact_match"] == 1


# --- train, sweep, reproduce --------------------------------------------------------------------------


def test_training_says_what_its_numbers_are_of(runs):
    folder, printed = runs
    expected = {
        "bio": ("dev.conll", "dev.conll again"),
        "bioes": ("2 folds of train.conll", "2 folds of train.conll again"),
        "pos": ("train.pos itself, which it was trained on", "train.pos itself, which it was trained on"),
    }
    for name, parts in expected.items():
        (cell,) = RunFolder(folder / name).result()["cells"]
        scores = (
            f"{part} F1 {cell[f'{part}_f1']:.4f}, token accuracy {cell[f'{part}_token_accuracy']:.4f}, "
            f"exact match {cell[f'{part}_exact_match']:.4f} ({of})"
            for part, of in zip(("dev", "test"), parts, strict=True)
        )
        assert printed[name].splitlines()[0] == f"ml, seed 0: {'; '.join(scores)}"


def test_training_by_halves_and_on_the_built_in_world(corpus, tmp_path):
    flags = ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", "--halve-dev", "--out", tmp_path / "a"]
    first = well(softq("train", "ner", *QUICK, *flags)).splitlines()[0]
    assert "(every other sentence of dev.conll); test " in first
    assert first.endswith("(the other sentences of dev.conll)")
    flags = ["--sentences", "20", "--dev-sentences", "9", "--out", tmp_path / "b"]
    assert well(softq("train", "ner", *QUICK, *flags)).splitlines()[0].count("(built-in world)") == 2


@pytest.fixture(scope="module")
def crowd(corpus):
    """Training data that eleven people labelled, three a sentence: the higher their number, the more entities they miss."""
    path, chances = corpus / "crowd.conll", random.Random(0)  # noqa: S311
    blocks = []
    for number, sentence in enumerate(read_conll(corpus / "train.conll").sentences):
        people = sorted({number % 11, (number + 4) % 11, (number + 7) % 11})
        blocks.append("# annotators = " + " ".join(f"p{person:02}" for person in people))
        for token, label in zip(sentence.tokens, sentence.labels[0], strict=True):
            blocks.append("\t".join([token, *("O" if chances.random() < 0.07 * person else label for person in people)]))
        blocks.append("")
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("flags", [["--weights", "dawid-skene"], ["--weights", "one-coin"], ["--references", "dawid-skene"]])
def test_training_says_whom_it_trusts(corpus, crowd, tmp_path, flags):
    arguments = ["train", "ner", *QUICK, "--train", crowd, "--dev", corpus / "dev.conll", *flags, "--out", tmp_path / "run"]
    shown = well(softq(*arguments))
    found = told(softq(*arguments, "--resume", "--json"))
    assert {name: value for name, value in found.items() if name not in ("annotators", "run")} == RunFolder(tmp_path / "run").result()
    expected = estimate(read_conll(crowd).sentences, flags[1]).annotators
    assert found["annotators"] == [row._asdict() for row in expected]
    score, *table, reward, run = shown.splitlines()
    assert (score[:3], reward, run) == ("ml,", "reward: token-accuracy", f"run: {tmp_path / 'run'}")
    assert f"annotators: best and worst 5 of 11, estimated by {flags[1]}" in shown
    rows = sorted(expected, key=lambda row: row.weight, reverse=True)
    assert [line.split() for line in table if line.strip().startswith("p")] == [
        [name, f"{tokens:,}", *(f"{share:.4f}" for share in shares)] for name, tokens, *shares in rows[:5] + rows[-5:]
    ]


def test_few_annotators_are_shown_all(corpus, tmp_path):
    flags = ["--weights", "dawid-skene", "--out", tmp_path / "run"]
    blocks = [f"# annotators = [b]a b\n{token}\tB-PER\tB-PER\nran\tO\tO\n" for token in ("Ann", "Bob")]
    (tmp_path / "two.conll").write_text("\n".join(blocks) + "\n")
    shown = well(softq("train", "ner", *QUICK, "--train", tmp_path / "two.conll", *flags))
    assert "annotators: 2, estimated by dawid-skene" in shown
    assert {"[b]a", "b"} <= {line.split()[0] for line in shown.splitlines() if line.split()}
    (tmp_path / "two.conll").unlink()
    result = softq("train", "--resume", "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("softq: the annotators are estimated from the training data: cannot read ")
    assert result.stdout.splitlines()[0] == shown.splitlines()[0]
    plain = ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", "--out", tmp_path / "plain", "--json"]
    assert "annotators" not in told(softq("train", "ner", *QUICK, *plain))


def test_a_sweep_says_what_its_numbers_are_of(corpus, tmp_path):
    files = ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", *QUICK, "--objective", "raml", "--tau", "0.2"]
    test = ["--test", corpus / "test.conll"]
    shown = well(softq("sweep", "ner", *files, *test, "--over", "entity-weight=2", "--out", tmp_path / "a")).splitlines()
    assert shown[-3:-1] == ["dev: dev.conll; test: test.conll", "reward: token-reward:entity-weight=2"]
    shown = well(softq("sweep", "ner", *files, "--over", "halve-dev=true", "--out", tmp_path / "b")).splitlines()
    assert shown[-3] == "dev: every other sentence of dev.conll; test: the other sentences of dev.conll"


def test_a_search_that_does_not_converge_is_one_line(corpus, tmp_path):
    flags = ["--train", corpus / "train.conll", "--dev", corpus / "dev.conll", *QUICK, "--iterations", "2"]
    result = softq("train", "ner", *flags, "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert result.stderr.startswith("softq: training stopped after 2 iterations, before it converged: ")
    assert result.stderr.count("\n") == 1
    result = softq("sweep", "ner", *flags, "--objective", "ml", "--over", "c2=1,2", "--out", tmp_path / "sweep", "--json")
    assert (result.exit_code, result.stderr.count("softq: training stopped after 2 iterations"), result.stderr.count("\n")) == (0, 2, 2)


def test_other_warnings_are_python_s():
    with pytest.warns(UserWarning, match="of another kind"), shared.one_line_errors():
        warnings.warn("of another kind", UserWarning, stacklevel=1)
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *place: shown.append(str(message))
        with shared.one_line_errors():
            warnings.warn("of another kind", UserWarning, stacklevel=1)
            warnings.warn("no line of Python's", ConvergenceWarning, stacklevel=1)
    assert shown == ["of another kind"]


def test_bars_take_turns_and_have_their_unit(corpus, runs, monkeypatch):
    real = progress.Console
    monkeypatch.setattr(progress, "Console", lambda **options: real(**options, force_terminal=True, width=200))
    result = softq("predict", runs[0] / "bio", corpus / "test.conll", "--json", terminal="xterm")
    assert "test.conll" in result.stderr
    assert " tokens" in result.stderr
    with progress.progress_bars() as watch:
        first, second, unknown = watch("first", unit="models"), watch("second"), watch("third", unit="bytes")
        bars = first._progress
        rate = progress._Rate()
        for watcher, total, unit in (first, 8, "models"), (second, 100, "examples"), (unknown, 0, "bytes"):
            watcher.begin(total, 0)
            (bar,) = bars.tasks  # the one before is gone
            assert (bar.total, bar.fields["unit"], rate.render(bar).plain) == (total or None, unit, "")
            bar.start_time, bar.stop_time = 0.0, None
            monkeypatch.setattr(type(bar), "speed", property(lambda self: 45_600.0))
            assert rate.render(bar).plain == ("" if unit == "models" else f"45.6k {unit}/s")
            watcher.advance(8, "3 of 8")
            monkeypatch.undo()
            monkeypatch.setattr(progress, "Console", lambda **options: real(**options, force_terminal=True, width=200))


def models_asked_for(path):
    """How many models the grids of a recipe have, if none is of two grids."""
    count = 0
    for grid in read_toml(path)["sweep"]:
        values = [len(entry.partition("=")[2].split(",")) for entry in grid.get("over", [])]
        targets = sum(1 if name == "ml" else len(parse_taus(grid["tau"])) for name in grid["objective"])
        count += targets * math.prod(values) * len(parse_seeds(grid.get("seed", "0")))
    return count


def test_recipes_of_ner():
    sizes = {}
    for path in sorted(shared.RECIPES.glob("ner-*.toml")):
        wanted = shared.find_recipe(str(path), [], sweep=True)
        sizes[path.stem] = len(expand(wanted.task, wanted.recipe, wanted.grids))
        assert sizes[path.stem] == models_asked_for(path)
    assert sizes["ner-paper"] == 2 * 3 * (1 + 9)
    assert set(sizes) == {"ner-crowd", "ner-paper", "ner-small"}


def test_reproduce_ner(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    reported = []
    monkeypatch.setattr(report_command, "write_report", lambda sections, page, title: reported.append(page))
    monkeypatch.setattr(report_command, "read_sections", lambda sources: sources)
    asked = []
    real = report_command.run_sweep

    def run_sweep(*arguments, jobs, **options):
        asked.append(jobs)
        return real(*arguments, jobs=1, **options)

    monkeypatch.setattr(report_command, "run_sweep", run_sweep)
    arguments = ["reproduce", "ner", "--sentences", "40", "--dev-sentences", "20", "--jobs", "3", "--out", tmp_path]
    count = models_asked_for(shared.RECIPES / "ner-small.toml")
    with single_thread():
        (experiment,) = told(softq(*arguments, "--json"))["experiments"]
    assert (experiment["task"], experiment["cells"], asked, reported) == ("ner", count, [3], [tmp_path / "report.html"])
    before = snapshot(tmp_path / "ner" / "runs")
    monkeypatch.setattr(type(TASKS["ner"]), "learner", None)
    assert "gain over ML" in well(softq(*arguments))
    assert snapshot(tmp_path / "ner" / "runs") == before


def test_reproduce_all_and_what_it_refuses(tmp_path, monkeypatch, corpus):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(report_command, "run_sweep", lambda task, *_, **__: started.append(task.name))
    monkeypatch.setattr(report_command, "read_sections", lambda sources: [source.command for source in sources])
    monkeypatch.setattr(report_command, "write_report", lambda sections, page, title: started.append(sections))
    monkeypatch.setattr(report_command, "sweep_json", lambda sweep, folder: str(folder))
    assert told(softq("reproduce", "--json"))["experiments"] == [f"reproduction/small/{name}" for name in TASKS]
    assert started == [*TASKS, [f"softq reproduce {name} --scale small" for name in TASKS]]
    started.clear()
    wanted = ["ner at the paper's scale is trained on CoNLL-2003", "--train eng.train --test eng.testb"]
    refused(softq("reproduce", "ner", "--scale", "paper"), "there is no file eng.train", *wanted)
    refused(softq("reproduce", "--scale", "paper"), *wanted)
    refused(softq("reproduce", "ner", "--scale", "paper", "--train", corpus / "train.conll"), "there is no file eng.testb", *wanted)
    refused(softq("reproduce", "--inputs", "30"), "ner: there is no flag --inputs", "softq reproduce TASK --inputs 30")
    refused(softq("reproduce", "ner", "--data", "folder"), "there is no flag --data")
    assert started == []
    named = ["--train", corpus / "train.conll", "--test", corpus / "test.conll"]
    told(softq("reproduce", "ner", "--scale", "paper", *named, "--json"))
    assert started[0] == "ner"


def test_a_sweep_needs_something_to_choose_by(tmp_path):
    train = tmp_path / "train.conll"
    train.write_text("Ann B-PER\nran O\n")
    for more in ([], ["--folds", "2"]):
        refused(
            softq("sweep", "ner", "--train", train, *more, "--out", tmp_path / "sweep"), "add --dev FILE, or --folds 5 with --test FILE"
        )
    assert not (tmp_path / "sweep").exists()


def test_a_wrong_scheme_is_not_scored(runs, tmp_path):
    path = tmp_path / "true.conll"
    path.write_text("Ann\tB-PER\nran\tO\n")
    result = softq("evaluate", runs[0] / "bio", path, "--scheme", "bioes")
    assert result.exit_code == 2
    assert "true.conll, line 2: expected I-PER or E-PER after B-PER, got O (bioes)" in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_of_bad_files_leaves_nothing_behind(tmp_path, jobs):
    train = tmp_path / "train.conll"
    train.write_text("Ann B-PER\nran\n")
    result = softq("sweep", "ner", "--train", train, "--dev", train, "--jobs", jobs, "--out", tmp_path / "sweep")
    refused(result, "train.conll, line 2: expected 2 columns")
    assert not (tmp_path / "sweep").exists()
