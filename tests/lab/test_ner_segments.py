"""Runs of taggers of segments, linear and neural: training, files, commands, what is refused."""

import numpy as np
import pytest
import torch

import softq
from ner_commands import evaluated, predictions, refused, told, well
from ner_commands import softq as command
from ner_runs import FEW, TASK, labels_of, make_files, parts, run, tagger_of, write
from small_runs import CPU
from softq import CRFTagger
from softq.errors import DataError, ModelError, RecipeError
from softq.formats.conll import read_conll
from softq.formats.tags import convert, faults
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.metrics import span_f1, span_statistics
from softq.neural import SequenceTagger, WordVocabulary
from softq.neural.tagger_settings import TaggerSettings
from softq.targets import target_of

pytestmark = pytest.mark.usefixtures("one_thread")
SEGMENTS = ["--space", "segments", "--max-segment", 7]
TINY = [
    *["--model", "neural", "--word-size", 12, "--character-size", 6, "--filters", 8],
    *["--hidden", 16, "--dropout", 0.1, "--learning-rate", 0.03, "--batch-size", 10],
]


def recipe(*flags):
    return build(NerRecipe, parse_flags(NerRecipe, list(map(str, flags))))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "ml", "--train-scheme", "bioes"],
        ["--objective", "sqdml", "--tau", 0.3, "--entity-weight", 3],
        [
            "--objective",
            "sqdml",
            "--tau",
            0.3,
            "--method",
            "adagrad",
            "--epochs",
            8,
            "--batch-size",
            10,
        ],
    ],
)
def test_a_run_learns_from_annotators_and_is_its_file(tmp_path, files, flags):
    row = run(tmp_path, "--train", files["crowd"], *parts(files, "dev", "test"), *SEGMENTS, *flags)
    model = tagger_of(tmp_path)
    assert model.tagger_.max_segment == 7
    for name in ("dev", "test"):
        words = [one.tokens for one in read_conll(files[name]).sentences]
        found = [convert(one, model.scheme_, "bio") for one in model.predict(words)]
        rows = span_statistics(labels_of(files[name]), found, "bio").rows
        assert row[name] == pytest.approx(float(span_f1(rows.sum(0))))
        assert not any(faults(one, "bio") for one in found)
    assert row["dev"] > 0.2


def test_a_run_is_the_estimator(tmp_path, files):
    """With the same options, on the same labels."""
    flags = ["--objective", "sqdml", "--tau", 0.3, "--tolerance", 1e-5]
    run(tmp_path, *parts(files, "train", "dev"), *SEGMENTS, *flags)
    sentences = read_conll(files["train"]).sentences
    words = [one.tokens for one in sentences]
    own = CRFTagger(
        space="segments",
        max_segment=7,
        objective="sqdml",
        tau=0.3,
        c2=0.5,
        templates=FEW[1].split(","),
        tolerance=1e-5,
    ).fit(words, [one.labels[0] for one in sentences])
    for one, other in zip(
        own.output_probabilities(words), tagger_of(tmp_path).output_probabilities(words), strict=True
    ):  # fmt: skip
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_a_file_in_iob1_gets_iob1_back(tmp_path, files):
    first = read_conll(files["train"]).sentences[:60]
    rows = (
        "".join(
            f"{word} {tag}\n"
            for word, tag in zip(s.tokens, convert(s.labels[0], "bio", "iob1"), strict=True)
        )
        for s in first
    )
    path = write(tmp_path / "iob1.conll", "\n".join(rows))
    well(
        command("train", "ner", *FEW, "--train", path, *SEGMENTS, "--c2", 0.1, "--out", tmp_path / "run")
    )  # fmt: skip
    model = CRFTagger.load(tmp_path / "run")
    assert (model.scheme_, model.file_scheme_) == ("bio", "iob1")
    labelled = tmp_path / "labelled.conll"
    predictions(tmp_path / "run", path, "--out", labelled)
    found = labels_of(labelled)
    assert any("I-" in tag for one in found for tag in one)
    assert not any(faults(one, "iob1") for one in found)
    assert evaluated(tmp_path / "run", path)["f1"] > 0.8


def test_commands_read_runs_of_segments(tmp_path, files):
    out = tmp_path / "run"
    flags = [*FEW, *SEGMENTS, "--c2", 3, "--tolerance", "1e-2"]
    well(command("train", "ner", *flags, *parts(files, "train", "dev"), "--out", out))
    found = told(command("tune", out, files["dev"], "--json"))
    weight = found["best"]["weight"]
    assert evaluated(out, files["dev"], "--entity-weight", weight)["f1"] == pytest.approx(
        found["best"]["f"]
    )
    assert found["best"]["f"] >= found["own"]["f"]
    low, high = (evaluated(out, files["test"], "--entity-weight", w)["recall"] for w in (0.125, 32))
    assert low < high
    lines = predictions(out, files["test"], "--probabilities").splitlines()
    assert all(0 < float(line.split()[-1]) <= 1 for line in lines if line)


def test_a_sweep_compares_the_spaces(tmp_path, files):
    flags = [*FEW, *parts(files, "train", "dev", "test"), "--tolerance", "1e-2"]
    swept = command(
        *["sweep", "ner", *flags, "--objective", "ml,sqdml", "--tau", "0.3"],
        *["--over", "space=chain,segments", "--out", tmp_path / "sweep"],
    )
    assert swept.exit_code == 0, swept.output
    models = (tmp_path / "sweep" / "runs").glob("*/best.safetensors")
    spaces = {CRFTagger.load(path).space for path in models}
    assert spaces == {"chain", "segments"}
    well(command("report", tmp_path / "sweep", "--out", tmp_path / "report.html"))
    assert "segments" in (tmp_path / "report.html").read_text(encoding="utf-8")


# --- neural -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "ml"],
        ["--objective", "raml", "--tau", 0.4, "--entity-weight", 3],
        ["--objective", "sqdml", "--tau", 0.4, "--train-scheme", "bioes"],
    ],
)
def test_the_loss_of_a_batch_is_the_cross_entropy_of_its_sentences(files, flags):
    wanted = recipe("--train", files["crowd"], *TINY, "--dropout", 0, *SEGMENTS, *flags)
    learner = TASK.learner([wanted], CPU)
    tagger, losses = learner.tagger, learner._losses
    tagger.encoder.rare.fill_(False)
    torch.nn.init.normal_(tagger.transitions, generator=torch.Generator().manual_seed(1))
    labelled, objective, spelled = label(wanted), wanted.objective, tagger.segments
    sentences = [one.tokens for one in read_conll(files["train"]).sentences]
    for number in (0, 3):
        total = 0.0
        for sentence in losses.sentences[number].tolist():
            p = tagger.train()([sentences[sentence]])
            refs = torch.from_numpy(labelled.references.labels[sentence]).unsqueeze(0)
            weights = torch.from_numpy(labelled.references.weights[sentence]).unsqueeze(0).float()
            refs = spelled.read(refs, torch.tensor([refs.shape[-1]]))
            reward = spelled.reward(wanted.annotations.entity_weight)
            target = target_of(objective.name, p, refs, objective.tau, reward, ref_weights=weights)
            total += float(softq.cross_entropy(target, p).detach())
        assert float(losses(number).detach()) == pytest.approx(total, rel=1e-4)


def test_a_neural_run_learns_and_its_commands_work(tmp_path, files):
    out = tmp_path / "run"
    flags = [*TINY, *SEGMENTS, "--objective", "sqdml", "--tau", 0.2, "--epochs", 8]
    well(command("train", "ner", *flags, *parts(files, "train", "dev"), "--out", out))
    own = evaluated(out, files["dev"])
    assert own["f1"] > 0.35
    found = told(command("tune", out, files["dev"], "--json"))
    assert found["own"]["f"] == pytest.approx(own["f1"])
    tagger = SequenceTagger.load(out)
    assert (tagger.max_segment, tagger.transitions.shape) == (7, tagger.segments.table_shape)
    words = [one.tokens for one in read_conll(files["test"]).sentences]
    assert not any(faults(one, "bio") for one in tagger.predict([*words, []]))
    for table in tagger.marginals(tagger.vocabulary.encode(words)):
        np.testing.assert_allclose(table.sum(-1), 1.0, atol=1e-4)


def test_a_neural_tagger_of_segments_in_a_file(tmp_path):
    words, labels = [["Ann", "ran"]], ["B-PER", "I-PER", "O"]
    small = TaggerSettings(word_size=4, character_size=2, filters=2, hidden=3)
    tagger = SequenceTagger(WordVocabulary.of(words), labels, small, scheme="bio", max_segment=3)
    assert isinstance(tagger(words), softq.SemiMarkov)
    tagger.save(tmp_path / "tagger.safetensors")
    again = SequenceTagger.load(tmp_path / "tagger.safetensors")
    assert again.max_segment == 3
    assert again.predict(words) == tagger.predict(words)
    notes = tagger.about() | {"max_segment": "3"}
    with pytest.raises(DataError, match="max_segment must be a whole number from 1, got '3'"):
        SequenceTagger.from_about(notes)
    with pytest.raises(ModelError, match="leave crf at True"):
        SequenceTagger(
            WordVocabulary.of(words), labels, TaggerSettings(crf=False), scheme="bio", max_segment=3
        )
    with pytest.raises(DataError, match="none that is I-PER"):
        SequenceTagger(WordVocabulary.of(words), ["B-PER", "O"], scheme="bio", max_segment=3)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--max-segment", 3], "max_segment is of segments"),
        ([*SEGMENTS, "--train-scheme", "iob1"], "segments are trained in bio or bioes"),
        ([*SEGMENTS, "--type-credit", 0.3], "type_credit is for labels"),
        ([*SEGMENTS, "--annotator-model", "sequential"], "estimates the truth label by label"),
        ([*SEGMENTS, "--max-segment", 0], "max_segment"),
        ([*SEGMENTS, *TINY, "--no-crf"], "leave out no-crf"),
    ],
)
def test_what_does_not_go_with_segments(flags, text):
    with pytest.raises(RecipeError, match=text):
        recipe(*flags)


def test_labels_of_no_scheme_are_no_segments(files, tmp_path):
    refused(
        command("train", "tag", "--train", files["train"], *SEGMENTS, "--out", tmp_path / "run"),
        "segments are entities, whose tags follow a scheme",
    )
