"""`softq data` on trees: which files are taken for trees, what is counted, what is wrong."""

import gzip
import json
import re
from functools import partial

import pytest

from ner_commands import softq as command

run = partial(command, "data")

TREES = (
    "# sent_id = a\n"
    "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_\n"  # length 3
    "2\tn't\tnot\tPART\t_\t_\t1\tadvmod\t_\t_\n"  # 1
    "3\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n"
    "3.1\t_\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "4\tgo\tgo\tVERB\t_\t_\t3\tconj\t_\t_\n"  # 1; 4 -> 1 passes over 3, which is not below 4
    "\n"
    "1\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n"
)


@pytest.fixture
def trees(tmp_path):
    path = tmp_path / "a[b].conllu.gz"
    path.write_bytes(gzip.compress(TREES.encode()))
    return path


def test_stats_for_programs(trees):
    result = run("stats", trees, "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)["files"]
    assert found == {
        "path": str(trees),
        "format": "conllu",
        "sentences": 2,
        "words": 5,
        "multiword_tokens": 1,
        "empty_nodes": 1,
        "distinct_words": 3,
        "mean_length": 2.5,
        "longest": 4,
        "trees": 2,
        "nonprojective_sentences": 1,
        "nonprojective_arcs": 1,
        "nonprojective_sentence_share": 0.5,
        "nonprojective_arc_share": 0.2,
        "mean_arc_length": pytest.approx(5 / 3),
        "mean_depth": 2.5,
        "deepest": 4,
        "relations": {"advmod": 1, "aux": 1, "conj": 1, "root": 2},
        "upos": {"AUX": 1, "PART": 1, "VERB": 3},
    }


def test_stats_as_a_table(trees):
    result = run("stats", trees)
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first == str(trees)
    rows = [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in lines
        if line.strip()
    ]
    assert rows == [
        ["sentences", "2"],
        ["words", "5"],
        ["multi-word tokens", "1"],
        ["empty nodes", "1"],
        ["distinct words", "3"],
        ["words per sentence, mean", "2.50"],
        ["words of the longest sentence", "4"],
        ["trees", "2"],
        ["non-projective sentences", "1", "50.00%"],
        ["non-projective arcs", "1", "20.00%"],
        ["arc length, mean", "1.67"],
        ["depth, mean", "2.50"],
        ["depth of the deepest tree", "4"],
        ["relations", "5"],
        ["root", "2", "40.00%"],
        ["advmod", "1", "20.00%"],
        ["aux", "1", "20.00%"],
        ["conj", "1", "20.00%"],
        ["parts of speech", "5"],
        ["VERB", "3", "60.00%"],
        ["AUX", "1", "20.00%"],
        ["PART", "1", "20.00%"],
    ]


def test_files_without_trees_and_of_single_words(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("1\tgo\t_\t_\t_\t_\t_\t_\t_\t_\n", encoding="utf-8")
    (found,) = json.loads(run("stats", path, "--json").stdout)["files"]
    assert (found["words"], found["trees"], found["relations"], found["upos"]) == (
        1,
        0,
        {},
        {"_": 1},
    )
    unknown = {name for name, value in found.items() if value is None}
    assert unknown == {
        name
        for name in found
        if name.startswith("nonprojective") or name in ("mean_arc_length", "mean_depth", "deepest")
    }
    assert "relations" not in (shown := run("stats", path)).stdout
    assert shown.exit_code == 0
    assert run("check", path).exit_code == 0
    path.write_text("1\tgo\t_\t_\t_\t_\t0\troot\t_\t_\n", encoding="utf-8")
    assert re.search(r"arc length, mean +undefined", run("stats", path).stdout)


def test_what_is_taken_for_trees(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(TREES.partition("\n")[2], encoding="utf-8")
    assert json.loads(run("stats", path, "--json").stdout)["files"][0]["format"] == "conllu"
    columns = json.loads(run("stats", path, "--format", "columns", "--json").stdout)["files"][0]
    assert (columns["tokens"], columns["labels"]) == (7, {"_": 7})
    path.write_text("Ann\tB-PER\nran\tO\n", encoding="utf-8")
    both = run("stats", path, path, "--json")
    assert [file["tokens"] for file in json.loads(both.stdout)["files"]] == [2, 2]
    wrong = run("stats", path, "--format", "conllu")
    assert wrong.exit_code == 2
    assert "line 1: expected 10 columns, ID to MISC, got 2 (sentence 1 of the file)" in wrong.stderr


def test_check_prints_every_fault(trees, tmp_path):
    bad = tmp_path / "bad.conllu"
    bad.write_text(
        TREES.replace("\t4\taux", "\t9\taux").replace("\t3\tconj", "\t3\t_") + "\n# c\n",
        encoding="utf-8",
    )
    result = run("check", trees, bad, tmp_path / "absent.conllu")
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert lines[:4] == [
        f"{trees}: no faults",
        f"{bad}:3: expected a head in 0..4, got 9 (sentence a)",
        f"{bad}:7: expected a DEPREL beside the HEAD, got _ (sentence a)",
        f"{bad}:11: expected words after the comments, got none (sentence 3 of the file)",
    ]
    assert "cannot read" in lines[4]
    assert len(lines) == 5
    found = json.loads(run("check", trees, bad, "--json").stdout)["files"]
    assert [[fault["line"] for fault in file["faults"]] for file in found] == [[], [3, 7, 11]]
    refused = run("stats", bad)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        "line 3: expected a head in 0..4, got 9 (sentence a) (and 2 more; `softq data check` lists"
        " them)" in refused.stderr
    )


@pytest.mark.parametrize(
    "options", [["--annotators", "2"], ["--annotators", "all"], ["--scheme", "bio"]]
)
@pytest.mark.parametrize("command", ["stats", "check"])
def test_options_of_labels_are_refused(trees, command, options):
    result = run(command, trees, *options)
    assert result.exit_code == 2
    assert f"{options[0]} is for files of labels, and {trees} holds trees" in result.stderr
    assert result.stderr.count("\n") == 1
