"""`softq train lm`: a model of 🤗 Transformers, trained toward a reward into a run folder."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from softq.errors import ModelError, RunError, SoftqError, StoppedError
from softq.integrations.transformers import (
    RewardAugmentedArguments,
    RewardAugmentedTrainer,
    RowEncoder,
)
from softq.integrations.transformers.candidates import batch_seed
from softq.integrations.transformers.distillation import EveryEpoch, distill_to
from softq.integrations.transformers.generation import TextModel, Writing, mean_rewards
from softq.integrations.transformers.loading import (
    Loaded,
    load_model,
    make_t5,
    quiet,
    refuse_full,
    save_model,
    train_tokenizer,
    with_adapters,
)
from softq.integrations.transformers.rewards import as_reward, with_sources
from softq.integrations.transformers.run_callback import RunCallback, last_checkpoint
from softq.lab.loop import Watcher
from softq.lab.processes import Interrupts, Workers, find_device
from softq.lab.recipe import to_toml
from softq.lab.run import RECIPE, RESULT, CellRow, RunFolder, as_json
from softq.lab.tasks.base import describe_cell
from softq.lab.tasks.lm_data import Rows, read_parts, read_rows
from softq.lab.tasks.lm_recipe import BEST, TASK, LmRecipe, LmTraining, read_recipe
from softq.lab.tasks.lm_rewards import check_references, given_rewards
from softq.lab.tasks.lm_scores import score
from softq.rewards import Reward

_CHECKPOINTS = "checkpoints"
_FIXED: dict[str, Any] = {  # arguments that no key of a recipe sets
    "eval_strategy": "steps",
    "save_strategy": "steps",
    # the best and the last, which with 1 would be removed at the end, and so when training was
    # asked to stop
    "save_total_limit": 2,
    "save_safetensors": True,  # later versions have nothing else
    "load_best_model_at_end": True,
    "logging_nan_inf_filter": False,
    "prediction_loss_only": True,
    "disable_tqdm": True,
    "report_to": [],
}


def train_lm(
    recipe: LmRecipe, out: Path, *, resume: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Train one model into a run folder and return its result.

    A run that is finished already only returns it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError(
            "softq train lm trains in one process; several processes or GPUs:"
            " RewardAugmentedTrainer under accelerate launch"
        )
    run, described = RunFolder(out), describe_cell(TASK, recipe)
    device = find_device(recipe.training.device)
    fresh = run.is_fresh([described], resume=resume)
    for name in (BEST, _CHECKPOINTS) if fresh else ():  # written over, or removed in the end
        refuse_full(out / name)
    if not fresh and (finished := run.result()) is not None:
        return dict(finished)
    train, dev = read_parts(recipe)
    checkpoint = None if fresh else last_checkpoint(out / _CHECKPOINTS)
    torch.manual_seed(recipe.training.seed)
    loaded = _starting_model(recipe, train)
    arguments = _arguments(
        recipe,
        out / _CHECKPOINTS,
        math.ceil(len(train) / (recipe.training.batch_size * recipe.training.accumulate)),
    )
    given = given_rewards(recipe.candidates, device)
    existed = out.exists()
    with quiet():
        try:
            trainer = _trainer(recipe, loaded, arguments, train, dev, given)
            _try_reward(recipe, trainer, train, dev)
        except SoftqError:
            if not existed:  # Trainer makes a folder for its checkpoints
                shutil.rmtree(out, ignore_errors=True)
            raise
        with run.locked(), Interrupts(Workers(device)) as interrupts:
            if fresh:  # what is wrong with recipe, data and model was told before this is written
                run.begin(to_toml(recipe, task=TASK), [described], device.type)
            callback = RunCallback(
                run,
                best_by=recipe.evaluation.best_by,
                patience=recipe.training.patience,
                watcher=watcher or Watcher(),
                interrupts=interrupts,
                batch=recipe.training.batch_size * recipe.training.accumulate,
            )
            trainer.add_callback(callback)
            if recipe.candidates.distill_samples:
                trainer.add_callback(_distillation(recipe, loaded, trainer, train, callback))
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if callback.stopped is not None:
                raise callback.stopped
            save_model(trainer.model, loaded.tokenizer, out / BEST, replace=True)
            result = _finish(recipe, run, described, dev, given, trainer.state)
    return result


def _starting_model(recipe: LmRecipe, train: Rows) -> Loaded:
    settings = recipe.model
    if settings.name:
        return load_model(_model_folder(settings.name), settings.dtype, settings.dropout)
    if not settings.from_scratch:
        raise ModelError(
            "name a model to start from (--model PATH), or a size to start with (--from-scratch"
            " t5-small)"
        )
    texts = [row["source"] for row in _filled(recipe, train)] + [
        text for row in train for text in row.get("references", ())
    ]
    tokenizer = train_tokenizer(texts, settings.vocabulary_size)
    made = make_t5(
        settings.from_scratch, tokenizer, 0.1 if settings.dropout is None else settings.dropout
    )
    return Loaded(made.to(getattr(torch, settings.dtype)), tokenizer)


def _model_folder(name: str) -> str:
    """Where a model is.

    In ``best`` of a run folder, else what was named, which may be a name that Transformers know.
    """
    path = Path(name)
    if not (path / RECIPE).is_file():
        return name
    if not (path / BEST / "config.json").is_file():
        raise RunError(
            f"{path} holds no model of softq train lm, or none yet: softq train --resume --out"
            f" {path} resumes it"
        )
    return str(path / BEST)


def _arguments(recipe: LmRecipe, folder: Path, steps: int) -> RewardAugmentedArguments:
    """The recipe as Trainer's arguments; an epoch has so many steps.

    Evaluations and checkpoints go by steps even if there is one for each epoch: Trainer would take
    the end of a training that was asked to stop for the end of an epoch.
    """
    objective, candidates = recipe.objective, recipe.candidates
    training, evaluation = recipe.training, recipe.evaluation
    every = training.eval_every or steps
    on_cpu = find_device(training.device).type == "cpu"
    own_reward = bool(candidates.reward_function or candidates.reward_model)
    by_length = {True: "group_by_length", False: "random"}
    schedules = {"constant": "constant_with_warmup"}
    named: dict[str, Any] = {  # keys whose arguments are called otherwise
        "objective": objective.name,
        "candidates": candidates.sampler,
        "candidate_size": candidates.size,
        "k": candidates.k or None,
        "reward": candidates.pairwise_name,
        "reward_weights": [*candidates.reward_weights] or None,
        "pad_to_multiple_of": candidates.pad_to_multiple_of or None,
        "track_base": evaluation.track_base and objective.name != "ml",
        "sampling_temperature": candidates.temperature,
        "sampling_top_p": candidates.top_p,
        "eval_num_beams": evaluation.dev_beams,
        "eval_generate": evaluation.best_by != "loss",
        "corpus_metric": _held_out(recipe),
        "num_train_epochs": training.epochs,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": evaluation.batch_size,
        "gradient_accumulation_steps": training.accumulate,
        "lr_scheduler_type": schedules.get(training.schedule, training.schedule),
        "warmup_steps": training.warmup,
        "max_grad_norm": training.clip,
        "train_sampling_strategy": by_length[training.group_by_length],
        "use_cpu": on_cpu,
        "eval_steps": every,
        "save_steps": every,
        "logging_steps": max(1, min(50, every // 4)),
        "metric_for_best_model": f"eval_{evaluation.best_by}",
        "greater_is_better": evaluation.best_by != "loss",
        # a GPU must not wait for candidates: they are made in other processes, which need not take
        # turns with this one; but those cannot use the GPU, as a reward of the user's own may
        "dataloader_num_workers": 0 if on_cpu or own_reward else 2,
    }
    keys = {
        name: value
        for part in (objective, candidates, evaluation, training)
        for name, value in vars(part).items()
    }
    # versions of Transformers differ
    known = {field.name for field in dataclasses.fields(RewardAugmentedArguments)}
    given = keys | named | _FIXED
    return RewardAugmentedArguments(
        output_dir=str(folder), **{name: given[name] for name in given if name in known}
    )


def _held_out(recipe: LmRecipe) -> str:
    """The corpus score of evaluations on dev."""
    asked, best_by = recipe.evaluation.held_out, recipe.evaluation.best_by
    if asked != "auto":
        return asked
    if best_by in ("bleu", "chrf"):
        return best_by
    if best_by == "loss" or find_spec("sacrebleu") is None:
        return "none"
    return "bleu" if any("chrf" in name for name in recipe.candidates.names) else "chrf"


def _trainer(
    recipe: LmRecipe,
    loaded: Loaded,
    arguments: RewardAugmentedArguments,
    train: Rows,
    dev: Rows,
    given: Any,
) -> RewardAugmentedTrainer:
    from transformers import (
        PrinterCallback,  # not above: softq.integrations tells what to install where it is missing
    )

    encode = _encoder(recipe, loaded)
    if recipe.candidates.distill_samples:  # others take their place in every epoch
        train = [{"source": row["source"]} for row in train]
    rows, judged = (encode.all(_filled(recipe, part)) for part in (train, dev))
    # those of similar length together: less padding
    judged.sort(key=lambda row: len(row["input_ids"]))
    model = with_adapters(loaded.model, recipe.model.lora) if recipe.model.lora else loaded.model
    trainer = RewardAugmentedTrainer(
        model,
        arguments,
        reward=given,
        processing_class=loaded.tokenizer,
        train_dataset=rows,
        eval_dataset=judged,
    )
    if recipe.training.optimizer == "adafactor":
        trainer.optimizer = _adafactor(trainer, recipe.training)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _encoder(recipe: LmRecipe, loaded: Loaded) -> RowEncoder:
    return RowEncoder(
        loaded.tokenizer,
        causal=loaded.causal,
        max_source=recipe.data.max_source,
        max_target=recipe.data.max_target,
    )


def _try_reward(recipe: LmRecipe, trainer: RewardAugmentedTrainer, train: Rows, dev: Rows) -> None:
    """An error if the reward fails on a row, or compares with references that are not there, before anything is written."""
    reward: Reward = trainer.reward
    if reward.uses_references:
        name, score = recipe.data.train or "the built-in world", f"the reward {reward.signature}"
        needed = recipe.objective.name != "ml" and not recipe.candidates.distill_samples
        given = recipe.candidates.sampler == "dataset"
        check_references(score, train if needed else (), name, given=given)
        check_references(score, dev, recipe.data.dev or name)
    if recipe.evaluation.best_by != "reward":
        name = recipe.data.dev or recipe.data.train
        check_references(f"best_by = {recipe.evaluation.best_by}", dev, name)
    row = trainer.eval_dataset[0]
    texts = row.get("labels") or [row["input_ids"]]
    # two, which tell a value for each from one for all
    mean_rewards([texts[0]] * 2, [texts] * 2, with_sources(reward, [row["input_ids"]] * 2))


def _distillation(
    recipe: LmRecipe,
    loaded: Loaded,
    trainer: RewardAugmentedTrainer,
    train: Rows,
    callback: RunCallback,
) -> EveryEpoch:
    """What makes the rows of every epoch; those of an epoch that was begun are in the folder of checkpoints."""
    settings, data = recipe.candidates, recipe.data
    model = TextModel(
        loaded._replace(model=trainer.model), template=data.template, max_source=data.max_source
    )
    encode = _encoder(recipe, loaded)

    def tell(done: int, total: int) -> None:
        callback.watcher.advance(0, f"distilling {done:,} of {total:,}")
        if callback.interrupts.asked():
            raise StoppedError("stopped while distilling: add --resume to continue")

    def make(epoch: int) -> list[dict[str, Any]]:
        path = Path(trainer.args.output_dir) / f"distilled-{epoch}.jsonl"
        if not path.is_file():
            how = Writing(
                samples=settings.distill_samples,
                reward=settings.distill_reward or settings.pairwise_name,
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_new_tokens=recipe.evaluation.max_new_tokens,
                batch_size=recipe.evaluation.batch_size,
                seed=batch_seed(recipe.training.seed, epoch),
            )
            hard = "dataset" not in settings.sampler.split("+") or recipe.objective.name == "ml"
            sources = [row["source"] for row in train]
            distill_to(path, model, sources, how, hard=hard, tell=tell)
        return encode.all(_filled(recipe, read_rows(path)))

    return EveryEpoch(trainer.train_dataset, make)


def _adafactor(trainer: RewardAugmentedTrainer, training: LmTraining) -> torch.optim.Optimizer:
    """As T5 was trained with; Transformers' own of that name leaves the size of weights out."""
    # not norms and biases, as with AdamW
    shrinking = set(trainer.get_decay_parameter_names(trainer.model))
    weights = [
        (name, weight) for name, weight in trainer.model.named_parameters() if weight.requires_grad
    ]
    groups = [
        {
            "params": [weight for name, weight in weights if (name in shrinking) == shrinks],
            "weight_decay": training.weight_decay * shrinks,
        }
        for shrinks in (True, False)
    ]
    # that of bfloat16, which torch would take for weights of that type, is larger than most
    # gradients
    epsilon = torch.finfo(torch.float32).eps
    return torch.optim.Adafactor(
        [group for group in groups if group["params"]], training.learning_rate, eps=(epsilon, 1e-3)
    )


def _filled(recipe: LmRecipe, rows: Rows) -> Rows:
    """Rows whose sources are what the model reads."""
    return [row | {"source": recipe.data.template.replace("{}", row["source"])} for row in rows]


def _finish(
    recipe: LmRecipe, run: RunFolder, described: CellRow, dev: Rows, given: Any, state: Any
) -> dict[str, Any]:
    """Score the best model as `softq evaluate` does, write the result, and remove what only a resumed run would need."""
    model, how = open_text_model(str(run.path), recipe.training.device)
    samples = recipe.evaluation.mbr_samples
    reward = as_reward(given, [*recipe.candidates.reward_weights] or None, model.tokenizer)
    measures = score(model, dev, how, reward).as_dict()
    best = measures["reward"]
    if samples:
        how = dataclasses.replace(how, method="mbr", samples=samples)
        found = score(model, dev, how, reward).as_dict()
        measures |= {f"mbr_{name}": value for name, value in found.items()}
        measures["mbr_gap"] = found["reward"] - best
    step = state.best_global_step or state.global_step
    epoch = round(step * state.num_train_epochs / state.max_steps, 6)
    result: dict[str, Any] = {
        "task": TASK,
        "metric": "reward",
        "signature": reward.signature,
        "cells": [{**described, "step": step, "epoch": epoch, "dev": best, **measures}],
    }
    run.write(RESULT, as_json(result))
    shutil.rmtree(run.path / _CHECKPOINTS, ignore_errors=True)
    return result


def open_text_model(name: str, device: str = "auto") -> tuple[TextModel, Writing]:
    """The model of a run folder, or of a folder of ``save_pretrained``, and how it writes if nothing else is said."""
    recipe = read_recipe(Path(name)) or LmRecipe()
    loaded = load_model(_model_folder(name), recipe.model.dtype)
    loaded.model.to(find_device(device))
    evaluation = recipe.evaluation
    how = Writing(
        beams=evaluation.beams,
        samples=evaluation.mbr_samples or Writing.samples,
        reward=recipe.candidates.pairwise_name,
        max_new_tokens=evaluation.max_new_tokens,
        batch_size=evaluation.batch_size,
    )
    return TextModel(loaded, template=recipe.data.template, max_source=recipe.data.max_source), how
