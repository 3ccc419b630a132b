"""The truth with a tagger in the loop: annotators, labels known in part, and what is kept of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_crashes import broken_off_at_every_write

from ner_runs import FEW, TASK, WORLD, parts, predictions, recipe, run, tagger_of, write
from small_runs import CPU, contents, softq
from softq.annotators.reliability import estimate
from softq.annotators.tables import TablePriors
from softq.errors import DataError, RecipeError
from softq.formats.conll import MISSING, Sentence, read_conll
from softq.formats.tags import convert
from softq.lab.loop import Watcher
from softq.lab.recipe import build, parse_flags
from softq.lab.report import annotators as report
from softq.lab.run import RunFolder
from softq.lab.sweep import Grid, run_sweep
from softq.lab.tasks import TASKS, ner_labels, train_cells
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import TagRecipe
from softq.linear import CRFTagger
from softq.linear.truth_loop import LoopOptions
from softq.metrics import span_f1, span_statistics

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")
PEOPLE = ("a01", "a04", "a10", "a15")


def crowd_of(truth, seed):
    """Four annotators of every sentence, each of whom leaves out some labels."""
    random = np.random.default_rng(seed)
    wrong = sorted({name for sentence in truth for name in sentence.labels[0]})
    found = []
    for sentence in truth:
        rows = []
        for error in (0.02, 0.1, 0.2, 0.5):
            chances = random.random(len(sentence.tokens))
            row = convert(
                [
                    wrong[random.integers(len(wrong))] if chance < error else name
                    for name, chance in zip(sentence.labels[0], chances, strict=True)
                ],
                "bio",
                "bio",
            )
            rows.append(
                tuple(
                    MISSING if 0.9 < chance < 0.95 else name
                    for name, chance in zip(row, chances, strict=True)
                )
            )
        found.append(replace(sentence, labels=tuple(rows), annotators=PEOPLE))
    return found


def partial_of(truth, seed):
    """A tenth of the labels missing, a tenth one of two, a tenth with probabilities."""
    random = np.random.default_rng(seed)
    found = []
    for sentence in truth:
        labels = []
        for name in sentence.labels[0]:
            other = "B-LOC" if name != "B-LOC" else "O"
            spellings = (MISSING, f"{name}|{other}", f"{name}=0.8|{other}=0.2", *[name] * 7)
            labels.append(spellings[random.integers(10)])
        found.append(replace(sentence, labels=(tuple(labels),)))
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    train, dev = WORLD.sample(90, seed=0), WORLD.sample(30, seed=1)
    sentences = {"crowd": crowd_of(train, 0), "partial": partial_of(train, 0), "dev": dev}
    sentences["train"] = train
    return {name: write(folder / f"{name}.conll", some) for name, some in sentences.items()}


def counted(monkeypatch):
    """Options of each loop that is run."""
    found, find_truth = [], ner_labels.find_truth

    def count(sentences, matrix, labels, model, scheme, options, *, tell):
        found.append(options)
        return find_truth(sentences, matrix, labels, model, scheme, options, tell=tell)

    monkeypatch.setattr(ner_labels, "find_truth", count)
    return found


# --- the same as the estimator ------------------------------------------------------------------------------


def same_as(fitted, out, path):
    """Whether a run has found the weights of an estimator."""
    found, wanted = tagger_of(out), fitted.tagger_
    assert found.tagger_.labels == wanted.labels
    assert np.abs(wanted.weights).max() > 0.5
    assert np.allclose(found.tagger_.weights, wanted.weights, atol=1e-3)
    assert np.allclose(found.tagger_.transitions, wanted.transitions, atol=1e-3)
    assert predictions(out, path) == fitted.predict([s.tokens for s in read_conll(path).sentences])
    return found


def estimator(**options):
    return CRFTagger(
        c2=0.5,
        min_freq=1,
        all_possible_transitions=True,
        constraints="decode",
        templates=FEW[1].split(","),
        tolerance=1e-6,
        num_memories=8,
        max_iterations=1000,
        **options,
    )


@pytest.mark.parametrize("model", ["dawid-skene", "sequential"])
@pytest.mark.parametrize("objective", [["ml"], ["sqdml", "--tau", 2.0]])
def test_annotators_are_modelled_as_by_the_estimator(tmp_path, files, model, objective):
    flags = ["--train", files["crowd"], "--dev", files["dev"], "--annotator-model", model]
    row = run(tmp_path, *flags, "--tolerance", 1e-6, "--objective", *objective)
    words, y, names = read_conll(files["crowd"]).X_y()
    fitted = estimator(annotators=model, objective=objective[0], tau=2.0).fit(words, y)
    found = same_as(fitted, tmp_path, files["dev"])
    assert (found.annotators, found.partial_labels) == (model, False)
    result = RunFolder(tmp_path).result()
    assert result["facts"]["annotator_model"] == model
    for ours, theirs in zip(result["facts"]["annotators"], fitted.annotators_, strict=True):
        assert ours["name"] == names[int(theirs.name)]
        assert ours["weight"] == pytest.approx(theirs.weight, rel=1e-3)
    assert [list(labels) for labels in label(recipe(*flags)).truth] == fitted.truth_
    toward = "token-accuracy" if objective == ["ml"] else f"annotators-log-probability:{model}"
    assert result["signature"] == toward
    counts = span_statistics(
        [s.labels[0] for s in read_conll(files["dev"]).sentences],
        predictions(tmp_path, files["dev"]),
        "bio",
    )
    assert row["dev"] == float(span_f1(counts.rows.sum(0)))


def test_partial_labels_are_filled_in_as_by_the_estimator(tmp_path, files):
    flags = ["--train", files["partial"], "--dev", files["dev"], "--partial-labels"]
    row = run(tmp_path, *flags, "--tolerance", 1e-6)
    words, y, _ = read_conll(files["partial"]).X_y()
    fitted = estimator(partial_labels=True).fit(words, y)
    found = same_as(fitted, tmp_path, files["dev"])
    assert (found.annotators, found.partial_labels) == (None, True)
    truth = label(recipe(*flags)).truth
    assert [list(labels) for labels in truth] == fitted.truth_
    assert row["dev"] > 0.4
    right = [s.labels[0] for s in read_conll(files["train"]).sentences]
    unsure = read_conll(files["partial"]).sentences
    shares = [
        guess == name
        for labels, names, given in zip(truth, right, unsure, strict=True)
        for guess, name, seen in zip(labels, names, given.labels[0], strict=True)
        if seen != name
    ]
    assert np.mean(shares) > 0.8
    assert "annotators" not in RunFolder(tmp_path).result().get("facts", {})


def test_labels_that_are_all_known_are_the_truth(tmp_path, files):
    known = label(recipe("--train", files["train"], "--partial-labels"))
    right = [s.labels[0] for s in read_conll(files["train"]).sentences]
    assert list(known.truth) == right
    partial, plain = (
        run(tmp_path / name, *parts(files, "train", "dev"), *flags, "--tolerance", 1e-5)
        for name, flags in (("partial", ["--partial-labels"]), ("plain", []))
    )
    assert partial["penalised_loss"] == pytest.approx(plain["penalised_loss"], rel=1e-5)


def test_labels_of_other_kinds_may_be_known_in_part(tmp_path):
    text = "she PRP\nran VBD\n\nhe PRP\nran VBD|NN\n\nit ?\nran VBD=0.6|NN=0.4\n\n" * 4
    path = write(tmp_path / "t", text)
    flags = parse_flags(TagRecipe, [*FEW, "--train", str(path), "--partial-labels"])
    made = build(TagRecipe, flags)
    found = label(made)
    assert found.names == ("NN", "PRP", "VBD")
    assert {tuple(labels) for labels in found.truth} == {("PRP", "VBD")}
    assert train_cells(TASKS["tag"], [made], tmp_path / "run", workers=CPU)["cells"][0]["dev"] == 1


def test_tags_are_judged_where_they_are_certain(tmp_path):
    # an I-PER may follow a B-PER that is not certain
    text = "Ann B-PER|B-LOC\nLee I-PER|I-LOC\nran O\n\nAnn ?\nLee I-PER\nran O\n\n"
    path = write(tmp_path / "t", f"{text}Ann B-PER\nLee I-PER\nran O\n\n")
    for scheme in ("auto", "bio"):
        found = label(recipe("--train", path, "--partial-labels", "--scheme", scheme))
        assert list(found.truth) == [("B-PER", "I-PER", "O")] * 3
    message = (
        r"t, line 1: expected a label that can stand here in a sequence of bio, got 'I-PER\|I-LOC'"
    )
    write(path, f"Ann I-PER|I-LOC\nran O\n\n{text}")
    with pytest.raises(DataError, match=message):
        label(recipe("--train", path, "--partial-labels", "--scheme", "bio"))
    write(path, f"{text}Ann O\nran B-PER\nLee E-PER|I-LOC\n\n")
    with pytest.raises(DataError, match=r"t, line 11: expected a tag of bio .*'E-PER\|I-LOC'"):
        label(recipe("--train", path, "--partial-labels", "--scheme", "bio"))
    write(path, "Ann ?\nran ?\n")
    flags = parse_flags(TagRecipe, [*FEW, "--train", str(path), "--partial-labels"])
    with pytest.raises(DataError, match=r"t: expected labels, got \? alone"):
        label(build(TagRecipe, flags))
    write(path, "Ann ?\nLee B-PER\n\n")
    one = ["--train", path, "--partial-labels", "--scheme", "bio"]
    with pytest.raises(DataError, match=r"t: .*expected 2 sentences or more, got 1"):
        label(recipe(*one))


def test_an_uncertain_tag_names_the_option(tmp_path):
    for uncertain in ("B-LOC|O", "O=0.5|B-LOC=0.5", "?"):
        path = write(tmp_path / "t", f"Ann B-PER\nran {uncertain}\n")
        with pytest.raises(DataError, match=r"t, line 2: .* such labels, with partial_labels"):
            label(recipe("--train", path))
    path = write(tmp_path / "t", "Ann B-PER\nran B-PER|LOC\n")  # a type of its own
    assert label(recipe("--train", path)).names == ("B-PER", "B-PER|LOC", "O")


# --- options, splits, schemes -------------------------------------------------------------------------------


def test_keys_of_the_loop_are_its_options(files, monkeypatch):
    loops = counted(monkeypatch)
    flags = ["--train", files["crowd"], "--annotator-model", "sequential"]
    label(recipe(*flags, "--c2", 0.25))
    label(recipe(*flags, "--c2", 0, "--seed", 3))
    label(recipe(*flags, "--c2", 0.25, "--loop-c2", 2, "--rounds", 1, "--loop-folds", 2))
    label(recipe(*flags, "--temper", 0.7, "--tagger-weight", 1.5, "--seed", -1))
    label(recipe(*flags, "--evidence-floor", -8))
    assert loops == [
        LoopOptions(c2=0.25),
        LoopOptions(seed=3),
        LoopOptions(c2=2, rounds=1, folds=2),
        LoopOptions(c2=0.5, temper=0.7, weight=1.5, seed=2**64 - 1),
        LoopOptions(c2=0.5, priors=TablePriors(floor=-8)),
    ]


def test_the_most_likely_sequences_are_references(files):
    sentences = read_conll(files["crowd"]).sentences
    found = label(recipe("--train", files["crowd"], "--references", "sequential"))
    reliability = estimate(sentences, "sequential")
    assert [found.best(i) for i in range(len(sentences))] == [
        convert(labels, "bio", "bio") for labels in reliability.best
    ]
    assert found.reliability.model == "sequential"


def test_halves_of_dev(tmp_path, files):
    flags = ["--train", files["crowd"], "--annotator-model", "sequential", "--rounds", 1]
    halved = run(tmp_path / "a", *flags, "--dev", files["dev"], "--halve-dev")
    sentences = read_conll(files["dev"]).sentences
    even, odd = (write(tmp_path / f"{half}.conll", sentences[half::2]) for half in (0, 1))
    other = run(tmp_path / "b", *flags, "--dev", even, "--test", odd)
    assert (halved["dev"], halved["test"]) == (other["dev"], other["test"])


def test_without_dev_it_is_judged_by_the_likeliest_labels(tmp_path, files):
    flags = ["--train", files["crowd"], "--annotator-model", "sequential"]
    row = run(tmp_path, *flags, "--objective", "sqdml", "--tau", 2)
    counts = span_statistics(
        label(recipe(*flags)).truth, predictions(tmp_path, files["crowd"]), "bio"
    )
    assert row["dev"] == float(span_f1(counts.rows.sum(0)))


@pytest.mark.parametrize(
    ("name", "flag"),
    [("crowd", ["--annotator-model", "sequential"]), ("partial", ["--partial-labels"])],
)
def test_the_scheme_is_that_of_the_files(tmp_path, files, name, flag):
    flags = ["--train", files[name], *flag, "--rounds", 1]
    run(tmp_path / "same", *flags, "--train-scheme", "bio")
    with pytest.raises(
        RecipeError, match="in the scheme of the files, bio: leave out train_scheme"
    ):
        run(tmp_path / "other", *flags, "--train-scheme", "bioes")
    assert not (tmp_path / "other").exists()


def test_parts_of_speech(tmp_path, files):
    def with_pos(sentences):
        return [replace(s, extra=(tuple(token[0] for token in s.tokens),)) for s in sentences]

    crowd = write(tmp_path / "crowd", with_pos(read_conll(files["crowd"]).sentences))
    dev = write(tmp_path / "dev", with_pos(read_conll(files["dev"]).sentences))
    flags = ["--train", crowd, "--dev", dev, "--annotator-model", "sequential", "--rounds", 1]
    run(tmp_path / "run", *flags, "--pos", 2, "--templates", "word[0],pos[0]")
    tagger = tagger_of(tmp_path / "run")
    assert any(name.startswith("pos[0]=") for name in tagger.tagger_.index.names())


def test_the_built_in_world_has_annotators(tmp_path):
    flags = ["--sentences", 120, "--dev-sentences", 60, "--annotator-model", "sequential"]
    assert run(tmp_path, *flags)["test"] > 0.3
    assert len(RunFolder(tmp_path).result()["facts"]["annotators"]) == 16


def test_how_annotators_are_used_in_words():
    model = ["--annotator-model", "sequential"]
    for flags, words in (
        (model, "the estimated truth (sequential model and tagger)"),
        (
            [*model, "--objective", "sqdml", "--tau", 1],
            "the annotators’ log-probabilities (sequential model and tagger)",
        ),
        (
            ["--references", "sequential"],
            "the most likely labels by EM (sequential model)",
        ),
    ):
        assert report.label(recipe(*flags)) == words
        assert report.label(recipe("--train", "a", "--annotators", "all", *flags)) == words


# --- once, told, and broken off -----------------------------------------------------------------------------


def test_a_sweep_runs_the_loop_once(tmp_path, files, monkeypatch):
    loops = counted(monkeypatch)
    base = recipe("--train", files["crowd"], "--dev", files["dev"], "--rounds", 1,
                  "--annotator-model", "sequential", "--tolerance", 0.01)  # fmt: skip
    grids = [
        Grid("sqdml", ("sqdml",), "1,2", over=("loop_c2=1", "c2=0.5,1")),
        Grid("ml", ("ml",), over=("loop_c2=1", "c2=0.5")),
    ]
    sweep = run_sweep(TASK, base, grids, tmp_path / "once")
    assert len(sweep.cells) == 5
    assert loops == [LoopOptions(rounds=1)]
    loops.clear()
    run_sweep(TASK, base, [Grid("own", ("sqdml",), "1,2", over=("c2=0.3,0.6",))], tmp_path / "own")
    assert loops == [LoopOptions(rounds=1, c2=0.3), LoopOptions(rounds=1, c2=0.6)]


def test_each_round_is_told(tmp_path, files):
    lines = []
    watcher = Watcher()
    watcher.note = lines.append

    flags = ["--train", files["crowd"], "--annotator-model", "dawid-skene", "--rounds", 2]
    made = recipe(*flags, "--loop-c2", 0.9)
    train_cells(TASK, [made], tmp_path / "run", workers=CPU, watcher=watcher)
    assert [line[:8] for line in lines] == ["round 1:", "round 2:"]
    told = softq(
        "train",
        "ner",
        *FEW,
        *flags,
        "--loop-c2",
        0.8,
        "--tolerance",
        0.01,
        "--out",
        tmp_path / "command",
    )
    assert told.exit_code == 0, told.output
    assert "round 2: " in told.stderr
    assert "estimated by dawid-skene" in told.stdout


@pytest.mark.filterwarnings("ignore::softq.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("crowd", ["--annotator-model", "sequential", "--objective", "sqdml", "--tau", 2]),
        ("partial", ["--partial-labels"]),
    ],
)
def test_a_run_that_is_broken_off_ends_the_same(tmp_path, files, monkeypatch, name, flags):
    train = write(tmp_path / "t", read_conll(files[name]).sentences[:30])
    made = recipe("--train", train, *flags, "--rounds", 1, "--iterations", 4,
                  "--tolerance", 1e-9, "--checkpoint-every", 2)  # fmt: skip
    loops = counted(monkeypatch)

    def job(out):
        train_cells(TASK, [made], out, resume=True, workers=CPU)

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 8
    assert len(loops) == 1


def test_the_loop_is_the_same_in_another_process(files, monkeypatch):
    made = recipe("--train", files["crowd"], "--annotator-model", "sequential", "--loop-c2", 0.7)
    first = label(made)
    monkeypatch.setattr(ner_labels, "_truth", ner_labels.once(1)(ner_labels._truth.__wrapped__))
    loops = counted(monkeypatch)
    second = label(made)
    assert len(loops) == 1
    for ours, theirs in zip(first.references, second.references, strict=True):
        assert np.array_equal(ours, theirs)
    assert math.isfinite(float(first.references.entropy.sum()))


def test_one_annotator_is_a_crowd_too(tmp_path):
    rows = Sentence(("Ann", "ran"), (("B-PER", "O"),), ("w1",))
    path = write(tmp_path / "t", [rows] * 4)
    assert label(recipe("--train", path, "--annotator-model", "sequential")).best(0) == [
        "B-PER",
        "O",
    ]
