"""Taggers on encoders of Transformers in runs: what they learn toward, how they resume and are used."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from test_crashes import broken_off_at_every_write

from ner_commands import evaluated, refused, told, well
from ner_commands import softq as command
from ner_runs import TASK, labels_of, make_files, parts
from small_runs import CPU, contents
from softq.errors import DataError, DependencyError, RecipeError
from softq.formats.conll import read_conll
from softq.formats.tags import convert, faults
from softq.integrations.transformers import WordTagger
from softq.integrations.transformers.saved import TransformersTagger
from softq.integrations.transformers.token_classification import TokenClassificationCollator
from softq.integrations.transformers.token_classification.losses import SentenceLosses
from softq.integrations.transformers.words.rows import TARGETS
from softq.lab.loop import NonFiniteLossError
from softq.lab.recipe import build, parse_flags
from softq.lab.run import BEST, RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.base import best_models
from softq.lab.tasks.ner_labels import label
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.linear.tagging import entity_reward
from softq.metrics import span_f1, span_statistics
from strange_files import change_notes, read_file
from tiny_models import use_bfloat16
from tiny_taggers import ENCODERS, save_encoder

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # DeBERTa's module, where it is imported
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]
QUICK = [
    *["--learning-rate", "0.005", "--head-learning-rate", "0.05", "--batch-size", "10"],
    *["--head-dropout", "0"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, files):
    sentences = (one for file in files.values() for one in read_conll(file).sentences)
    words = {word for one in sentences for word in one.tokens}
    return save_encoder(tmp_path_factory.mktemp("encoder") / "tiny", words)


def recipe(encoder, *flags, kind=NerRecipe):
    wanted = ["--model", f"transformers:{encoder}", *QUICK, *map(str, flags)]
    return build(kind, parse_flags(kind, wanted))


def run(out, encoder, *flags, task=TASK, **options):
    wanted = recipe(encoder, *flags, kind=task.recipe_type)
    return train_cells(task, [wanted], out, workers=CPU, **options)["cells"][0]


def tagger_of(out):
    return TransformersTagger.from_tensors(best_models(RunFolder(out)))


def predicted(out, path):
    return tagger_of(out).predict([one.tokens for one in read_conll(path).sentences])


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [["ml"], ["raml", "--tau", 0.3], ["sqdml", "--tau", 0.3]])
def test_a_run_learns_and_its_scores_are_those_of_its_predictions(
    tmp_path, files, encoder, objective
):
    row = run(
        tmp_path, encoder, *parts(files, "train", "dev", "test"), "--objective", *objective,
        "--epochs", 8,
    )  # fmt: skip
    for part in ("dev", "test"):
        statistics = span_statistics(
            labels_of(files[part]), predicted(tmp_path, files[part]), "bio"
        )
        assert row[part] == row[f"{part}_f1"] == float(span_f1(statistics.rows.sum(0)))
    assert row["dev"] > 0.35
    kls = [line["kl"] for line in RunFolder(tmp_path).lines("metrics.jsonl")]
    assert kls[-1] < kls[0] * 0.7


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "ml"],
        ["--objective", "ml", "--references", "vote", "--head", "independent"],
        ["--objective", "raml", "--tau", 0.4, "--weights", "dawid-skene", "--entity-weight", 3],
        ["--objective", "sqdml", "--tau", 0.4, "--type-credit", 0.5, "--constraints", "target"],
        ["--objective", "sqdml", "--tau", 0.4, "--constraints", "model"],
        ["--objective", "raml", "--tau", 0.4, "--pooling", "mean", "--max-length", 7],
    ],
)
def test_the_loss_of_a_batch_is_that_of_the_trainer(files, encoder, flags):
    wanted = recipe(encoder, "--train", files["crowd"], *flags)
    learner = TASK.learner([wanted], CPU)
    losses, tagger = learner._losses, learner.tagger.train()
    generator, core = torch.Generator().manual_seed(1), tagger.core
    for weight in core.head_parameters():
        torch.nn.init.normal_(weight, std=0.5, generator=generator)
    labelled, annotations, objective = label(wanted), wanted.annotations, wanted.objective
    reward = entity_reward(labelled.names, annotations.entity_weight, annotations.type_credit)
    criterion = SentenceLosses(objective.name, objective.tau, reward)
    collator = TokenClassificationCollator(
        tagger.tokenizer, tagger.labels, pooling=wanted.encoder.pooling, max_length=wanted.encoder.max_length
    )  # fmt: skip
    sentences = [one.tokens for one in read_conll(files["train"]).sentences]
    for number in (0, 3):
        rows = [
            {
                "tokens": list(sentences[i]),
                "annotations": labelled.references.labels[i].tolist(),
                "weights": labelled.references.weights[i].tolist(),
            }
            for i in losses.sentences[number].tolist()
        ]
        batch = collator(rows)
        if "--max-length" in flags and number == 0:  # the longest
            assert len(batch["input_ids"]) > len(rows)
        targets = batch.pop(TARGETS)
        batch.pop("labels")
        theirs = core(**batch, criterion=lambda *of, to=targets: criterion(*of, to)).loss.sum()
        ours = losses(number)
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
        gradients = [
            torch.autograd.grad(loss, list(core.parameters()), allow_unused=True)
            for loss in (ours, theirs)
        ]
        for mine, other in zip(*gradients, strict=True):
            if other is not None:
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_the_truth_with_a_tagger_in_the_loop_is_a_target_too(tmp_path, files, encoder):
    flags = ["--annotator-model", "dawid-skene", "--rounds", 1, "--loop-folds", 2]
    small = ["--templates", "word[0],word[-1],shape[0]"]
    data = ["--train", files["crowd"], "--dev", files["dev"], "--epochs", 6]
    assert run(tmp_path, encoder, *flags, *small, *data)["dev"] > 0.3


def test_labels_that_are_known_in_part(tmp_path, files, encoder):
    text = files["train"].read_text(encoding="utf-8")
    train = tmp_path / "partial.conll"
    train.write_text(text.replace("\tO\n", "\t?\n", 40), encoding="utf-8")
    assert "?" in train.read_text(encoding="utf-8")
    flags = ["--partial-labels", "--rounds", 1, "--loop-folds", 2, "--templates", "word[0]"]
    data = ["--train", train, "--dev", files["dev"], "--epochs", 6]
    assert run(tmp_path / "run", encoder, *flags, *data)["dev"] > 0.3


def test_labels_of_any_kind(tmp_path, files, encoder):
    row = run(tmp_path, encoder, *parts(files, "train", "dev"), "--epochs", 2, task=TASKS["tag"])
    true = [one for labels in labels_of(files["dev"]) for one in labels]
    found = [one for labels in predicted(tmp_path, files["dev"]) for one in labels]
    right = sum(a == b for a, b in zip(true, found, strict=True))
    assert row["dev"] == pytest.approx(right / len(true), abs=1e-9)


def test_another_scheme_than_that_of_the_files(tmp_path, files, encoder):
    row = run(tmp_path, encoder, *parts(files, "train"), "--train-scheme", "bioes", "--epochs", 6)
    tagger = tagger_of(tmp_path)
    assert (tagger.scheme, tagger.file_scheme) == ("bioes", "bio")
    assert row["dev"] == row["test"] > 0.2
    assert not any(faults(labels, "bioes") for labels in predicted(tmp_path, files["dev"]))
    path = files["dev"]
    written = [
        line.split("\t")[-1] for line in well(command("predict", tmp_path, path)).split("\n")
    ]
    own = [convert(labels, "bioes", "bio") for labels in predicted(tmp_path, path)]
    assert [tag for tag in written if tag] == [tag for labels in own for tag in labels]


# --- the encoder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_run_needs_nothing_but_itself(tmp_path, files, kind):
    """RoBERTa's and ModernBERT's tokenizers are changed to tell words apart, and stay so."""
    folder = save_encoder(tmp_path / "encoder", kind=kind)
    flags = ["--train", files["dev"], "--epochs", 1, "--pooling", "last", "--stride", 1]
    learner = TASK.learner([recipe(folder, *flags, "--max-length", 9)], CPU)
    out = tmp_path / "run"
    run(out, folder, *flags, "--max-length", 9)
    shutil.rmtree(folder)
    tagger = TransformersTagger.load(out)
    sentences = [one.tokens for one in read_conll(files["test"]).sentences]
    sentences.append(sentences[0] * 9)  # windows
    found = tagger.encode(sentences)
    assert [one.windows for one in found.sentences] == [
        one.windows for one in learner.tagger.encode(sentences).sentences
    ]
    assert len(found.sentences[-1].windows) > 5
    tagger.save(tmp_path / "again")
    again = TransformersTagger.load(tmp_path / "again")
    sure = tagger.predict_marginals(sentences)
    assert again.predict_marginals(sentences) == sure
    names = {**read_file(out / BEST)[0]}
    assert not any(str(folder).encode() in bytes(names["about"].numpy()) for _ in (0,))
    again.save_pretrained(tmp_path / "transformers")
    opened = WordTagger.from_pretrained(tmp_path / "transformers", max_length=9, stride=1)
    tagged = opened.predict(sentences)
    assert [one.labels for one in tagged] == tagger.predict(sentences)
    for one, rows in zip(tagged, sure, strict=True):
        own = [row[label] for row, label in zip(rows, one.labels, strict=True)]
        assert one.confidences == pytest.approx(own, abs=1e-5)


def test_low_rank_adapters_are_all_that_is_trained_of_an_encoder(tmp_path, files, encoder):
    pytest.importorskip("peft")
    flags = [*parts(files, "train", "dev"), "--lora", 2, "--epochs", 2]
    learner = TASK.learner([recipe(encoder, *flags)], CPU)
    before = {name: value.clone() for name, value in learner.tagger.state_dict().items()}
    learner.train(0, 0, 3, [True])
    after = learner.tagger.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("lora_B" in name for name in moved)
    assert all("lora_" in name or "encoder" not in name for name in moved)
    row = run(tmp_path, encoder, *flags)
    statistics = span_statistics(labels_of(files["dev"]), predicted(tmp_path, files["dev"]), "bio")
    assert row["dev"] == float(span_f1(statistics.rows.sum(0)))


def test_checkpointed_activations_change_nothing(files, encoder):
    losses = []
    for flags in ([], ["--gradient-checkpointing"]):
        learner = TASK.learner([recipe(encoder, *parts(files, "train"), *flags)], CPU)
        learner.train(0, 0, 4, [True])
        losses.append(learner.end_epoch([True])["loss"][0])
        assert learner.tagger.core.encoder.is_gradient_checkpointing == bool(flags)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_bfloat16_is_for_the_encoder_in_training(monkeypatch, files, encoder):
    use_bfloat16(monkeypatch)
    learners = [
        TASK.learner([recipe(encoder, *parts(files, "train"), *flags)], CPU)
        for flags in ([], ["--bf16"])
    ]
    scores = []
    for learner in learners:
        batch = learner._losses._batches[0]
        trained = learner.tagger.train().scores(batch).detach()
        scores.append((trained, learner.tagger.eval().scores(batch).detach()))
        assert all(weight.dtype == torch.float32 for weight in learner.tagger.parameters())
    assert torch.equal(scores[0][1], scores[1][1])
    assert not torch.equal(scores[0][0], scores[1][0])
    torch.testing.assert_close(scores[0][0], scores[1][0], atol=0.05, rtol=0.05)


def test_each_part_has_its_learning_rate(files, encoder):
    flags = [*parts(files, "train"), "--warmup", 0.25, "--epochs", 4, "--weight-decay", 0.5]
    learner = TASK.learner([recipe(encoder, *flags)], CPU)
    optimizer, core = learner._optimizer, learner.tagger.core
    head = {id(weight) for weight in core.head_parameters()}
    shrinking = set()
    for group in optimizer.param_groups:
        ours = {id(weight) in head for weight in group["params"]}
        assert ours == {float(group["lr"]) == pytest.approx(0.05)}
        if group["weight_decay"]:
            assert group["weight_decay"] == 0.5
            shrinking |= {id(weight) for weight in group["params"]}
    of_norms = {
        id(w) for name, w in core.named_parameters() if "norm" in name.lower() or "bias" in name
    }
    assert shrinking == {id(weight) for weight in core.parameters() if weight.dim() > 1}
    assert not shrinking & of_norms
    rates = []
    for epoch in range(4):
        learner.train(epoch, 0, learner.steps, [True])
        rates.append(float(optimizer.param_groups[0]["lr"]))
    steps = 4 * learner.steps
    done = [(learner.steps * (epoch + 1) - 1) / steps for epoch in range(4)]
    wanted = [0.005 * (d / 0.25 if d < 0.25 else (1 - d) / 0.75) for d in done]
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


# --- interruptions ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_events")
def test_a_run_that_is_broken_off_ends_the_same(tmp_path, files):
    encoder = save_encoder(tmp_path / "encoder", dropout=0.2)
    flags = ["--epochs", 2, "--batch-size", 20, "--checkpoint-every", 2, "--objective", "raml"]
    flags += ["--train", files["dev"], "--dev", files["test"], "--tau", 0.3, "--head-dropout", 0.1]

    def job(out):
        run(out, encoder, *flags, resume=True)

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 8


def test_a_loss_that_is_not_finite_stops_the_run(files, encoder):
    learner = TASK.learner([recipe(encoder, *parts(files, "train"))], CPU)
    with torch.no_grad():
        learner.tagger.core.classifier.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 0 the loss is nan"):
        learner.train(0, 0, 1, [True])


# --- commands ---------------------------------------------------------------------------------------------


def test_commands_take_it_as_any_other_tagger(tmp_path, files, encoder):
    flags = ["--model", f"transformers:{encoder}", *QUICK, *parts(files, "train", "dev", "test")]
    out = tmp_path / "run"
    done = command(
        "train", "ner", *flags, "--epochs", 3, "--decoding", "mbr", "--out", out, "--json"
    )
    (cell,) = json.loads(done.stdout)["cells"]
    assert evaluated(out, files["test"])["f1"] == pytest.approx(cell["test"], abs=1e-9)
    rows = [line.split("\t") for line in well(command("predict", out, files["test"])).split("\n")]
    tagger = TransformersTagger.load(out)
    sentences = [one.tokens for one in read_conll(files["test"]).sentences]
    labels = [x for one in tagger.predict(sentences, "mbr") for x in one]
    assert [row[-1] for row in rows if len(row) > 1] == labels
    sure = well(command("predict", out, files["test"], "--probabilities"))
    chances = [float(line.split("\t")[-1]) for line in sure.splitlines() if line]
    best = [max(row.values()) for one in tagger.predict_marginals(sentences) for row in one]
    assert chances == pytest.approx(best, abs=1e-4)
    assert "entity weight" in well(command("tune", out, files["dev"]))
    well(command("report", out, "--out", tmp_path / "report.html"))


def test_a_sweep_chooses_among_temperatures(tmp_path, files, encoder):
    flags = ["--model", f"transformers:{encoder}", *QUICK, *parts(files, "train", "dev", "test")]
    swept = told(
        command(
            "sweep", "ner", *flags, "--epochs", "1", "--objective", "ml,raml", "--tau", "0.3,0.6",
            "--seed", "0", "--out", tmp_path / "sweep", "--json",
        )
    )  # fmt: skip
    assert {choice["objective"] for choice in swept["choices"]} == {"ml", "raml"}
    assert swept["cells"] == 3


# --- what does not fit ------------------------------------------------------------------------------------


def test_damaged_files_are_refused_in_a_line(tmp_path, files, encoder):
    out = tmp_path / "run"
    run(out, encoder, "--train", files["dev"], "--epochs", 1)
    whole = (out / BEST).read_bytes()

    def damage(change):
        (out / BEST).write_bytes(whole)
        change_notes(out / BEST, change)
        return command("predict", out, files["dev"])

    def put(*path, value):
        def change(whole):
            (*inner, last), notes = path, whole
            for name in inner:
                notes = notes[name]
            if value is None:
                del notes[last]
            else:
                notes[last] = value
            return whole

        return change

    for path, value, text in [
        (("settings", "encoder", "hidden_size"), 32, "expected the parameter core."),
        (("settings", "encoder", "num_hidden_layers"), 10**9, "parameters of 1000000000 layers"),
        (("settings", "encoder", "model_type"), "ours", "Transformers cannot load the model"),
        (("settings", "pooling"), "all", "pooling must be one of"),
        (("settings",), [], "expected an object of JSON in settings"),
        (("tokenizer", "tokenizer.json"), "{", "Transformers cannot load the tokenizer"),
        (("tokenizer", "tokenizer.json"), None, "Transformers cannot load the tokenizer"),
        (("tokenizer", "tokenizer.json"), 3, "tokenizer"),
        (("max_length",), 1, "max_length less the special tokens"),
        (("decoding",), "best", "decoding must be one of"),
        (("file_scheme",), "b", "file_scheme must be one of"),
    ]:
        refused(damage(put(*path, value=value)), "is not a Transformers tagger of softq", text)
    refused(damage(put("format", value="softq tagger transformers 9")), "expected the format")
    (out / BEST).write_bytes(whole[:-100])
    refused(command("predict", out, files["dev"]), "is not a model of softq")


def test_encoders_that_will_not_do(tmp_path, files, encoder, monkeypatch):
    train = ["train", "ner", "--train", files["dev"], "--out", tmp_path / "run"]
    nowhere = tmp_path / "nowhere"
    refused(command(*train, "--model", f"transformers:{nowhere}"), f"there is no folder {nowhere}")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(command(*train, "--model", f"transformers:{empty}"), f"cannot load {empty}")
    with pytest.raises(DataError, match="stride must be less than the 3 subwords"):
        TASK.learner(
            [recipe(encoder, "--train", files["dev"], "--max-length", 5, "--stride", 3)], CPU
        )
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("softq.integrations")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(DependencyError, match="needs Transformers"):
        TASK.learner([recipe(encoder, "--train", files["dev"])], CPU)


# --- recipes ----------------------------------------------------------------------------------------------


def test_what_depends_on_the_model_is_filled_in():
    found = build(NerRecipe, parse_flags(NerRecipe, ["--model", "transformers:bert"]))
    assert (found.training.epochs, found.training.batch_size) == (5, 16)
    assert found.optimizer.learning_rate == 3e-5
    assert (found.encoder.head_learning_rate, found.encoder.warmup) == (1e-3, 0.1)
    assert (found.model.kind, found.model.pretrained) == ("transformers", "bert")
    assert found.model.by_kind("features", "an LSTM") == "the encoder bert"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "linear", "--lora", 4], "the other keys of encoder are of encoders of"),
        (
            ["--model", "neural", "--pooling", "mean"],
            "the other keys of encoder are of encoders of",
        ),
        (["--hidden", 10], "keys of network are of neural taggers"),
        (["--c2", 1], "method, c2, iterations, tolerance and memory are of linear taggers"),
        (["--templates", "word[0]"], "templates and the other keys of features"),
        (["--all-possible-states"], "all_possible_states and all_possible_transitions"),
        (["--train", "x", "--folds", 3], "folds are for linear taggers: name a dev file"),
        (["--model", "transformers:"], "model must be linear, neural or transformers:PATH"),
        (["--model", "nural"], "got 'nural'; did you mean 'neural'"),
        (["--pooling", "max"], "'first', 'mean', 'last', got 'max'"),
        (["--warmup", 1], "warmup must be at least 0 and less than 1"),
    ],
)
def test_keys_that_do_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        build(NerRecipe, parse_flags(NerRecipe, ["--model", "transformers:x", *map(str, flags)]))
