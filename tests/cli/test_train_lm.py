"""`softq train lm`: what it trains, where it stops and goes on, what it refuses."""

import gzip
import json
import runpy
import shlex
import signal
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from lm_runs import SCRATCH, SMALL, rows_of, train, train_two, write_files
from ner_commands import predictions, refused, softq, told, well
from softq.errors import DataError, ModelError
from softq.integrations.transformers.generation import TextModel
from softq.integrations.transformers.loading import SIZES, Loaded, save_model, train_tokenizer
from softq.integrations.transformers.run_callback import RunCallback, last_checkpoint
from softq.lab.run import METRICS, RESULT, RunFolder
from softq.lab.tasks import lm, lm_recipe
from softq.lab.tasks.lm_data import read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = "--from-scratch t5-tiny"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    return train_two(files, tmp_path_factory.mktemp("runs"))


def test_a_run_learns_and_leaves_a_model_that_transformers_read(runs):
    found = rows_of(runs / "ml")
    assert [row["step"] for row in found] == [6, 12, 18]
    assert found[-1]["dev_loss"] < found[0]["dev_loss"]
    # nothing pickled is left
    assert not [path for path in (runs / "ml").rglob("*") if path.suffix in (".pt", ".pth", ".bin")]
    model, tokenizer = (
        kind.from_pretrained(runs / "ml" / lm.BEST)
        for kind in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    assert model.config.vocab_size == len(tokenizer) <= 120
    assert model.config.dropout_rate == 0.05
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]


def test_raml_goes_on_from_likelihood_in_the_same_tokens(runs):
    assert (runs / "raml" / lm.BEST / "tokenizer.json").read_bytes() == (
        runs / "ml" / lm.BEST / "tokenizer.json"
    ).read_bytes()
    before, after = (
        AutoModelForSeq2SeqLM.from_pretrained(runs / name / lm.BEST).state_dict()
        for name in ("ml", "raml")
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)
    # a thousandth at each of 6 steps at most: it did not start anew
    assert all((before[name] - after[name]).abs().max() < 0.01 for name in before)
    (cell,) = RunFolder(runs / "raml").result()["cells"]
    assert cell["mbr_gap"] == pytest.approx(cell["mbr_reward"] - cell["reward"])


def train_and_stop(monkeypatch, at, *given):
    """A training that Ctrl-C ends after so many steps."""
    as_ever = RunCallback.on_step_end

    def stop(self, args, state, control, **more):
        if state.global_step == at:
            signal.raise_signal(signal.SIGINT)
        as_ever(self, args, state, control, **more)

    with monkeypatch.context() as patch:
        patch.setattr(RunCallback, "on_step_end", stop)
        return train(*given)


def test_a_stopped_run_ends_as_an_unbroken_one(runs, files, tmp_path, monkeypatch):
    # in the midst of an epoch
    stopped = train_and_stop(monkeypatch, 8, files, tmp_path / "run", *SCRATCH)
    assert stopped.exit_code == 130
    assert stopped.stderr == "softq: stopped at step 8 of 18: add --resume to continue\n"
    assert not (tmp_path / "run" / lm.BEST).exists()
    refused(
        softq("predict", tmp_path / "run", files / "test.txt"),
        "holds no model of softq train lm, or none yet",
        "--resume",
    )
    (tmp_path / "run" / "checkpoints" / "checkpoint-9").mkdir()  # that a kill has left
    assert last_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-8"
    RunFolder(tmp_path / "run").append_line(METRICS, {"step": 12, "epoch": 2.0})  # likewise
    well(softq("train", "--resume", "--out", tmp_path / "run"))
    assert rows_of(tmp_path / "run") == rows_of(runs / "ml")
    broken, unbroken = (
        AutoModelForSeq2SeqLM.from_pretrained(run / lm.BEST).state_dict()
        for run in (tmp_path / "run", runs / "ml")
    )
    assert all(torch.equal(broken[name], unbroken[name]) for name in unbroken)
    results = [
        json.loads((run / RESULT).read_text())["cells"][0]
        for run in (tmp_path / "run", runs / "ml")
    ]
    assert {**results[0], "seconds": 0} == {**results[1], "seconds": 0}
    # it is finished
    assert told(softq("train", "--resume", "--out", tmp_path / "run", "--json"))["cells"] == [
        results[0]
    ]


def test_a_stopped_run_goes_on_with_the_same_batches_of_similar_length(
    files, tmp_path, monkeypatch
):
    flags = [
        *SCRATCH,
        *shlex.split(
            "--dropout 0.1 --epochs 2 --batch-size 2 --group-by-length --optimizer adafactor --eval-every 48"
        ),
    ]
    # in the midst of the second epoch
    assert train_and_stop(monkeypatch, 30, files, tmp_path / "broken", *flags).exit_code == 130
    well(softq("train", "--resume", "--out", tmp_path / "broken"))
    well(train(files, tmp_path / "unbroken", *flags))
    broken, unbroken = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / run / lm.BEST).state_dict()
        for run in ("broken", "unbroken")
    )
    assert all(torch.equal(broken[name], unbroken[name]) for name in unbroken)


def test_training_stops_when_nothing_gets_better(files, runs, tmp_path):
    flags = [
        "--model",
        runs / "ml" / lm.BEST,
        *shlex.split("--epochs 5 --eval-every 2 --patience 1 --learning-rate 1e-12"),
    ]
    well(train(files, tmp_path / "run", *flags))
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [2, 4]


def test_sources_of_similar_length_share_a_batch(files, tmp_path, monkeypatch):
    trainers, make = [], lm._trainer
    monkeypatch.setattr(
        lm, "_trainer", lambda *given: trainers.append(make(*given)) or trainers[-1]
    )
    for name, flags in (("any", []), ("similar", ["--group-by-length"])):
        well(train(files, tmp_path / name, *SCRATCH, "--epochs", 1, "--batch-size", 2, *flags))
    places = [
        sum(batch["input_ids"].numel() for batch in trainer.get_train_dataloader())
        for trainer in trainers
    ]
    assert places[1] < 0.95 * places[0]


def test_adafactor_moves_weights_in_proportion_to_their_size(files, tmp_path, monkeypatch):
    trainers, make = [], lm._trainer
    monkeypatch.setattr(
        lm, "_trainer", lambda *given: trainers.append(make(*given)) or trainers[-1]
    )
    before = []
    monkeypatch.setattr(
        RunCallback,
        "on_step_begin",
        lambda self, args, state, control, model, **more: before.append(gauge(model)),
    )

    def gauge(model):
        return {
            name: model.get_parameter(name).detach().clone()
            for name in ("shared.weight", "encoder.block.0.layer.1.DenseReluDense.wo.weight")
        }

    flags = shlex.split("--optimizer adafactor --learning-rate 0.02 --epochs 1 --weight-decay 1e-4")
    well(train(files, tmp_path / "run", *SCRATCH, *flags))
    optimizer = trainers[0].optimizer.optimizer
    assert isinstance(optimizer, torch.optim.Adafactor)
    # for weights in bfloat16 too
    assert optimizer.defaults["eps"][0] == torch.finfo(torch.float32).eps
    kept = {
        id(weight)
        for name, weight in trainers[0].model.named_parameters()
        if "layer_norm" in name or "bias" in name
    }
    assert {
        id(weight)
        for group in optimizer.param_groups
        if not group["weight_decay"]
        for weight in group["params"]
    } == kept
    steps = {
        name: (after - value).norm() / value.norm()
        for (name, value), after in zip(before[1].items(), before[2].values(), strict=True)
    }
    assert all(0.25 * 0.02 < step < 0.02 for step in steps.values()), steps


def test_candidates_with_rewards_of_ones_own_and_a_causal_model_with_adapters(tmp_path, files):
    rows = read_rows(files / "train.tsv")[:16]
    rows = [
        row
        | {"candidates": [*row["references"], "no"], "candidate_rewards": [1.0, 0.5, -1], "id": 7}
        for row in rows
    ]
    with gzip.open(tmp_path / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    model, tokenizer = tiny_gpt2([row["source"] for row in rows])
    save_model(model, tokenizer, tmp_path / "gpt2")
    flags = [
        "--model",
        tmp_path / "gpt2",
        *shlex.split("--lora 2 --objective sqdml --tau 0.5 --sampler dataset --epochs 1"),
    ]
    flags += [
        "--train",
        tmp_path / "train.jsonl.gz",
        *SMALL,
        *["--learning-rate", "0.1", "--best-by", "loss", "--out"],
        tmp_path / "run",
    ]
    assert told(softq("train", "lm", *flags, "--json"))["cells"][0]["tau"] == 0.5
    tuned = GPT2LMHeadModel.from_pretrained(tmp_path / "run" / lm.BEST).state_dict()
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, tuned[name])
    }
    assert changed
    # what adapters are merged into
    assert all("weight" in name and ("attn" in name or "mlp" in name) for name in changed)
    assert len(predictions(tmp_path / "run", files / "test.txt").splitlines()) == 12


def tiny_gpt2(texts):
    tokenizer = train_tokenizer(texts, 60)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}
    return Loaded(
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer), **sizes, bos_token_id=1, eos_token_id=1, pad_token_id=0
            )
        ),
        tokenizer,
    )


def test_a_second_stage_reads_what_the_first_one_did(runs, files, tmp_path, monkeypatch):
    seen = []
    as_ever = lm.RewardAugmentedTrainer

    def trainer(*arguments, train_dataset, **more):
        seen.append(
            [
                more["processing_class"].decode(row["input_ids"], skip_special_tokens=True)
                for row in train_dataset
            ]
        )
        return as_ever(*arguments, train_dataset=train_dataset, **more)

    monkeypatch.setattr(lm, "RewardAugmentedTrainer", trainer)
    once = ["--model", runs / "ml" / lm.BEST, "--epochs", 1]  # whose template is the plain one
    shown = well(
        train(
            files, tmp_path / "first", *once, "--template", "ula\\n tir {} ula", "--max-source", 90
        )
    )
    assert "as in" not in shown
    # the new line, as TOML writes it
    assert 'template = "ula\\n tir {} ula"\n' in (tmp_path / "first" / "recipe.toml").read_text()
    again = ["--model", tmp_path / "first", "--epochs", 1]
    shown = well(train(files, tmp_path / "second", *again))
    assert (
        f'as in {tmp_path / "first"}: template = "ula\\n tir {{}} ula", max_source = 90\n' in shown
    )
    assert seen[0] == seen[1]
    assert all(text.split()[1] == "tir" and text.endswith(" ula") for text in seen[0])
    recipes = [lm_recipe.read_recipe(tmp_path / name).data for name in ("first", "second")]
    assert recipes[0] == recipes[1]
    told(train(files, tmp_path / "third", *again, "--template", "tir {}", "--json"))
    assert all(text.startswith("tir ") for text in seen[2])
    assert lm_recipe.read_recipe(tmp_path / "third" / lm.BEST).data.max_source == 90
    assert lm.open_text_model(str(tmp_path / "third"), "cpu")[0].template == "tir {}"


def test_only_the_run_of_a_model_tells_how_it_was_trained(runs, monkeypatch):
    monkeypatch.chdir(runs / "ml")
    assert lm_recipe.read_recipe(Path("best")) == lm_recipe.read_recipe(runs / "ml")
    # a hub's name, and no folder of the run one stands in
    assert lm_recipe.read_recipe(Path("gpt2")) is None


def test_what_people_keep_in_a_folder_stays_there(files, tmp_path, monkeypatch):
    loaded = tiny_gpt2(["ula tir"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years", encoding="utf-8")
    for folder in (tmp_path / "full", tmp_path / "full" / "thesis.tex"):
        with pytest.raises(ModelError, match="is not empty: choose a folder that is new"):
            save_model(*loaded, folder)
    assert (tmp_path / "full" / "thesis.tex").read_text(encoding="utf-8") == "years"
    (tmp_path / "empty").mkdir()
    save_model(*loaded, tmp_path / "empty")
    before = sorted((tmp_path / "empty").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(loaded.tokenizer, "save_pretrained", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_model(*loaded, tmp_path / "empty", replace=True)
    # the old model stays until the new one is whole
    assert sorted((tmp_path / "empty").iterdir()) == before
    save_model(*loaded, tmp_path / "empty", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    (tmp_path / "run" / lm.BEST).mkdir(parents=True)
    (tmp_path / "run" / lm.BEST / "photo.jpg").touch()
    refused(train(files, tmp_path / "run", *SCRATCH), "best is not empty")
    assert (tmp_path / "run" / lm.BEST / "photo.jpg").exists()


@pytest.mark.parametrize("name", ["finetune_t5.py", "finetune_causal.py"])
def test_examples_refuse_such_a_folder_before_they_train(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.tex").touch()
    monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path)])
    with pytest.raises(ModelError, match="is not empty: choose a folder that is new"):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_references_are_cut_into_tokens_as_training_cuts_them(runs):
    model, _ = lm.open_text_model(str(runs / "ml"), "cpu")
    unknown = model.tokenizer.unk_token_id
    numbers = model.token_ids("ula \N{SNOWMAN} tir")
    assert numbers == model.tokenizer(text_target="ula \N{SNOWMAN} tir")["input_ids"][:-1]
    assert unknown in numbers
    # as Marian's: two languages
    model.tokenizer = lambda text=None, text_target=None: {
        "input_ids": [5, 1] if text_target else [4, 1]
    }
    assert model.token_ids("x") == [5]
    causal = TextModel(tiny_gpt2(["ula tir"]))
    assert causal.token_ids("ula") == causal.tokenizer("ula", add_special_tokens=False)["input_ids"]


def test_names_that_a_recipe_repeats_are_those_of_the_trainer():
    assert get_args(lm_recipe.Size) == ("", *SIZES)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (f"{TINY} --template translate", "template must have {} once, where the source goes, got"),
        (f"{TINY} --template '{{}} {{}}'", "template must have {} once"),
        ("", "name a model to start from (--model PATH), or a size to start with (--from-scratch"),
        ("--from-scratch t5-tinny", "did you mean 't5-tiny'?"),
        ("--epoch 3", "there is no flag --epoch, did you mean --epochs?"),
        (f"{TINY} --model a", "choose one"),
        ("--model /no/such/folder", "there is no folder /no/such/folder"),
        (f"{TINY} --objective raml", "raml needs a temperature"),
        (f"{TINY} --objective raml --tau 1 --sampler ngrams", "sampler must be one of ngram"),
        (f"{TINY} --objective raml --tau 1 --sampler dataset", "train.tsv, row 1: sampler ="),
        (f"{TINY} --reward blue", "reward must be one of bleu"),
        (f"{TINY} --objective raml --tau 1 --temperature-scaled", "temperature_scaled"),
        (f"{TINY} --lora 4", "lora adapts a model"),
        (f"{TINY} --dropout 1", "dropout must"),
        (f"{TINY} --top-p 2", "top_p must"),
        (f"{TINY} --train '' --dev x", "name the training file as well"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_anything_is_written(files, tmp_path, flags, text):
    refused(train(files, tmp_path / "run", *shlex.split(flags)), text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "expected JSON in the line"),
        ("[]", "must be a mapping with 'source' and 'references', got list"),
        ('{"references": "b"}', "needs 'source', got ['references']"),
        ('{"source": "a", "references": []}', "needs 'references'"),
        ('{"source": ["a"], "references": ["b"]}', "'source' must be a text, got ['a']"),
        ('{"source": "a", "references": "b", "candidates": "c"}', "must be a list of texts, got"),
        (
            '{"source": "a", "references": "b", "candidates": ["c"], "candidate_rewards": [1, 2]}',
            "a value for each of 1 candidates, got [1, 2]",
        ),
        *(
            (
                (
                    '{"source": "a", "references": ["b", "c"], "candidates": ["d"],'
                    f' "candidate_rewards": [{bad}]}}'
                ),
                text,
            )
            for bad, text in (
                *((bad, "finite numbers") for bad in ("null", '"1"', "true", "[1, 1e999]", "{}")),
                ("NaN", "NaN, which JSON has not"),
                ("[1, 2, 3]", "one number, or one for each of 2 references, got 3"),
            )
        ),
    ],
)
def test_bad_lines_are_named(tmp_path, line, text):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"source": "a", "references": ["b", "c"]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"bad\.jsonl, line 2: expected an object with source and references"
    ) as error:
        read_rows(path)
    assert text in str(error.value)


def test_rewards_are_numbers_or_one_for_each_reference(tmp_path):
    row = {
        "source": "a",
        "references": ["b", "c"],
        "candidates": ["d", "e"],
        "candidate_rewards": [0.5, [1, -2.0]],
    }
    (tmp_path / "good.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert read_rows(tmp_path / "good.jsonl") == [row]


def test_a_run_is_of_one_process(files, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(train(files, tmp_path / "run", *SCRATCH), "trains in one process", "accelerate launch")
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_told(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [
        name
        for name in sys.modules
        if name.startswith("softq.integrations") or name == "softq.lab.tasks.lm"
    ]:
        monkeypatch.delitem(sys.modules, name)
    refused(train(files, tmp_path / "run", *SCRATCH), "pip install 'softq[transformers]'")


def test_a_run_is_not_written_over_and_goes_on_with_its_own_recipe(runs, files):
    refused(train(files, runs / "ml", *SCRATCH), "already holds a run")
    refused(
        train(files, runs / "ml", *SCRATCH, "--seed", 9, "--resume"),
        "was started with another recipe",
    )


def test_a_recipe_is_printed_and_read_back(tmp_path, files):
    printed = well(softq("train", "lm", "--from-scratch", "t5-tiny", "--epochs", 9, "--dry-run"))
    (tmp_path / "mine.toml").write_text(printed, encoding="utf-8")
    again = well(
        softq("train", tmp_path / "mine.toml", "--dry-run", "--tau", 0.5, "--objective", "sqdml")
    )
    assert [line for line in again.splitlines() if line not in printed.splitlines()] == [
        'name = "sqdml"  # ml (eq. 2), raml (eq. 4) or sqdml (eq. 14)',
        "tau = 0.5  # temperature of raml and sqdml",
    ]
    shown = well(softq("train", "lm", "--help"))
    assert all(text in shown for text in ("Transformers", "--from-scratch", "--mbr-samples"))
