"""`softq train lm` toward rewards: without references, several, of a model; priors; distillation; what it refuses."""

import json
import shlex
import signal

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from lm_runs import SMALL, rows_of, train, train_two, write_files
from ner_commands import refused, softq, told, well
from softq.errors import RecipeError
from softq.integrations.transformers import distillation
from softq.integrations.transformers.run_callback import RunCallback
from softq.lab import report
from softq.lab.run import METRICS, RECIPE, TRAINING, RunFolder
from softq.lab.tasks import lm
from softq.lab.tasks.lm_data import read_rows
from softq.lab.tasks.lm_rewards import load_function

pytestmark = pytest.mark.usefixtures("one_thread")

REWARDS = """
def short(completions, prompts):
    return [-abs(len(c.split()) - len(p.split())) / 10 for c, p in zip(completions, prompts)]

def overlap(candidates, references):
    return [len({*c.split()} & {*r.split()}) / 10 for c, r in zip(candidates, references)]

def broken(completions):
    return [1 / len(c[:0]) for c in completions]

def nan(completions):
    return [float("nan") for _ in completions]

def few(completions):
    return []

NUMBER = 7
"""
ON_SAMPLES = "--objective raml --tau 0.5 --sampler model --no-add-references --size 3 --epochs 1"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("files"))
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    return train_two(files, tmp_path_factory.mktemp("runs"))


def on_prompts(files, runs, out, *flags, train_file="train.txt", dev_file="dev.txt"):
    """Training on prompts alone, from the run by likelihood."""
    data = ["--train", files / train_file, "--dev", files / dev_file, "--model", runs / "ml"]
    return softq("train", "lm", *data, *SMALL, *flags, "--out", out)


def weights_of(run):
    return AutoModelForSeq2SeqLM.from_pretrained(run / lm.BEST).state_dict()


def same_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


# --- rewards -------------------------------------------------------------------------------------


def test_prompts_alone_with_a_function_in_python(files, runs, tmp_path):
    flags = [*shlex.split(ON_SAMPLES), "--reward-function", f"{files / 'rewards.py'}:short"]
    facts = told(on_prompts(files, runs, tmp_path / "run", *flags, "--json"))
    (cell,) = facts["cells"]
    assert facts["signature"] == "callable:short"
    assert -1 < cell["reward"] <= 0
    assert "chrf" not in cell
    assert not same_weights(weights_of(runs / "ml"), weights_of(tmp_path / "run"))
    lines = RunFolder(tmp_path / "run").lines(TRAINING)
    assert [line["step"] for line in lines] == list(range(1, 7))
    for name in ("loss", "reward", "kl_base", "entropy", "completion_length", "distinct", "ess"):
        assert all(name in line for line in lines), name
    assert lines[0]["kl_base"] == pytest.approx(0, abs=1e-4)  # nothing has moved yet
    (dev,) = rows_of(tmp_path / "run")
    assert "dev_reward" in dev
    assert "dev_chrf" not in dev
    # the same from JSON lines that call it a prompt
    sources = (files / "train.txt").read_text(encoding="utf-8").splitlines()
    (files / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": source}) + "\n" for source in sources), encoding="utf-8"
    )
    again = told(
        on_prompts(files, runs, tmp_path / "again", *flags, "--json", train_file="prompts.jsonl")
    )
    assert {**again["cells"][0], "seconds": 0, "hash": 0} == {**cell, "seconds": 0, "hash": 0}


def test_development_references_show_what_is_not_trained_on(files, runs, tmp_path):
    flags = [*shlex.split(ON_SAMPLES), "--reward-function", f"{files / 'rewards.py'}:short"]
    well(on_prompts(files, runs, tmp_path / "run", *flags, dev_file="dev.tsv"))
    (dev,) = rows_of(tmp_path / "run")
    assert 0 <= dev["dev_chrf"] <= 100
    (section,) = report.read_sections(report.find_sources([tmp_path / "run"]))
    assert any(part.name == "toward-a-reward" for part in section.parts)


def test_several_rewards_have_weights(files, runs, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(runs / "ml" / lm.BEST)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    judge = BertForSequenceClassification(
        BertConfig(vocab_size=len(tokenizer), **sizes, num_attention_heads=2, num_labels=1)
    )
    judge.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    function = f"{files / 'rewards.py'}:overlap"
    flags = [
        *shlex.split(ON_SAMPLES),
        *["--reward", "words:chrf", "--reward-function", function],
        *["--reward-model", tmp_path / "judge", "--reward-weights", "1,0.5,0.25"],
        "--standardize-rewards",
    ]
    facts = told(
        on_prompts(
            files,
            runs,
            tmp_path / "run",
            *flags,
            "--json",
            train_file="train.tsv",
            dev_file="dev.tsv",
        )
    )
    first, second, third = facts["signature"].split("+")
    assert first.startswith("1*")
    assert second == "0.5*callable:overlap"
    assert third.startswith("0.25*callable:RewardModel(")
    (cell,) = facts["cells"]
    # the sum of what each of them is alone
    model, how = lm.open_text_model(str(tmp_path / "run"), "cpu")
    from softq.integrations.transformers.completion_rewards import RewardModel

    parts = ["words:chrf", load_function(function), RewardModel(judge, tokenizer)]
    alone = [
        lm.score(model, read_rows(files / "dev.tsv"), how, lm.as_reward(one, None, model.tokenizer))
        for one in parts
    ]
    values = [one.as_dict()["reward"] for one in alone]
    expected = values[0] + 0.5 * values[1] + 0.25 * values[2]
    assert cell["reward"] == pytest.approx(expected, abs=1e-5)


def test_completions_that_have_rewards_need_no_references(files, runs, tmp_path):
    sources = (files / "train.txt").read_text(encoding="utf-8").splitlines()
    rows = [
        {"prompt": source, "candidates": [source, "ula"], "candidate_rewards": [0.1, 0.9]}
        for source in sources
    ]
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = shlex.split("--objective raml --tau 0.1 --sampler dataset --epochs 1")
    given = {"train_file": path, "dev_file": "dev.tsv"}
    well(on_prompts(files, runs, tmp_path / "run", *flags, **given))
    lines = RunFolder(tmp_path / "run").lines(TRAINING)
    assert all(line["reward"] == pytest.approx(0.5) for line in lines)
    assert not same_weights(weights_of(runs / "ml"), weights_of(tmp_path / "run"))
    # another sampler has completions whose rewards nobody gave
    flags[-3] = "dataset+model"
    refused(on_prompts(files, runs, tmp_path / "none", *flags, **given), "row 1: the reward")


def test_a_function_is_found_by_module_or_file(files):
    assert load_function(f"{files / 'rewards.py'}:short")(["a b"], ["a"]) == [-0.1]
    assert load_function("math:fsum")([1, 2]) == 3


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("rewards.py", "must be package.module:name or FILE.py:name, got 'rewards.py'"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("no_such_package:f", "No module named 'no_such_package'"),
        ("rewards.py:shortt", "there is no shortt in rewards.py"),
        ("rewards.py:NUMBER", "expected a function, got int"),
        ("pathlib:Path", "expected a function, got a class"),
        ("syntax.py:f", "line 2: "),
        ("raises.py:f", "raises.py, line 2: ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_loaded(files, tmp_path, monkeypatch, where, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS, encoding="utf-8")
    (tmp_path / "syntax.py").write_text("x = 1\ndef f(:\n", encoding="utf-8")
    (tmp_path / "raises.py").write_text("x = 1\n1 / 0\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="reward_function") as error:
        load_function(where)
    assert text in str(error.value)


# --- priors and presets ------------------------------------------------------------------------------


def test_a_recipe_with_a_section_that_is_none(tmp_path):
    (tmp_path / "mine.toml").write_text('task = "lm"\nobjective = "raml"\n', encoding="utf-8")
    refused(softq("train", tmp_path / "mine.toml", "--dry-run"), "'objective' is a section")


def test_a_preset_is_written_out_in_the_recipe(tmp_path):
    printed = well(softq("train", "lm", "--preset", "tpo", "--model", "m", "--dry-run"))
    for line in (
        'name = "raml"',
        "tau = 1.0",
        'prior = "current"',
        "normalize_model = true",
        'sampler = "model"',
        "add_references = false",
        "standardize_rewards = true",
    ):
        assert f"\n{line}  #" in printed, line
    (tmp_path / "mine.toml").write_text(printed, encoding="utf-8")
    assert well(softq("train", tmp_path / "mine.toml", "--dry-run")) == printed
    other = well(softq("train", "lm", "--preset", "tpo", "--tau", 0.5, "--dry-run"))
    assert "\ntau = 0.5  #" in other
    refused(
        softq("train", "lm", "--preset", "dpg", "--prior", "current", "--dry-run"),
        "preset 'dpg' is prior='base', got prior='current'",
    )
    refused(softq("train", "lm", "--preset", "tpoo", "--dry-run"), "preset", "tpo")


def stop_at(monkeypatch, step):
    """Ctrl-C after so many steps, once."""
    as_ever = RunCallback.on_step_end

    def stop(self, args, state, control, **more):
        if state.global_step == step:
            signal.raise_signal(signal.SIGINT)
        as_ever(self, args, state, control, **more)

    monkeypatch.setattr(RunCallback, "on_step_end", stop)


@pytest.mark.parametrize(
    "flags",
    [
        "--preset tpo --size 3",
        "--objective raml --tau 0.5 --sampler model --prior base --lora 2 --reuse-samples 2"
        " --estimator importance --no-add-references --size 3 --length-normalization prior",
        "--objective sqdml --tau 0.2 --sampler dataset --distill-samples 3",
    ],
)
def test_a_stopped_run_ends_as_an_unbroken_one(flags, files, runs, tmp_path, monkeypatch):
    given = ["--model", runs / "ml", *shlex.split(flags), "--epochs", 2]
    with monkeypatch.context() as patch:
        stop_at(patch, 8)
        assert train(files, tmp_path / "broken", *given).exit_code == 130
    well(softq("train", "--resume", "--out", tmp_path / "broken"))
    well(train(files, tmp_path / "whole", *given))
    assert same_weights(weights_of(tmp_path / "broken"), weights_of(tmp_path / "whole"))
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "whole")
    steps = [line["step"] for line in RunFolder(tmp_path / "broken").lines(TRAINING)]
    assert steps == sorted(set(steps))


# --- distillation ----------------------------------------------------------------------------------------


def test_rows_are_distilled_anew_in_every_epoch(files, runs, tmp_path, monkeypatch):
    made, write = [], distillation.write_atomically

    def watched(path, content):
        made.append((path.name, content.decode()))
        write(path, content)

    monkeypatch.setattr(distillation, "write_atomically", watched)
    flags = shlex.split("--distill-samples 3 --distill-reward words:bleu --epochs 2")
    well(on_prompts(files, runs, tmp_path / "run", *flags, dev_file="dev.tsv"))
    assert [name for name, _ in made] == ["distilled-0.jsonl", "distilled-1.jsonl"]
    first, second = ([json.loads(line) for line in text.splitlines()] for _, text in made)
    assert all(row.keys() == {"source", "references"} for row in first)
    assert [row["source"] for row in first] == [row["source"] for row in second]
    assert [row["references"] for row in first] != [row["references"] for row in second]
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert len(rows_of(tmp_path / "run")) == 2


@pytest.mark.filterwarnings("default::softq.errors.DataWarning")
def test_distilled_rows_are_a_file_to_train_on(files, runs, tmp_path):
    out = tmp_path / "rows.jsonl"
    given = [runs / "ml", files / "train.txt", "--samples", 4, "--reward", "words:chrf"]
    facts = told(softq("data", "distill", *given, "--out", out, "--json"))
    assert facts["rows"] + facts["left_out"] == 48
    assert facts["reward"].startswith("characters:chrf")
    rows = read_rows(out)
    assert [row["candidate_rewards"] for row in rows] == [
        sorted(row["candidate_rewards"], reverse=True) for row in rows
    ]
    content = out.read_bytes()
    shown = well(softq("data", "distill", *given, "--out", out))
    assert out.read_bytes() == content
    assert "48 rows" in shown
    assert "4 samples each" in shown
    soft = shlex.split("--objective sqdml --tau 0.1 --sampler dataset --epochs 1")
    data = ["--train", out, "--dev", files / "dev.tsv", "--model", runs / "ml"]
    well(softq("train", "lm", *data, *SMALL, *soft, "--out", tmp_path / "soft"))
    # by ml the candidates are of no use, which is told
    hard = softq("train", "lm", *data, *SMALL, "--epochs", 1, "--out", tmp_path / "hard")
    assert hard.exit_code == 0
    assert "has candidates, which are used by raml and sqdml" in hard.stderr
    well(softq("data", "distill", *given, "--hard", "--out", tmp_path / "best.jsonl"))
    best = read_rows(tmp_path / "best.jsonl")
    assert best == [{name: row[name] for name in ("source", "references")} for row in rows]


def test_a_distillation_that_was_stopped_is_resumed(files, runs, tmp_path, monkeypatch):
    given = [runs / "ml", files / "train.txt", "--samples", 3, "--batch-size", 16]
    well(softq("data", "distill", *given, "--out", tmp_path / "whole.jsonl"))
    append = RunFolder.append_line

    def stop(folder, name, row):
        append(folder, name, row)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_line", stop)
        stopped = softq("data", "distill", *given, "--out", tmp_path / "out.jsonl")
    assert stopped.exit_code == 130
    assert "the same command continues" in stopped.stderr
    assert not (tmp_path / "out.jsonl").exists()
    refused(
        softq("data", "distill", *given, "--seed", 1, "--out", tmp_path / "out.jsonl"),
        "was begun and not finished with other seed",
    )
    facts = told(softq("data", "distill", *given, "--out", tmp_path / "out.jsonl", "--json"))
    assert facts["resumed_from"] == 16
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--out rows.txt", "expected a file called .jsonl"),
        ("--out r.jsonl --reward bleuu", "reward must be one of bleu"),
        ("--out r.jsonl --temperature 0", "must be positive"),
        ("--out r.jsonl --top-p 0", "must be positive"),
    ],
)
def test_what_is_not_distilled(files, runs, tmp_path, monkeypatch, flags, text):
    monkeypatch.chdir(tmp_path)
    refused(softq("data", "distill", runs / "ml", files / "dev.txt", *shlex.split(flags)), text)
    assert not list(tmp_path.iterdir())


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (f"{ON_SAMPLES} --reward-function R:broken", "'broken' raised ZeroDivisionError"),
        (f"{ON_SAMPLES} --reward-function R:nan", "must return finite numbers, got nan"),
        (f"{ON_SAMPLES} --reward-function R:few", "must return one number per completion"),
        (f"{ON_SAMPLES} --reward-function R:none", "there is no none in"),
        (f"{ON_SAMPLES}", "row 1: the reward sentence-bleu"),
        (
            f"{ON_SAMPLES} --reward-function R:overlap",
            "row 1: the reward callable:overlap compares",
        ),
        (f"{ON_SAMPLES} --reward-weights 1,2", "reward_weights must have a number for each of 1"),
        (f"{ON_SAMPLES} --reward-model /no/such/folder", "there is no folder /no/such/folder"),
        (
            "--objective raml --tau 1 --reward-function R:short",
            "sampler = ngram changes references",
        ),
        ("--reward-function R:short", "row 1: ml needs references, got none"),
        ("--objective raml --tau 1 --distill-reward bleu", "distill_reward is for distillation"),
        (f"{ON_SAMPLES} --prior-weight inf", "prior_weight must be finite"),
        ("--prior base --distill-samples 2", "prior 'base' is for raml and sqdml"),
        (f"{ON_SAMPLES} --best-by chrf --held-out bleu", "best_by = chrf needs held_out = chrf"),
        (
            f"{ON_SAMPLES} --reward-function R:short --best-by chrf",
            "dev.txt, row 1: best_by = chrf compares with references, got none",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_anything_is_written(
    files, runs, tmp_path, flags, text
):
    given = shlex.split(flags.replace("R:", f"{files / 'rewards.py'}:"))
    refused(on_prompts(files, runs, tmp_path / "run", *given), text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "one\n\nthree\n", "a.txt, line 2: expected a prompt, got an empty line"),
        ("a.txt", "", "a.txt is empty"),
        ("a.jsonl", '{"source": "a"}\n{"sources": "b"}\n', "a.jsonl, line 2: expected an object"),
        (
            "a.jsonl",
            '{"source": "a", "candidates": ["b"], "candidate_scores": [1]}\n',
            "a.jsonl, line 1: expected an object with source: a row has no column"
            " 'candidate_rewards', but one called 'candidate_scores'",
        ),
        ("a.jsonl", '{"prompt": 7}\n', "'source' must be a text, got 7"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(files, runs, tmp_path, name, content, text):
    (tmp_path / name).write_text(content, encoding="utf-8")
    flags = [*shlex.split(ON_SAMPLES), "--reward-function", f"{files / 'rewards.py'}:short"]
    refused(on_prompts(files, runs, tmp_path / "run", *flags, train_file=tmp_path / name), text)
    assert not (tmp_path / "run").exists()


def test_a_reward_that_fails_later_leaves_a_run_that_can_be_resumed(files, runs, tmp_path):
    (tmp_path / "late.py").write_text(
        "seen = []\ndef late(completions):\n    seen.append(1)\n"
        "    return [1 / (0 if len(seen) == 3 else 1) for _ in completions]\n",
        encoding="utf-8",
    )
    flags = [*shlex.split(ON_SAMPLES), "--reward-function", f"{tmp_path / 'late.py'}:late"]
    refused(on_prompts(files, runs, tmp_path / "run", *flags), "'late' raised ZeroDivisionError")
    assert (tmp_path / "run" / RECIPE).exists()
    assert not (tmp_path / "run" / METRICS).exists()
    assert not (tmp_path / "run" / lm.BEST).exists()
