"""Parsers on encoders of Transformers in runs: what they learn toward, how they resume and are used."""

import json
import shutil

import pytest
import torch

from ner_commands import evaluated, refused, told, well
from ner_commands import softq as command
from parsing_runs import TASK, crosses, make_files, parts
from small_runs import CPU, contents
from softq.errors import RecipeError, StoppedError
from softq.formats.conllu import read_conllu
from softq.integrations.transformers.dependency_parsing import DependencyModel, TreeLosses
from softq.integrations.transformers.saved import TransformersParser
from softq.integrations.transformers.words.rows import TARGETS
from softq.lab.recipe import build, parse_flags
from softq.lab.run import BEST, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.base import best_models
from softq.lab.tasks.parsing import learnable
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.metrics import attachment_statistics, las, uas
from strange_files import change_notes
from tiny_models import use_bfloat16
from tiny_taggers import save_encoder

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = [
    *["--learning-rate", "0.01", "--head-learning-rate", "0.02", "--batch-size", "6"],
    *["--head-dropout", "0", "--arc-size", "16", "--relation-size", "8"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, files):
    words = {word for file in files.values() for one in read_conllu(file) for word in one.forms}
    return save_encoder(tmp_path_factory.mktemp("encoder") / "tiny", words)


def recipe(encoder, *flags):
    wanted = ["--model", f"transformers:{encoder}", *QUICK, *map(str, flags)]
    return build(ParsingRecipe, parse_flags(ParsingRecipe, wanted))


def run(out, encoder, *flags, **options):
    return train_cells(TASK, [recipe(encoder, *flags)], out, workers=CPU, **options)["cells"][0]


@pytest.mark.parametrize(
    "flags", [["ml"], ["raml", "--tau", 0.3], ["sqdml", "--tau", 0.3, "--spanning"]]
)
def test_a_run_learns_and_its_scores_are_those_of_its_trees(tmp_path, files, encoder, flags):
    files = files | {"dev": files["train"]}  # an encoder of random weights knows nothing of others
    row = run(
        tmp_path, encoder, *parts(files, "train", "dev", "test"), "--epochs", 8, "--objective",
        *flags,
    )  # fmt: skip
    parser = TransformersParser.from_tensors(best_models(RunFolder(tmp_path)))
    assert parser.spanning is ("--spanning" in flags)
    for part in ("dev", "test"):
        gold = read_conllu(files[part])
        found = parser.parse(gold)
        sums = attachment_statistics(
            gold, [one.heads for one in found], [one.relations for one in found]
        ).sum(0)
        assert row[part] == row[f"{part}_uas"] == float(uas(sums))
        assert row[f"{part}_las"] == float(las(sums))
        assert parser.spanning or not any(crosses(one.heads) for one in found)
    assert row["dev"] > 0.4
    assert row["dev_las"] > 0.2
    assert (row["lifted"] > 0) is ("--spanning" not in flags)
    kls = [line["kl"] for line in RunFolder(tmp_path).lines("metrics.jsonl")]
    assert kls[-1] < kls[0] * 0.7


@pytest.mark.parametrize(
    "flags",
    [["ml"], ["raml", "--tau", 0.4, "--spanning"], ["sqdml", "--tau", 0.4, "--max-length", 7]],
)
def test_the_loss_of_a_batch_is_that_of_the_trainer(files, encoder, flags):
    wanted = recipe(
        encoder, *parts(files, "train"), "--references", files["other"], "--objective", *flags
    )
    learner = TASK.learner([wanted], CPU)
    parser, losses = learner.parser.train(), learner._losses
    core, generator = parser.core, torch.Generator().manual_seed(0)
    for weight in core.head_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    known = learnable(wanted.data, wanted.model.spanning)
    criterion = TreeLosses(wanted.objective.name, wanted.objective.tau)
    collator = core.collator(parser.tokenizer, max_length=wanted.encoder.max_length)
    for number in (0, 4):
        rows = [
            {
                "tokens": list(known.sentences[i].forms),
                "annotations": [
                    {"heads": heads.tolist(), "deprels": list(relations)}
                    for heads, relations in zip(
                        known.trees.heads[i], known.trees.relations[i], strict=True
                    )
                ],
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


@pytest.mark.usefixtures("no_events")
def test_a_run_that_is_stopped_ends_the_same(tmp_path, files):
    encoder = save_encoder(tmp_path / "encoder", dropout=0.2)
    flags = ["--epochs", 2, "--batch-size", 10, "--objective", "raml", "--tau", 0.3]
    flags += ["--train", files["dev"], "--dev", files["test"], "--head-dropout", 0.2]
    run(tmp_path / "whole", encoder, *flags)
    asked = iter([False, True])  # in the first epoch
    with pytest.raises(StoppedError, match="in epoch 1 of 2 at step 1"):
        run(tmp_path / "stopped", encoder, *flags, also_stop=lambda: next(asked))
    run(tmp_path / "stopped", encoder, *flags, resume=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_commands_take_it_as_any_other_parser(tmp_path, files, encoder):
    copied = shutil.copytree(encoder, tmp_path / "copied")
    flags = ["--model", f"transformers:{copied}", *QUICK, "--epochs", 3, "--pooling", "mean"]
    out, data = tmp_path / "run", parts(files, "train", "dev", "test")
    done = command("train", "parsing", *flags, *data, "--decoding", "mbr", "--out", out, "--json")
    (cell,) = json.loads(done.stdout)["cells"]
    shutil.rmtree(copied)  # the run holds all of it
    assert evaluated(out, files["test"])["uas"] == pytest.approx(cell["test"], abs=1e-9)
    parser = TransformersParser.load(out)
    (tmp_path / "parsed.conllu").write_text(well(command("predict", out, files["test"])), "utf-8")
    found = read_conllu(tmp_path / "parsed.conllu")
    parses = parser.parse(read_conllu(files["test"]))
    assert [(one.heads, one.relations) for one in found] == [
        (one.heads, one.relations) for one in parses
    ]
    assert "p=0." in well(command("predict", out, files["test"], "--probabilities"))
    assert "\t0\t" in well(command("predict", out, stdin="so it goes\n"))  # words are enough
    well(command("report", out, "--out", tmp_path / "report.html"))
    parser.save_pretrained(tmp_path / "transformers")
    again = DependencyModel.from_pretrained(tmp_path / "transformers").eval()
    assert again.config.relations == parser.relations
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, parser.core.state_dict()[name])
    whole = (out / BEST).read_bytes()
    for change, text in [
        (lambda old: {"settings": old["settings"] | {"arc_size": 9}}, "expected the parameter"),
        (lambda old: {"settings": {"relations": ["a"]}}, "Transformers cannot load the model"),
        (lambda old: {"decoding": "best"}, "decoding must be one of"),
    ]:
        (out / BEST).write_bytes(whole)
        change_notes(out / BEST, lambda notes, to=change: notes | to(notes))
        refused(command("predict", out, files["dev"]), "Transformers parser of softq", text)


def test_a_sweep_chooses_among_temperatures(tmp_path, files, encoder):
    flags = ["--model", f"transformers:{encoder}", *QUICK, *parts(files, "train", "dev", "test")]
    swept = told(
        command(
            "sweep", "parsing", *flags, "--epochs", "1", "--objective", "ml,raml", "--tau", "0.3",
            "--seed", "0", "--out", tmp_path / "sweep", "--json",
        )
    )  # fmt: skip
    assert {choice["objective"] for choice in swept["choices"]} == {"ml", "raml"}


def test_bfloat16_is_for_the_encoder_in_training(monkeypatch, files, encoder):
    use_bfloat16(monkeypatch)
    learners = [
        TASK.learner([recipe(encoder, *parts(files, "train"), *flags)], CPU)
        for flags in ([], ["--bf16"])
    ]
    for learner in learners:
        learner.train(0, 0, 3, [True])
    (plain,), (half,) = (learner.end_epoch([True])["loss"] for learner in learners)
    assert plain != half
    assert half == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "neural", "--lora", 2], "the other keys of encoder are of encoders of"),
        (["--tag-size", 4], "keys of network are of neural parsers"),
        (["--c2", 2], "method, relation_learning_rate, c2, iterations, tolerance and memory"),
        (["--bits", 12], "templates and the other keys of features are of linear parsers"),
        (["--model", "transformer:x"], "model must be linear, neural or transformers:PATH"),
    ],
)
def test_keys_that_do_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe("x", *flags)


def test_what_depends_on_the_model_is_filled_in():
    found = build(ParsingRecipe, parse_flags(ParsingRecipe, ["--model", "transformers:a/b"]))
    assert (found.optimizer.learning_rate, found.training.epochs) == (3e-5, 10)
    assert found.encoder.head_dropout == 0.33
