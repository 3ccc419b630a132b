"""Translators on the command line: predict and evaluate.

And what `softq data` says of sentences with translations.
"""

import gzip
import io
import json
import lzma
import os
import shlex
import subprocess
import sys
import threading

import pytest
import torch

from ner_commands import FAST, evaluated, predictions, refused, softq, told, well
from softq import neural
from softq.cli.kinds import sentences
from softq.cli.kinds.sentences import line_generator, read_as_they_come
from softq.cli.kinds.sentences import recognise as is_bitext
from softq.errors import DataError
from softq.formats.bitext import read_bitext
from softq.lab.run import BEST
from softq.linear import CRFTagger
from softq.metrics import TRANSLATION_METRICS, paired_test, sacre_bleu, translation_statistics
from softq.neural.text_generator import TextGenerator
from softq.rewards import NegativeEditDistance
from translation_runs import make_files, parts, run, write, write_side_by_side

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("runs")
    flags = [*parts(files, "train", "dev"), "--epochs", 5]
    run(folder / "ml", *flags)
    run(folder / "raml", *flags, "--objective", "raml", "--tau", 0.5, "--seed", 1)
    return folder


@pytest.fixture(scope="module")
def sources(files):
    return read_bitext(files["test"]).sources


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


# --- predict ----------------------------------------------------------------------------------------------


def test_lines_come_back_as_translations(runs, sources):
    translator = TextGenerator.load(runs / "ml" / BEST)
    expected = lines(one.text for one in translator.generate(sources))
    assert len(set(expected.split("\n"))) > 2
    for arguments in (["-"], []):
        assert predictions(runs / "ml", *arguments, stdin=lines(sources)) == expected
    assert predictions(runs / "ml" / BEST, stdin=lines(sources).rstrip("\n")) == expected


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--beam", 4], {"beam": 4}),
        (["--method", "greedy"], {"method": "greedy"}),
        (["--beam", 4, "--length-penalty", 0], {"beam": 4, "length_penalty": 0.0}),
    ],
)
def test_methods(runs, sources, flags, options):
    expected = list(TextGenerator.load(runs / "ml" / BEST).generate(sources, **options))
    assert predictions(runs / "ml", *flags, stdin=lines(sources)) == lines(
        one.text for one in expected
    )


@pytest.mark.parametrize(
    ("flags", "seed", "options"),
    [
        (["--method", "sample", "--seed", 7], 7, {"method": "sample"}),
        (["--method", "sample", "--seed", -1], -1, {"method": "sample"}),
        (
            ["--method", "sample", "--temperature", 0.5, "--top-p", 0.8],
            0,
            {"method": "sample", "temperature": 0.5, "top_p": 0.8},
        ),
        (["--method", "mbr", "--samples", 6], 0, {"method": "mbr", "samples": 6}),
        (
            ["--method", "mbr", "--samples", 6, "--reward", "edit"],
            0,
            {"method": "mbr", "samples": 6, "reward": NegativeEditDistance()},
        ),
    ],
)
def test_draws_follow_from_the_seed_and_the_line(
    runs, sources, tmp_path, monkeypatch, flags, seed, options
):
    monkeypatch.setattr(neural.generation, "_BATCH", 4)  # so that there are several
    translator = TextGenerator.load(runs / "ml" / BEST)
    texts = [*sources[:3], "", *sources[3:]]
    one_by_one = [
        translator.generate([text], generator=line_generator(seed, number), **options)[0]
        for number, text in enumerate(texts, start=1)
    ]
    expected = lines(one.text for one in one_by_one)
    command = ["predict", runs / "ml", *flags]
    assert well(softq(*command, stdin=lines(texts))) == expected
    for cut in (1, 5):  # a file of several parts
        (tmp_path / "a").write_text(lines(texts[:cut]))
        (tmp_path / "b.gz").write_bytes(gzip.compress(lines(texts[cut:]).encode()))
        assert well(softq(*command, tmp_path / "a", tmp_path / "b.gz")) == expected
    monkeypatch.setattr(sentences, "_BLOCK", 20)  # bytes, so that lines come one by one
    assert well(softq(*command, stdin=lines(texts))) == expected


def test_sources_that_are_alike_are_not_drawn_for_alike(runs, sources):
    found = predictions(
        runs / "ml", "--method", "sample", stdin=lines(sources[:1] * 20)
    ).splitlines()
    assert len(set(found)) > 5


def test_there_are_as_many_lines_as_came(tmp_path, files, sources):
    run(
        tmp_path / "subwords",
        *parts(files, "train", "dev"),
        *shlex.split("--vocabulary.kind subwords --vocabulary.size 280 --epochs 1"),
    )
    texts = sources * 3  # nearly untrained: any bytes are drawn
    found = predictions(
        tmp_path / "subwords", "--method", "sample", "--temperature", 3, stdin=lines(texts)
    )
    assert found.endswith("\n")
    assert len(found.removesuffix("\n").split("\n")) == len(found.splitlines()) == len(texts)
    assert "\t" not in found


def test_log_probabilities(runs, sources):
    found = predictions(runs / "ml", "--probabilities", stdin=lines(sources)).splitlines()
    for line, one in zip(
        found, TextGenerator.load(runs / "ml" / BEST).generate(sources), strict=True
    ):
        assert line == f"{one.text}\t{one.log_prob:.4f}"


def test_packed_files_empty_lines_and_a_file_for_the_result(runs, sources, tmp_path):
    text = "\ufeff" + "\r\n".join([sources[0], "", sources[1], "  "]) + "\r\n"
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.xz").write_bytes(lzma.compress(lines(sources[2:]).encode()))
    expected = [one.text for one in TextGenerator.load(runs / "ml" / BEST).generate(sources)]
    expected = lines([expected[0], "", expected[1], "", *expected[2:]])
    both = ["predict", runs / "ml", tmp_path / "a.gz", tmp_path / "b.xz"]
    assert well(softq(*both)) == expected
    facts = told(softq(*both, "--out", tmp_path / "out.gz", "--json"))
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()).decode() == expected
    assert (facts["files"], facts["sentences"], facts["tokens"], facts["decoding"]) == (
        2,
        12,
        len(expected.split()),
        "beam of 2",
    )


def test_what_is_not_text_leaves_nothing_behind(runs, sources, tmp_path):
    (tmp_path / "bad").write_bytes(lines(sources).encode() + b"a \xff b\n")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"hello")[:-4])
    number = len(sources) + 1
    refused(
        softq("predict", runs / "ml", tmp_path / "bad", "--out", tmp_path / "out"),
        f"bad, line {number}: expected UTF-8, got byte 0xff at offset",
    )
    refused(
        softq("predict", runs / "ml", tmp_path / "bad.gz", "--out", tmp_path / "out"),
        "cannot read",
        "bad.gz",
    )
    refused(
        softq("predict", runs / "ml", tmp_path / "none", "--out", tmp_path / "out"),
        "cannot read",
        "none",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "bad.gz"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--beam 3 --method greedy", "--beam is for --method beam, got --method greedy"),
        ("--samples 3", "--samples is for --method mbr, got --method beam"),
        ("--seed 3", "--seed is for --method sample or mbr"),
        ("--top-p 0.5", "--top-p is for --method sample or mbr, got --method beam"),
        ("--temperature 2 --method greedy", "--temperature is for --method sample or mbr"),
        ("--length-penalty 1 --method mbr", "--length-penalty is for --method beam"),
        ("--method sample --temperature 0", "--temperature must be a positive number, got 0.0"),
        ("--method sample --temperature nan", "--temperature must be a positive number, got nan"),
        ("--method sample --top-p 0", "--top-p must be more than 0 and at most 1, got 0.0"),
        ("--method sample --top-p 1.5", "--top-p must be more than 0 and at most 1, got 1.5"),
        ("--length-penalty -1", "--length-penalty must be a number from 0, got -1.0"),
        ("--plain", "--plain is for taggers and parsers"),
        ("--decoding mbr", "is a translator"),
    ],
)
def test_what_does_not_go_together(runs, options, text):
    refused(softq("predict", runs / "ml", *options.split(), stdin="a"), text)


def test_other_models_take_no_search(files, tmp_path):
    CRFTagger(**FAST).fit([["a"]], [["O"]]).save(tmp_path / "tagger")
    for flag in ("--beam", "--temperature", "--top-p", "--length-penalty"):
        refused(
            softq("predict", tmp_path / "tagger", flag, 1, stdin="a"), f"{flag} is for translators"
        )
    evaluated = ["evaluate", tmp_path / "tagger", files["test"]]
    refused(softq(*evaluated, "--method", "greedy"), "--method is for translators")
    refused(softq(*evaluated, files["test"]), "is scored on one file, got 2")


def test_lines_are_read_as_they_come():
    reading, writing = os.pipe()
    with open(reading, "rb") as file, open(writing, "wb", buffering=0) as pipe:
        found = read_as_they_come(file, "pipe")
        for sent, expected in [(b"a\n", ["a"]), (b"b\nc", ["b"]), (b"d\n\n", ["cd", ""])]:
            pipe.write(sent)
            assert next(found) == expected
        pipe.write("schön".encode()[:4])
        pipe.close()
        with pytest.raises(
            DataError, match="pipe, line 5: expected UTF-8, got byte 0xc3 at offset 11 of the file"
        ):
            next(found)
    assert list(read_as_they_come(io.BufferedReader(io.BytesIO(b"")), "nothing")) == []


def test_a_pipe_is_answered_line_by_line(runs, sources):
    command = [sys.executable, "-m", "softq", "predict", str(runs / "ml"), "--method", "greedy"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=buffered
    ) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        for source, one in zip(
            sources[:2],
            TextGenerator.load(runs / "ml" / BEST).generate(sources[:2], method="greedy"),
            strict=True,
        ):
            process.stdin.write(f"{source}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{one.text}\n"
        process.stdin.close()
        assert process.wait() == 0
        timer.cancel()


# --- evaluate ---------------------------------------------------------------------------------------------


def scores(translator, text, **options):
    found = list(translator.generate(text.sources, **options))
    references = [
        [translator.vocabulary.plain(reference) for reference in several]
        for several in text.references
    ]
    return found, translation_statistics([one.words for one in found], references)


def test_scores_of_a_model(runs, files, tmp_path):
    text = read_bitext(files["test"])
    found, rows = scores(TextGenerator.load(runs / "raml" / BEST), text)
    facts = evaluated(runs / "raml", files["test"])
    for name, metric in TRANSLATION_METRICS.items():
        assert facts[name] == pytest.approx(float(metric(rows.sum(0))))
    sacre = sacre_bleu([one.text for one in found], text.references)
    assert facts["sacrebleu"] == {"score": pytest.approx(sacre.score), "signature": sacre.signature}
    assert (facts["sentences"], facts["references"], facts["decoding"]) == (10, 20, "beam of 2")
    assert facts["perplexity"] > 1
    source, *references = write_side_by_side(tmp_path, "test", text)
    beside = evaluated(runs / "raml", source, *references)
    assert {name: value for name, value in beside.items() if name != "files"} == {
        n: v for n, v in facts.items() if n != "files"
    }
    shown = well(softq("evaluate", runs / "raml", files["test"]))
    assert f"sentence BLEU   {facts['sentence_bleu']:.4f}" in " ".join(shown.split()).replace(
        "sentence BLEU ", "sentence BLEU   "
    )
    assert sacre.signature in shown
    greedy = evaluated(runs / "raml", files["test"], "--method", "greedy")
    _, rows = scores(TextGenerator.load(runs / "raml" / BEST), text, method="greedy")
    assert greedy["sentence_bleu"] == pytest.approx(
        float(TRANSLATION_METRICS["sentence_bleu"](rows.sum(0)))
    )


def test_without_sacrebleu(runs, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    assert evaluated(runs / "ml", files["test"])["sacrebleu"] is None
    assert "sacreBLEU is not installed: pip install 'softq[translation]'" in well(
        softq("evaluate", runs / "ml", files["test"])
    )


def test_two_models(runs, files):
    text = read_bitext(files["test"])
    (_, ours), (_, theirs) = (
        scores(TextGenerator.load(runs / name / BEST), text) for name in ("raml", "ml")
    )
    facts = evaluated(runs / "raml", files["test"], "--against", runs / "ml")["against"]
    for name, metric in TRANSLATION_METRICS.items():
        (test,) = paired_test(
            ours[None, None], theirs[None], metric, generator=torch.Generator().manual_seed(0)
        )
        assert facts[name]["score"] == pytest.approx(float(metric(theirs.sum(0))))
        assert facts[name]["difference"] == pytest.approx(
            test.gain._asdict() | {"p_value": test.p_value}
        )
    shown = well(softq("evaluate", runs / "raml", files["test"], "--against", runs / "ml"))
    assert "95 % interval" in shown
    assert shown.count("sacreBLEU (0 to 100)") == 2  # in a table, and of the other model


def test_models_that_count_words_differently(runs, files, tmp_path):
    run(tmp_path / "lower", *parts(files, "train"), "--lowercase", "--epochs", 1)
    words = write(tmp_path / "a.tsv", ["a"], [["Hello there"]])
    refused(
        softq("evaluate", runs / "ml", words, "--against", tmp_path / "lower"),
        "a.tsv, line 1: ",
        "count words differently",
        "--predictions",
    )


def test_scores_of_text(files, tmp_path):
    hypotheses, other = (
        ["The cat sat there.", "", "<unk> rain!"],
        ["A cat sat there.", "No.", "<unk> rain!"],
    )
    (tmp_path / "hyp").write_text(lines(hypotheses))
    (tmp_path / "other").write_text(lines(other))
    (tmp_path / "ref").write_text(
        lines(["The cat sat there.\tA cat sat here.", "No.", "<unk> rain!"])
    )
    (tmp_path / "more").write_text(lines(["The cat is there.", "Never.", "It rains!"]))
    words = [["The", "cat", "sat", "there", "."], [], ["<unk>", "rain", "!"]]
    references = [
        [
            ["The", "cat", "sat", "there", "."],
            ["A", "cat", "sat", "here", "."],
            ["The", "cat", "is", "there", "."],
        ],
        [["No", "."], ["Never", "."]],
        [["<", "unk", ">", "rain", "!"], ["It", "rains", "!"]],
    ]
    rows = translation_statistics(words, references)
    scored = ["evaluate", "--predictions", tmp_path / "hyp"]
    facts = told(softq(*scored, tmp_path / "ref", tmp_path / "more", "--json"))
    for name, metric in TRANSLATION_METRICS.items():
        assert facts[name] == pytest.approx(float(metric(rows.sum(0))))
    assert facts["exact_match"] == pytest.approx(1 / 3)
    assert (facts["perplexity"], facts["predictions"]) == (None, str(tmp_path / "hyp"))
    texts = (
        ["The cat sat there.", "A cat sat here.", "The cat is there."],
        ["No.", "Never."],
        ["<unk> rain!", "It rains!"],
    )
    (tmp_path / "test.jsonl").write_text(
        lines(json.dumps({"source": "x", "references": several}) for several in texts)
    )
    objects = told(softq(*scored, tmp_path / "test.jsonl", "--json"))
    assert {name: objects[name] for name in TRANSLATION_METRICS} == {
        name: facts[name] for name in TRANSLATION_METRICS
    }
    split = told(softq(*scored, tmp_path / "ref", "--tokenizer", "space", "--json"))
    assert split["length_ratio"] == pytest.approx(6 / 7)
    against = [*scored, tmp_path / "ref", "--against", tmp_path / "other"]
    compared = told(softq(*against, "--json"))
    assert compared["against"]["exact_match"]["score"] == pytest.approx(1 / 3)
    assert compared["against"]["exact_match"]["difference"]["value"] == pytest.approx(0)
    assert "sentence BLEU" in well(softq(*against))


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--predictions", "TWO", "THREE"], ["got ", "two with 2 lines and ", "three with 3"]),
        (["--predictions", "TWO", "TWO", "THREE"], ["two with 2 lines and ", "three with 3"]),
        (
            ["--predictions", "TWO", "GAP"],
            ["gap, line 2: expected a reference for a line of ", "got an empty one"],
        ),
        (["--predictions", "TWO", "EMPTY"], ["empty is empty: expected a reference per line"]),
        (["--predictions", "NONE", "TWO"], ["cannot read", "none"]),
        (["--predictions", "TWO", "TWO", "--beam", "3"], ["--beam is for translators"]),
        (["RUN", "TWO"], ["two, line 1: expected a source, a tab and one or more references"]),
        (["RUN", "TWO", "THREE"], ["expected files whose lines belong together"]),
        (["RUN", "TWO", "GAP"], ["gap, line 2: expected a sentence, got an empty line"]),
        (["RUN", "TSV", "--scheme", "bio"], ["is a translator"]),
        (
            ["RUN", "TSV", "--tokenizer", "space"],
            ["--tokenizer is for --predictions of translators"],
        ),
        (["RUN", "TSV", "--against", "NONE"], ["none is not a model of softq"]),
        (["RUN"], ["expected a model and a file"]),
    ],
)
def test_what_cannot_be_scored(runs, files, tmp_path, arguments, texts):
    for name, text in {"two": "a\nb\n", "three": "a\nb\nc\n", "gap": "a\n\n", "empty": ""}.items():
        (tmp_path / name).write_text(text)
    named = {"RUN": runs / "ml", "TSV": files["test"]} | {
        name.upper(): tmp_path / name for name in ("two", "three", "gap", "empty", "none")
    }
    refused(softq("evaluate", *(named.get(argument, argument) for argument in arguments)), *texts)


# --- data -------------------------------------------------------------------------------------------------


def test_counts(tmp_path):
    path = write(
        tmp_path / "a.tsv",
        ["Ja, ja doch", "Nein", "Ja, ja doch"],
        [["Yes, yes"], ["No", "Nope no"], ["Yes, yes"]],
    )
    (file,) = told(softq("data", "stats", path, "--json"))["files"]
    assert (file["format"], file["sentences"], file["references"], file["distinct_references"]) == (
        "bitext",
        2,
        4,
        3,
    )
    assert file["references_per_source"] == {"2": 2}
    assert file["source"] == {
        "words": 5,
        "distinct_words": 5,
        "words_that_occur_once": 5,
        "mean_length": 2.5,
        "longest": 4,
    }
    assert file["target"] == {
        "words": 9,
        "distinct_words": 6,
        "words_that_occur_once": 3,
        "mean_length": 2.25,
        "longest": 3,
    }
    shown = well(softq("data", "stats", path))
    assert "references that repeat another" in shown
    (tmp_path / "s").write_text("a b\nc\n")
    (tmp_path / "t").write_text("A\nB C\n")
    (file,) = told(
        softq("data", "stats", tmp_path / "s", tmp_path / "t", "--format", "bitext", "--json")
    )["files"]
    assert (file["path"], file["target"]["words"]) == (f"{tmp_path / 's'}, {tmp_path / 't'}", 3)
    refused(
        softq("data", "stats", tmp_path / "s", "--format", "bitext", "--scheme", "bio"),
        "--scheme is for files of labels",
    )
    refused(
        softq("data", "stats", tmp_path / "s", "--format", "bitext"),
        "s, line 1: expected a source, a tab",
    )


def test_faults(tmp_path):
    good = write(tmp_path / "good.tsv", ["a b"], [["A"]])
    bad = tmp_path / "bad.tsv"
    bad.write_text("a b\tA\nno tab here\n\tA\na\t\n\n a\tA\t \n")
    found = softq("data", "check", good, bad, "--format", "bitext")
    assert found.exit_code == 2
    assert found.stdout.splitlines() == [
        f"{good}: no faults",
        *(
            f"{bad}:{line}: expected a source, a tab and one or more references separated by tabs,"
            f" got {got}"
            for line, got in (
                (2, "no tab"),
                (3, "references without a source"),
                (4, "'a' without a reference"),
                (5, "an empty line"),
                (6, "an empty reference in column 3"),
            )
        ),
    ]
    (tmp_path / "s").write_text("a b\n\nc\n")
    (tmp_path / "t").write_text("A\nB C\n")
    found = softq("data", "check", tmp_path / "s", tmp_path / "t", "--format", "bitext", "--json")
    assert found.exit_code == 2
    assert [file["faults"] for file in json.loads(found.stdout)["files"]] == [
        [{"line": 2, "message": "the line is empty"}],
        [{"line": 0, "message": f"expected 3 lines, as in {tmp_path / 's'}, got 2"}],
    ]
    (tmp_path / "latin").write_bytes(b"a\xff\tb\n\tb\nc\t\xfc\n")
    assert [
        line.partition(": ")[0]
        for line in softq(
            "data", "check", tmp_path / "latin", "--format", "bitext"
        ).stdout.splitlines()
    ] == [f"{tmp_path / 'latin'}:{number}" for number in (1, 2, 3)]
    assert well(softq("data", "check", good)) == f"{good}: no faults\n"


@pytest.mark.parametrize("blank", [0, 1, 2, 3])
def test_an_empty_line_is_found_without_being_told_the_format(tmp_path, blank):
    rows = ["Ja, das ist so.\tYes.", "Nein\tNo.", "Wer war das?\tWho was it?"]
    bad = tmp_path / "bad.tsv"
    bad.write_text(lines([*rows[:blank], "", *rows[blank:]]))
    found = softq("data", "check", bad)
    assert found.exit_code == 2
    assert found.stdout.startswith(f"{bad}:{blank + 1}: expected a source, a tab and ")
    assert found.stdout.endswith(", got an empty line\n")
    refused(softq("data", "stats", bad), f"bad.tsv, line {blank + 1}: ", "got an empty line")


def test_which_files_are_sentences_with_translations(tmp_path, files):
    assert is_bitext(files["train"])
    cases = {
        "a.tsv": ("Ann\tB-PER\nran\tO\n\nHi\tO\n", False),
        "b.tsv": ("Ann\tB-PER\n", False),
        "c.txt": ("a b\tA\n", False),
        "d.tsv": ("a b\tA\n", True),
        "f.tsv": ("a b\tA\n\n", True),
        "g.tsv": ("\n\na b\tA\n", True),
        "h.tsv": ("In\tO\nNew York\tB-LOC\n\nit\tO\nis\tO\nhot\tO\n", False),
        "i.tsv": ("", False),
        "j.tsv": ("# annotators = a b\nAnn\tB-PER\n", False),
    }
    for name, (text, expected) in cases.items():
        (tmp_path / name).write_text(text)
        assert is_bitext(tmp_path / name) == expected
    (tmp_path / "l.tsv").write_bytes(b"a b\tA\nc d\t\xff\n")
    assert is_bitext(tmp_path / "l.tsv")
    (tmp_path / "e.tsv.gz").write_bytes(gzip.compress(b"a b\tA\n"))
    assert is_bitext(tmp_path / "e.tsv.gz")
    assert not is_bitext(tmp_path / "none.tsv")
