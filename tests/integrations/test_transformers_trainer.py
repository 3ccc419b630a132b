"""Whole runs of the trainer: the curve of plain Trainer, restarts, precision, adapters, images."""

import json
import logging
from types import SimpleNamespace

import peft
import pytest
import torch
from torch.utils.data import IterableDataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)

from softq.errors import ModelError, RecipeError, RewardError
from softq.integrations.transformers import RewardAugmentedTrainer
from tiny_models import (
    CAUSAL,
    END,
    NAMES,
    PAD,
    START,
    VOCAB,
    Watched,
    arguments,
    random_rows,
    step,
    tiny,
    tokenizer,
    trainer_for,
    use_bfloat16,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Workers of a data loader are forked, beside the idle threads of trainers before; Python from
    # 3.12 on warns of that.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def plain_collator(name):
    """What people write by hand: rows padded, labels only on what is to be said."""

    def collate(rows):
        sources, targets = [row["input_ids"] for row in rows], [row["labels"][0] for row in rows]
        if name in CAUSAL:
            targets = [
                [-100] * len(source) + target
                for source, target in zip(sources, targets, strict=True)
            ]
            sources = [source + row["labels"][0] for source, row in zip(sources, rows, strict=True)]
        batch = {
            "input_ids": sources,
            "attention_mask": [[1] * len(source) for source in sources],
            "labels": targets,
        }
        pads = {"input_ids": PAD, "attention_mask": 0, "labels": -100}
        return {
            key: torch.nn.utils.rnn.pad_sequence(
                list(map(torch.tensor, value)), batch_first=True, padding_value=pads[key]
            )
            for key, value in batch.items()
        }

    return collate


class PlainTrainer(Watched, Trainer):
    """Transformers' own Trainer, with nothing printed and nothing saved."""

    def __init__(self, model, folder, settings, **more):
        quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
        quiet |= {"logging_strategy": "no", "remove_unused_columns": False}
        quiet |= {"label_names": ["labels"], "learning_rate": 1e-2}
        super().__init__(model, TrainingArguments(str(folder), **quiet | settings), **more)


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ml_has_the_curve_of_plain_trainer(name, accumulated, tmp_path):
    rows = random_rows(11)
    settings = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": accumulated,
        "per_device_train_batch_size": 2,
        "seed": 3,
    }
    ours = trainer_for(
        tiny(name, dropout=0.2), tmp_path / "ours", rows, objective="ml", tau=None, **settings
    )
    ours.train()
    theirs = PlainTrainer(
        tiny(name, dropout=0.2),
        tmp_path / "plain",
        settings,
        train_dataset=rows,
        data_collator=plain_collator(name),
    )
    theirs.train()
    assert len(ours.losses) == 12
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-6)
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def doubled(outputs, labels, num_items_in_batch=None):
    """Twice the loss of an encoder-decoder."""
    return 2 * torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2"])
def test_ml_with_smoothed_labels_has_the_curve_of_plain_trainer(name, tmp_path):
    rows = random_rows(5)
    settings = {"label_smoothing_factor": 0.2, "max_steps": 3, "learning_rate": 1e-2, "seed": 3}
    settings |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 2)
    ours = trainer_for(
        tiny(name), tmp_path / "ours", rows, evaluate=rows, objective="ml", tau=None, **settings
    )
    ours.train()

    def collate(few):
        batch = plain_collator(name)(few)
        if name not in CAUSAL:
            shifted = tiny(name).prepare_decoder_input_ids_from_labels(labels=batch["labels"])
            batch["decoder_input_ids"] = shifted
        return batch

    theirs = PlainTrainer(
        tiny(name),
        tmp_path / "plain",
        settings,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collate,
    )
    theirs.train()
    assert len(ours.losses) == 3
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-6)
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate()["eval_loss"], abs=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_ml_with_a_loss_of_the_users(name, tmp_path):
    rows = random_rows(3)
    more = [
        RewardAugmentedTrainer(
            tiny(name), arguments(tmp_path, objective="ml"), compute_loss_func=own
        )
        for own in (None, doubled)
    ]
    losses = [step(trainer, rows)[0] for trainer in more]
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-5)
    for trainer in (
        more[1],
        trainer_for(tiny(name), tmp_path, objective="ml", label_smoothing_factor=0.1),
    ):
        with pytest.raises(RecipeError, match="label_smoothing_factor and compute_loss_func are"):
            step(trainer, random_rows(3, references=2))


@pytest.mark.parametrize(
    ("name", "objective", "kinds"),
    [("marian", "sqdml", "ngram+recombined"), ("llama", "raml", "edit")],
)
def test_it_learns(name, objective, kinds, tmp_path):
    rows = random_rows(6, references=2)
    trainer = trainer_for(
        tiny(name),
        tmp_path,
        rows,
        objective=objective,
        candidates=kinds,
        tau=0.2,
        num_train_epochs=12,
    )
    trainer.train()
    assert sum(trainer.losses[-4:]) < 0.7 * sum(trainer.losses[:4])


def test_accumulated_batches_are_one_large_batch(tmp_path):
    rows = [row | {"candidates": [[5, 6, END], [7, END]]} for row in random_rows(4)]
    settings = {"candidates": "dataset", "max_steps": 1, "optim": "sgd", "learning_rate": 1.0}
    one = trainer_for(tiny("gpt2"), tmp_path, rows, per_device_train_batch_size=4, **settings)
    two = trainer_for(
        tiny("gpt2"),
        tmp_path,
        rows,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        **settings,
    )
    for trainer in (one, two):
        trainer.train()
    assert len(two.losses) == 4
    assert sum(two.losses) == pytest.approx(one.losses[0], abs=1e-6)
    for mine, other in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kinds", "workers"),
    [("t5", "ngram", 0), ("t5", "ngram", 2), ("gpt2", "model+edit", 0)],
)
def test_a_run_that_goes_on_is_as_if_it_had_not_been_broken(name, kinds, workers, tmp_path):
    settings = {
        "candidates": kinds,
        "k": 3,
        "num_train_epochs": 3,
        "save_steps": 5,
        "dataloader_num_workers": workers,
    }
    # four steps of an epoch: the checkpoint lies within the second
    rows = random_rows(13, references=2)
    whole = trainer_for(tiny(name, dropout=0.1), tmp_path, rows, save_strategy="steps", **settings)
    whole.train()
    again = trainer_for(
        tiny(name, seed=9, dropout=0.1), tmp_path, rows, save_strategy="steps", **settings
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert len(whole.losses) == 12
    assert again.losses == pytest.approx(whole.losses[5:], abs=1e-6)


class Keep:
    """Keeps the candidates of every batch, as the collator makes them."""

    def __init__(self, trainer):
        self.made, self.epochs, make = [], [], trainer.data_collator.make

        def watched(rows, *drawn):
            target = make(rows, *drawn)
            self.made.append((rows, target.scored.tokens.tolist()))
            self.epochs.append(trainer.data_collator.epoch)
            return target

        trainer.data_collator.make = watched


def test_candidates_are_new_in_each_epoch_and_the_same_in_a_second_run(tmp_path):
    made = []
    for _ in range(2):
        trainer = trainer_for(tiny("t5"), tmp_path, random_rows(2), num_train_epochs=3)
        keep = Keep(trainer)
        trainer.train()
        made.append(keep.made)
        assert keep.epochs == [0, 1, 2]
    assert made[0] == made[1]
    assert made[0][0][1] != made[0][1][1] != made[0][2][1]
    same, other = (
        trainer_for(tiny("t5"), tmp_path, seed=seed).data_collator.make(made[0][0][0])
        for seed in (42, 43)
    )
    assert same.scored.tokens.tolist() == made[0][0][1] != other.scored.tokens.tolist()


def test_workers_that_live_on_draw_anew_too(tmp_path):
    losses = []
    for settings in ({}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}):
        trainer = trainer_for(
            tiny("t5"), tmp_path, random_rows(8), num_train_epochs=2, learning_rate=0.0, **settings
        )
        trainer.train()
        losses.append(trainer.losses)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_texts_written_on_the_way_change_nothing(tmp_path):
    rows = random_rows(8)
    losses = []
    for settings in ({"eval_generate": False}, {"eval_mbr_samples": 2}):
        often = {
            "num_train_epochs": 2,
            "candidates": "ngram+model",
            "eval_strategy": "steps",
            "eval_steps": 1,
        }
        trainer = trainer_for(
            tiny("bart", dropout=0.1), tmp_path, rows, evaluate=rows[:3], **often, **settings
        )
        trainer.train()
        losses.append(trainer.losses)
    assert sum("eval_mbr_gap" in row for row in trainer.state.log_history) == 4
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]


def test_an_error_in_the_background_comes_up(tmp_path):
    def broken(candidates, references):
        raise ArithmeticError("no such metric")

    trainer = trainer_for(
        tiny("t5"), tmp_path, random_rows(4), reward=broken, words=tokenizer(), max_steps=2
    )
    with pytest.raises(ArithmeticError, match="no such metric"):
        trainer.train()


def test_an_error_in_a_worker_comes_up(tmp_path):
    rows = [row | {"candidates": None} for row in random_rows(4)]
    trainer = trainer_for(
        tiny("t5"), tmp_path, rows, candidates="dataset", max_steps=1, dataloader_num_workers=1
    )
    with pytest.raises(Exception, match="needs the column 'candidates'"):
        trainer.train()


@pytest.mark.filterwarnings(
    "ignore:`torch.cpu.amp.autocast:FutureWarning"
)  # older versions call it by that name
@pytest.mark.parametrize("name", ["bart", "llama"])
def test_training_in_bfloat16_with_checkpointing(name, tmp_path, monkeypatch, caplog):
    use_bfloat16(monkeypatch)
    rows = [row | {"candidates": [[5, 6, END], [7, END]]} for row in random_rows(4)]
    low = {
        "bf16": True,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }
    losses = []
    for settings in ({}, low):
        trainer = trainer_for(
            tiny(name),
            tmp_path,
            rows,
            objective="sqdml",
            candidates="dataset",
            max_steps=3,
            **settings,
        )
        with caplog.at_level(logging.WARNING, "softq"):
            trainer.train()
        losses.append(trainer.losses)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert losses[0] != losses[1]
    assert not [record for record in caplog.records if record.name.startswith("softq")]


@pytest.mark.parametrize(
    ("name", "modules", "task"),
    [("t5", ["q", "v"], "SEQ_2_SEQ_LM"), ("llama", ["q_proj", "v_proj"], None)],
)
def test_adapters_alone_are_trained_and_saved(name, modules, task, tmp_path):
    base = tiny(name)
    before = {key: value.clone() for key, value in base.state_dict().items()}
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=modules, task_type=task))
    rows = random_rows(4)
    trainer = trainer_for(
        model,
        tmp_path,
        rows,
        candidates="ngram+model",
        max_steps=3,
        evaluate=rows,
        learning_rate=0.1,
    )
    trainer.train()
    for key, value in before.items():
        inside = base.state_dict()
        kept = inside.get(key, inside.get(key.replace(".weight", ".base_layer.weight")))
        assert torch.equal(kept, value), key
    assert any(bool(value.any()) for key, value in model.named_parameters() if "lora_B" in key)
    scores = trainer.evaluate()
    assert {"eval_loss", "eval_reward"} <= scores.keys()
    trainer.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    with open(tmp_path / "saved" / "adapter_config.json") as file:
        assert json.load(file)["r"] == 2
    loaded = peft.PeftModel.from_pretrained(tiny(name), tmp_path / "saved")
    other = trainer_for(loaded, tmp_path, rows, evaluate=rows)
    assert other.evaluate()["eval_loss"] == pytest.approx(scores["eval_loss"], abs=1e-6)


def test_images(tmp_path):
    sizes = {
        "hidden_size": 16,
        "hidden_dropout_prob": 0.0,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    torch.manual_seed(0)
    encoder = ViTModel(
        ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes), add_pooling_layer=False
    )
    small = {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 32,
        "vocab_size": VOCAB,
        "bos_token_id": START,
    }
    small |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    decoder = GPT2LMHeadModel(
        GPT2Config(
            **small, add_cross_attention=True, is_decoder=True, pad_token_id=PAD, eos_token_id=END
        )
    )
    model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    for holder in (model.config, model.generation_config):
        holder.pad_token_id, holder.eos_token_id, holder.decoder_start_token_id = PAD, END, START
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    rows = [
        {"picture": image, "labels": row["labels"]}
        for image, row in zip(images, random_rows(3, references=3), strict=True)
    ]
    seen = []

    def collator(few):
        seen.extend(sorted(row) for row in few)
        return {"pixel_values": torch.stack([row["picture"] for row in few])}

    trainer = trainer_for(
        model,
        tmp_path,
        rows,
        collator=collator,
        objective="sqdml",
        evaluate=rows,
        max_steps=25,
        learning_rate=2e-2,
    )
    trainer.train()
    assert seen[0] == ["picture"]
    assert trainer.losses[-1] < 0.8 * trainer.losses[0]
    assert trainer.evaluate()["eval_reward"] > 0
    alone = [step(trainer, rows)[0]]
    trainer._shared = False
    alone.append(step(trainer, rows)[0])
    assert alone[0] == pytest.approx(alone[1], abs=1e-5)


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    message = (
        "2 GPUs in one process would tear candidates from their sources: start one process per GPU"
        " with"
    )
    with pytest.raises(ModelError, match=message):
        trainer_for(tiny("t5"), tmp_path, random_rows(2))
    trainer = trainer_for(tiny("t5"), tmp_path, objective="ml")
    step(trainer, random_rows(2))
    with pytest.raises(ModelError, match=message):
        step(trainer, random_rows(2, references=2))


def test_weights_in_pieces_are_refused(tmp_path, monkeypatch):
    rows, message = (
        random_rows(2, references=2),
        "is not supported: it gathers the weights only while the wrapped model runs, .*; use DDP",
    )
    trainer = trainer_for(tiny("t5"), tmp_path)
    trainer.is_fsdp_enabled = True
    with pytest.raises(ModelError, match=f"FSDP {message}"):
        step(trainer, rows)
    trainer.is_fsdp_enabled = False
    for stage in (2, 3):
        plugin = SimpleNamespace(zero_stage=stage)
        monkeypatch.setattr(type(trainer.accelerator.state), "deepspeed_plugin", plugin)
        if stage == 2:
            step(trainer, rows)
            continue
        with pytest.raises(ModelError, match=f"DeepSpeed ZeRO-3 {message}"):
            step(trainer, rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.2),
        ("no_repeat_ngram_size", 3),
        ("min_length", 2),
        ("typical_p", 0.9),
        ("min_p", 0.1),
    ],
)
def test_importance_weights_need_draws_as_the_model_scores_them(name, value, tmp_path):
    model = tiny("gpt2")
    settings = {"candidates": "model", "estimator": "importance"}
    for neutral in (None, 1.0 if name in ("repetition_penalty", "typical_p") else 0):
        setattr(model.generation_config, name, neutral)
        trainer_for(model, tmp_path, **settings)
    setattr(model.generation_config, name, value)
    model.generation_config.suppress_tokens = [5]
    named = ", ".join(sorted([name, "suppress_tokens"]))
    with pytest.raises(
        RecipeError,
        match=f"need draws from the model as it is: unset {named} in model.generation_config",
    ):
        trainer_for(model, tmp_path, **settings)
    trainer_for(model, tmp_path, candidates="model")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(random_rows(5))


def test_streamed_rows(tmp_path):
    trainer = trainer_for(tiny("t5"), tmp_path, Stream(), max_steps=4, evaluate=Stream())
    trainer.train()
    assert len(trainer.losses) == 4
    assert 0 <= trainer.evaluate()["eval_reward"] <= 1


def test_what_a_trainer_refuses(tmp_path):
    with pytest.raises(RecipeError, match="args must be RewardAugmentedArguments, got"):
        RewardAugmentedTrainer(tiny("t5"), TrainingArguments(str(tmp_path), report_to=[]))
    with pytest.raises(ModelError, match="expected a Transformers model, got NoneType"):
        RewardAugmentedTrainer(None, arguments(tmp_path))
    with pytest.raises(ModelError, match="expected a Transformers model that generates text, got"):
        trainer_for(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(RecipeError, match="a causal model's rows are collated by softq;"):
        trainer_for(tiny("gpt2"), tmp_path, collator=list)
    with pytest.raises(RecipeError, match="compute_loss_func is for ml: the loss of raml is the"):
        RewardAugmentedTrainer(tiny("t5"), arguments(tmp_path), compute_loss_func=print)
    prompted = peft.get_peft_model(
        tiny("gpt2"), peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    )
    with pytest.raises(ModelError, match="adapters that put something before the prompt are not"):
        trainer_for(prompted, tmp_path)
    with pytest.raises(RewardError, match="the reward 'chrf' needs a tokenizer to make text: give"):
        RewardAugmentedTrainer(tiny("t5"), arguments(tmp_path, reward="chrf"))


@pytest.mark.parametrize(("ends", "wanted"), [(END, END), ([7, 6], 6)])
def test_a_model_without_padding_is_padded_with_its_end(ends, wanted, tmp_path):
    model = tiny("gpt2")
    for holder in (model.config, model.generation_config):
        holder.pad_token_id, holder.eos_token_id = None, ends
    assert trainer_for(model, tmp_path).data_collator.pad == wanted
    for holder in (model.config, model.generation_config):
        holder.eos_token_id = None
    with pytest.raises(ModelError, match="neither tokenizer nor model names a padding token: set"):
        trainer_for(model, tmp_path)


@pytest.mark.parametrize("trial", [False, True])
def test_models_may_be_made_by_a_function(trial, tmp_path):
    rows = random_rows(8, references=2)
    losses = []
    for given in (
        {"model_init": (lambda trial: tiny("t5")) if trial else (lambda: tiny("t5"))},
        {"model": tiny("t5")},
    ):
        trainer = RewardAugmentedTrainer(
            args=arguments(tmp_path, max_steps=2), train_dataset=rows, **given
        )
        losses.append(trainer.train().training_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
