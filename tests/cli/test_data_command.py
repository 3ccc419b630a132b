"""`softq data`: counts, agreement, faults."""

import json
import math
from collections import Counter
from functools import partial
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softq
from ner_commands import softq as command
from softq.annotators.agreement import MEASURES, agreement
from softq.formats.conll import MISSING, Sentence

run = partial(command, "data")


@pytest.fixture
def gold(tmp_path):
    path = tmp_path / "gold[b].conll"
    path.write_text(
        "Ann\tB-PER\nLee\tI-PER\nran\tO\n\nAnn\tB-PER\nin\tO\nRome\tB-LOC\n", encoding="utf-8"
    )
    return path


@pytest.fixture
def crowd(tmp_path):
    path = tmp_path / "crowd.conll"
    first = "# annotators = u v\nAnn\tB-PER\tO\nran\tO\tO\n\n"
    second = "# annotators = w u v\nRome\tB-LOC\tB-LOC\t?\nfell\tO\tB-PER\tO\n\n"
    text = f"{first}{second}# annotators = w\nA\tO\n"
    path.write_text(text, encoding="utf-8")
    return path


def rows(text):
    return {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if len(cells := [cell for cell in line.strip().split("  ") if cell.strip()]) > 1
    }


def stripped(found):
    return {name: [value.strip() for value in values] for name, values in found.items()}


def test_stats_of_a_file(gold):
    result = run("stats", gold)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == str(gold)
    assert stripped(rows(result.stdout)) == {
        "sentences": ["2"],
        "tokens": ["6"],
        "distinct words": ["5"],
        "labels": ["6"],
        "O": ["2", "33.33%"],
        "B-PER": ["2", "33.33%"],
        "B-LOC": ["1", "16.67%"],
        "I-PER": ["1", "16.67%"],
        "entities (bio)": ["3"],
        "PER": ["2", "66.67%"],
        "LOC": ["1", "33.33%"],
    }


def test_stats_for_programs(gold, crowd):
    result = run("stats", gold, crowd, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["command"], found["softq"]) == ("data stats", softq.__version__)
    first, second = found["files"]
    assert first == {
        "path": str(gold),
        "sentences": 2,
        "tokens": 6,
        "words": 5,
        "scheme": "bio",
        "labels": {"B-LOC": 1, "B-PER": 2, "I-PER": 1, "O": 2},
        "entities": {"LOC": 1, "PER": 2},
        "annotators": 0,
        "annotations": 0,
        "agreement": None,
    }
    assert (second["annotators"], second["annotations"], second["tokens"]) == (3, 6, 5)
    assert second["entities"] == {"LOC": 2, "PER": 2}
    assert second["labels"] == {"B-LOC": 2, "B-PER": 2, "O": 6}
    measured = second["agreement"]
    assert measured["tokens"] == 4
    assert {
        (pair["first"], pair["second"]): (pair["tokens"], pair["agreement"])
        for pair in measured["pairs"]
    } == {
        ("u", "v"): (3, 1 / 3),
        ("u", "w"): (2, 1 / 2),
        ("v", "w"): (1, 1.0),
    }
    assert measured["agreement"] == pytest.approx(3 / 6)


def test_stats_show_agreement(crowd):
    result = run("stats", crowd)
    shown = stripped(rows(result.stdout))
    found = json.loads(run("stats", crowd, "--json").stdout)["files"][0]["agreement"]
    assert shown["annotators"] == ["3"]
    assert shown["annotations per sentence"] == ["2.00"]
    assert shown["tokens with two labels or more"] == ["4"]
    for name, title in MEASURES.items():
        assert shown[title] == [f"{found[name]:.4f}"]
    assert found["cohen"] != found["span_cohen"]
    assert "softq data annotators" in result.stdout


def test_annotators_and_scheme_are_options(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("a O B-P O\nb O I-P O\n\nc O O O\n", encoding="utf-8")
    assert (
        json.loads(run("stats", path, "--json", "--annotators", 2).stdout)["files"][0][
            "annotations"
        ]
        == 4
    )
    assert (
        json.loads(run("stats", path, "--json", "--annotators", "all").stdout)["files"][0][
            "annotations"
        ]
        == 6
    )
    path.write_text("a I-P\nb I-P\nc B-P\n", encoding="utf-8")
    assert json.loads(run("stats", path, "--json").stdout)["files"][0]["scheme"] == "iob1"
    assert (
        json.loads(run("stats", path, "--json", "--scheme", "bio").stdout)["files"][0]["scheme"]
        == "bio"
    )
    assert run("check", path).exit_code == 0
    assert run("check", path, "--scheme", "bio").exit_code == 2
    path.write_text("a DT\nb [b]\n", encoding="utf-8")
    assert "entities" not in (shown := run("stats", path).stdout)
    assert stripped(rows(shown))["[b]"] == ["1", "50.00%"]
    path.write_text("a B-P\n\nb B-P\n", encoding="utf-8")
    assert json.loads(run("stats", path, "--json").stdout)["files"][0]["entities"] == {"P": 2}
    path.write_text("a O\nb O\n", encoding="utf-8")
    assert stripped(rows(run("stats", path, "--annotators", 1).stdout))["Fleiss' kappa"] == [
        "undefined"
    ]


def test_check_prints_every_fault(gold, tmp_path):
    bad = tmp_path / "bad.conll"
    bad.write_text("a\tO\nb\nc\tO\n\nd\tO\ne\tI-X\n\nf\tB-X\n", encoding="utf-8")
    absent = tmp_path / "absent.conll"
    result = run("check", gold, bad, absent)
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        f"{gold}: no faults",
        f"{bad}:2: expected 2 columns separated by tabs (token, label), got 1",
        f"{bad}:6: expected O or B-* after O, got I-X (bio)",
    ]
    assert lines[3].startswith(f"{absent}: cannot read {absent}: ")
    assert len(lines) == 4
    found = json.loads((shown := run("check", gold, bad, "--json")).stdout)
    assert shown.exit_code == 2
    assert found["files"][0] == {"path": str(gold), "faults": []}
    assert [fault["line"] for fault in found["files"][1]["faults"]] == [2, 6]
    sound = run("check", gold)
    assert (sound.exit_code, sound.stdout) == (0, f"{gold}: no faults\n")
    assert run("check", gold, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a\tO\nb\n", [], "line 2: expected 2 columns"),
        (
            "a O\n",
            ["--annotators", "some"],
            "--annotators must be a number, 0 or more, or all, got 'some'",
        ),
        ("a O\n", ["--annotators=-1"], "got '-1'"),
        ("a O\n", ["--annotators=²"], "got '²'"),
        ("a DT\n", ["--scheme", "bio"], "`softq data check` lists the lines"),
    ],
)
def test_stats_refuse_in_one_line(tmp_path, text, options, message):
    path = tmp_path / "a.conll"
    path.write_text(text, encoding="utf-8")
    result = run("stats", path, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("softq: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@st.composite
def crowds(draw):
    sentences = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 4))
        names = draw(st.lists(st.sampled_from("uvw"), max_size=4))
        label = st.sampled_from(["X", "Y", "Z", MISSING])
        labels = tuple(tuple(draw(st.lists(label, min_size=n, max_size=n))) for _ in names)
        sentences.append(Sentence(("t",) * n, labels, tuple(names)))
    return sentences


def cohen(pairs):
    """The textbook's formula, from a list of two annotators' labels of the same tokens.

    None if 0/0.
    """
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    chance = sum(
        sum(a == label for a, _ in pairs) / n * sum(b == label for _, b in pairs) / n
        for label in {a for a, _ in pairs}
    )
    return None if math.isclose(chance, 1) else (observed - chance) / (1 - chance)


@settings(max_examples=150, deadline=None)
@given(crowds())
def test_agreement_by_the_formulas(sentences):
    found = agreement(sentences)
    given_to = []  # for every token, who gave which label
    for sentence in sentences:
        for t in range(len(sentence.tokens)):
            votes = [
                (name, labels[t])
                for name, labels in zip(sentence.annotators, sentence.labels, strict=True)
            ]
            given_to.append([vote for vote in votes if vote[1] != MISSING])
    rated = [votes for votes in given_to if len(votes) > 1]
    assert found.tokens == len(rated)

    shared = {}
    for votes in rated:
        for (first, a), (second, b) in combinations(votes, 2):
            if first < second:
                shared.setdefault((first, second), []).append((a, b))
            elif second < first:
                shared.setdefault((second, first), []).append((b, a))
    assert [(pair.first, pair.second) for pair in found.pairs] == sorted(shared)
    for pair in found.pairs:
        both = shared[pair.first, pair.second]
        assert pair.tokens == len(both)
        assert pair.agreement == pytest.approx(sum(a == b for a, b in both) / len(both))
        assert pair.kappa == (
            None if cohen(both) is None else pytest.approx(cohen(both), abs=1e-12)
        )
    everything = [pair for both in shared.values() for pair in both]
    assert found.agreement == (
        pytest.approx(sum(a == b for a, b in everything) / len(everything)) if everything else None
    )
    kappas = [(cohen(both), len(both)) for both in shared.values() if cohen(both) is not None]
    mean = sum(kappa * n for kappa, n in kappas) / sum(n for _, n in kappas) if kappas else None
    assert found.cohen == (None if mean is None else pytest.approx(mean, abs=1e-12))

    labels = Counter(label for votes in rated for _, label in votes)
    if len(labels) < 2:
        assert found.fleiss is None
        return
    chance = sum((count / labels.total()) ** 2 for count in labels.values())
    agree = [
        sum(a == b for (_, a), (_, b) in combinations(votes, 2)) / math.comb(len(votes), 2)
        for votes in rated
    ]
    assert found.fleiss == pytest.approx(
        (sum(agree) / len(agree) - chance) / (1 - chance), abs=1e-12
    )


def test_kappas_of_perfect_agreement_are_one():
    found = agreement([Sentence(("a", "b", "c"), (("X", "Y", "X"),) * 3, ("u", "v", "w"))])
    assert (found.agreement, found.cohen, found.fleiss) == (1, 1, 1)


def test_cohen_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    left, right = tuple("XXYZXYYZXX"), tuple("XYYZXXYZZX")
    (pair,) = agreement([Sentence(left, (left, right), ("u", "v"))]).pairs
    assert pair.kappa == pytest.approx(metrics.cohen_kappa_score(left, right))
