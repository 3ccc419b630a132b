"""Neural taggers in runs: what they learn toward, how they resume, how they are scored and used."""

import json

import numpy as np
import pytest
import torch
from test_crashes import broken_off_at_every_write

import softq
from ner_commands import evaluated, refused, told, well
from ner_commands import softq as command
from ner_runs import TASK, labels_of, make_files, parts, write
from small_runs import CPU, contents
from softq.errors import RecipeError
from softq.formats.conll import read_conll
from softq.formats.tags import Scheme, faults
from softq.lab.loop import NonFiniteLossError
from softq.lab.recipe import build, parse_flags
from softq.lab.run import RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.base import best_models
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.linear.tagging import Forbidden
from softq.metrics import span_f1, span_statistics
from softq.neural import SequenceTagger
from softq.targets import target_of

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    *["--model", "neural", "--word-size", "12", "--character-size", "6", "--filters", "8"],
    *["--hidden", "16", "--dropout", "0.1", "--learning-rate", "0.03", "--batch-size", "10"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def recipe(*flags):
    return build(NerRecipe, parse_flags(NerRecipe, [*TINY, *map(str, flags)]))


def run(out, *flags, task=TASK, **options):
    return train_cells(task, [recipe(*flags)], out, workers=CPU, **options)["cells"][0]


def tagger_of(out):
    return SequenceTagger.from_tensors(best_models(RunFolder(out)))


def predicted(out, path):
    return tagger_of(out).predict([one.tokens for one in read_conll(path).sentences])


def vectors(path, files, size=12):
    """A vector for each word of the files in lower case, which tells nothing."""
    sentences = (one for file in files.values() for one in read_conll(file).sentences)
    words = {word.lower() for one in sentences for word in one.tokens}
    random = np.random.default_rng(0)
    lines = [
        " ".join([word, *map(str, random.normal(size=size).round(3))]) for word in sorted(words)
    ]
    return write(path, "".join(f"{line}\n" for line in [*lines, "unasked " + "9 " * size]))


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [["ml"], ["raml", "--tau", 0.3], ["sqdml", "--tau", 0.3]])
def test_a_run_learns_and_its_scores_are_those_of_its_predictions(tmp_path, files, objective):
    row = run(
        tmp_path, *parts(files, "train", "dev", "test"), "--objective", *objective, "--epochs", 8
    )
    for part in ("dev", "test"):
        statistics = span_statistics(
            labels_of(files[part]), predicted(tmp_path, files[part]), "bio"
        )
        assert row[part] == row[f"{part}_f1"] == float(span_f1(statistics.rows.sum(0)))
    assert row["dev"] > 0.35
    losses = [line["loss"] for line in RunFolder(tmp_path).lines("metrics.jsonl")]
    kls = [line["kl"] for line in RunFolder(tmp_path).lines("metrics.jsonl")]
    assert kls[-1] < kls[0] * 0.7
    gaps = np.subtract(losses, kls)  # the target's entropy per sentence
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-9)
    assert (gaps[0] > 0) == (objective[0] != "ml")


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "ml"],
        ["--objective", "ml", "--references", "vote"],
        ["--objective", "raml", "--tau", 0.4, "--weights", "dawid-skene", "--entity-weight", 3],
        ["--objective", "sqdml", "--tau", 0.4, "--type-credit", 0.5, "--constraints", "target"],
        ["--objective", "sqdml", "--tau", 0.4, "--constraints", "model"],
        ["--objective", "raml", "--tau", 0.4, "--no-crf"],
    ],
)
def test_the_loss_of_a_batch_is_the_cross_entropy_of_its_sentences(files, flags):
    wanted = recipe("--train", files["crowd"], "--dropout", 0, *flags)
    learner = TASK.learner([wanted], CPU)
    tagger, losses = learner.tagger, learner._losses
    tagger.encoder.rare.fill_(False)
    generator = torch.Generator().manual_seed(1)
    if tagger.transitions is not None:
        torch.nn.init.normal_(tagger.transitions, generator=generator)
    labelled, constraints = label(wanted), wanted.model.constraints
    annotations, objective = wanted.annotations, wanted.objective
    reward = softq.linear.tagging.entity_reward(
        labelled.names, annotations.entity_weight, annotations.type_credit
    )
    scheme: Scheme | None = "bio" if constraints in ("target", "model") else None
    forbidden = Forbidden.by(scheme, labelled.names)
    sentences = [one.tokens for one in read_conll(files["train"]).sentences]
    seen = []
    for number in (0, 3):
        total = 0.0
        for sentence in losses.sentences[number].tolist():
            refs = torch.from_numpy(labelled.references.labels[sentence]).unsqueeze(0)
            weights = torch.from_numpy(labelled.references.weights[sentence]).unsqueeze(0)
            p = tagger.train()([sentences[sentence]])
            space = forbidden.space(1, torch.tensor([refs.shape[-1]]))
            target = target_of(
                objective.name, space, refs, objective.tau, reward, ref_weights=weights
            )
            # the target on its own space, and the model, which may forbid more of it
            unary, pairs = target.expected_parts(space)
            log_z = p.log_partition.double()
            score = (unary * p.scores.double().nan_to_num(neginf=0)).sum()
            if isinstance(p, softq.Chain):
                score = score + (pairs * p.transitions.double().nan_to_num(neginf=0)).sum()
            total += float((log_z.sum() - score).detach())
            seen.append(sentence)
        assert float(losses(number).detach()) == pytest.approx(total, rel=1e-4)
    assert len(set(seen)) == len(seen) > 10


def test_the_truth_with_a_tagger_in_the_loop_is_a_target_too(tmp_path, files):
    flags = ["--annotator-model", "dawid-skene", "--rounds", 1, "--loop-folds", 2]
    small = ["--templates", "word[0],word[-1],shape[0]"]
    data = ["--train", files["crowd"], "--dev", files["dev"], "--epochs", 6]
    row = run(tmp_path, *flags, *small, *data)
    assert row["dev"] > 0.25


def test_labels_of_any_kind(tmp_path, files):
    flags = [*parts(files, "train", "dev"), "--epochs", 2]
    table = parse_flags(TASKS["tag"].recipe_type, [*TINY, *map(str, flags)])
    task = TASKS["tag"]
    row = train_cells(task, [build(task.recipe_type, table)], tmp_path, workers=CPU)["cells"][0]
    true = [one for labels in labels_of(files["dev"]) for one in labels]
    found = [one for labels in predicted(tmp_path, files["dev"]) for one in labels]
    right = sum(a == b for a, b in zip(true, found, strict=True))
    assert row["dev"] == pytest.approx(right / len(true), abs=1e-9)


def test_without_a_development_file_the_training_file_is_scored_in_its_own_scheme(tmp_path, files):
    row = run(tmp_path, *parts(files, "train"), "--train-scheme", "bioes", "--epochs", 5)
    tagger = tagger_of(tmp_path)
    assert (tagger.scheme, tagger.file_scheme) == ("bioes", "bio")
    assert row["dev"] == row["test"] > 0.2
    assert not any(faults(labels, "bioes") for labels in predicted(tmp_path, files["dev"]))


# --- vectors ----------------------------------------------------------------------------------------------


def test_words_of_all_splits_have_their_vectors(tmp_path, files):
    path = vectors(tmp_path / "vectors.txt", files)
    wanted = recipe(*parts(files, "train", "dev", "test"), "--vectors", path, "--word-size", 0)
    tagger = TASK.learner([wanted], CPU).tagger
    assert tagger.settings.word_size == 12
    assert "unasked" not in tagger.vocabulary.words
    rows = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    for file in ("train", "dev", "test"):
        for word in read_conll(files[file]).sentences[0].tokens:
            own = tagger.encoder.words.weight[tagger.vocabulary.id(word)].tolist()
            assert own == pytest.approx([float(x) for x in rows[word.lower()].split()])
    with pytest.raises(
        softq.errors.ModelError, match=r"vectors of 5 numbers \(word_size\), got 12"
    ):
        TASK.learner([recipe(*parts(files, "train"), "--vectors", path, "--word-size", 5)], CPU)


# --- interruptions ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_events")
def test_a_run_that_is_broken_off_ends_the_same(tmp_path, files):
    flags = ["--epochs", 2, "--batch-size", 40, "--checkpoint-every", 2, "--objective", "raml"]
    flags += [*parts(files, "train", "dev", "test"), "--tau", 0.3, "--patience", 5]

    def job(out):
        run(out, *flags, resume=True)

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 8


def test_a_loss_that_is_not_finite_stops_the_run(files):
    learner = TASK.learner([recipe(*parts(files, "train"))], CPU)
    with torch.no_grad():
        learner.tagger.emissions.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 0 the loss is nan") as raised:
        learner.train(0, 0, 1, [True])
    assert len(raised.value.batch["sentences"]) <= 10


def test_nothing_is_learnt_from_a_bad_batch_or_after_it_where_losses_are_looked_at_later(files):
    """As on a GPU, which is not waited for in every step."""
    wanted = recipe(*parts(files, "train"))
    poisoned, until_then = (TASK.learner([wanted], CPU) for _ in range(2))
    poisoned._ahead = True
    number = int(poisoned._order(0)[3])
    expected = poisoned._losses._expected[number]
    poisoned._losses._expected[number] = expected._replace(labels=expected.labels * torch.inf)
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 3 the loss is") as raised:
        poisoned.train(0, 0, poisoned.steps, [True])
    assert torch.equal(raised.value.batch["sentences"], poisoned._losses.sentences[number])
    until_then.train(0, 0, 3, [True])
    for name, value in until_then.state().items():
        if name != "learning_rate":
            assert torch.equal(value, poisoned.state()[name]), name


def test_when_losses_are_looked_at_changes_nothing(files):
    wanted = recipe(*parts(files, "train"))
    later, at_once = (TASK.learner([wanted], CPU) for _ in range(2))
    later._ahead = True
    later.train(0, 0, later.steps, [True])
    at_once.train(0, 0, 2, [True])
    at_once.train(0, 2, at_once.steps, [True])
    found = later.state()
    for name, value in at_once.state().items():
        assert torch.equal(value, found[name]), name
    assert later.end_epoch([True]) == at_once.end_epoch([True])


# --- commands ---------------------------------------------------------------------------------------------


def test_commands_take_a_neural_tagger_as_any_other(tmp_path, files):
    path = vectors(tmp_path / "vectors.txt", files)
    flags = [*TINY, "--word-size", "0", *parts(files, "train", "dev", "test"), "--vectors", path]
    out = tmp_path / "run"
    done = command(
        "train", "ner", *flags, "--epochs", 4, "--decoding", "mbr", "--out", out, "--json"
    )
    (cell,) = json.loads(done.stdout)["cells"]
    assert evaluated(out, files["test"])["f1"] == pytest.approx(cell["test"], abs=1e-9)
    tagged = well(command("predict", out, files["test"]))
    rows = [line.split("\t") for line in tagged.splitlines() if line]
    tagger = SequenceTagger.load(out)
    sentences = [one.tokens for one in read_conll(files["test"]).sentences]
    assert [row[-1] for row in rows] == [x for one in tagger.predict(sentences) for x in one]
    sure = well(command("predict", out, files["test"], "--probabilities"))
    chances = [float(line.split("\t")[-1]) for line in sure.splitlines() if line]
    best = [max(row.values()) for one in tagger.predict_marginals(sentences) for row in one]
    assert chances == pytest.approx(best, abs=1e-4)
    well(command("report", out, "--out", tmp_path / "report"))
    refused(command("train", "ner", *flags[:-1], files["dev"]), "dev.conll, line")


def test_a_sweep_chooses_among_neural_taggers(tmp_path, files):
    flags = [*TINY, *parts(files, "train", "dev", "test"), "--epochs", 2]
    out = tmp_path / "sweep"
    swept = told(
        command(
            "sweep", "ner", *flags, "--objective", "ml,raml", "--tau", "0.3", "--seed", "0",
            "--out", out, "--json",
        )
    )  # fmt: skip
    assert {choice["objective"] for choice in swept["choices"]} == {"ml", "raml"}


# --- recipes ----------------------------------------------------------------------------------------------


def test_what_depends_on_the_model_is_filled_in():
    linear, neural = (
        build(NerRecipe, parse_flags(NerRecipe, ["--model", name])) for name in ("linear", "neural")
    )
    assert (linear.training.epochs, linear.training.batch_size) == (1, 64)
    assert (neural.training.epochs, neural.training.batch_size) == (30, 32)
    assert (linear.optimizer.learning_rate, neural.optimizer.learning_rate) == (0.1, 0.002)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "linear"], "vectors, hidden, dropout and the other keys of network"),
        (["--c2", 1], "method, c2, iterations, tolerance and memory are of linear taggers"),
        (["--method", "adagrad"], "a neural one is trained by Adam"),
        (["--templates", "word[0]"], "templates and the other keys of features"),
        (["--all-possible-states"], "all_possible_states and all_possible_transitions"),
        (["--train", "x", "--folds", 3], "folds are for linear taggers: name a dev file"),
    ],
)
def test_keys_that_do_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)
