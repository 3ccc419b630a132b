"""A `transformers.Trainer` for taggers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback

from softq.errors import DataError, ModelError, RecipeError
from softq.integrations.transformers.model_checks import first_model
from softq.integrations.transformers.token_classification.arguments import (
    TokenClassificationArguments,
)
from softq.integrations.transformers.token_classification.losses import (
    SentenceLosses,
    distribution,
    target_space,
)
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.token_classification.prediction import collator_for, core_of
from softq.integrations.transformers.token_classification.rows import SENTENCE, TARGETS
from softq.integrations.transformers.token_classification.truth import AnnotatorTruth
from softq.integrations.transformers.tokens import IGNORED
from softq.linear.tagging import entity_reward
from softq.metrics.spans import SPAN_METRICS, span_statistics
from softq.rewards import PartReward


class TokenClassificationTrainer(Trainer):  # type: ignore[misc]  # of no type that mypy knows
    """Trains a tagger of words: a chain, or independent labels, on an encoder of Transformers.

    Rows have ``tokens`` and ``ner_tags``, or ``annotations`` of several annotators; see
    `TokenClassificationCollator`. Everything else is Trainer's.

    Evaluation adds ``precision``, ``recall`` and ``f1`` of entities as conlleval counts them (with
    a tag scheme), ``token_accuracy`` and ``exact_match``; so ``metric_for_best_model="f1"`` works.
    A word that nobody labelled is left out; of several annotators each word's majority counts.

    Args:
        model: a `TokenClassificationModel`, also with PEFT adapters.
        args: with ``objective``, ``tau`` and the like.
        reward: one of `softq.rewards` over labels, for RAML and SQDML; None: token accuracy, with
            the ``entity_weight`` of the arguments.
        more: as `transformers.Trainer` takes it; ``processing_class`` is the tokenizer, a fast one.

    Attributes:
        truth: with ``args.annotators``, what is known of annotators and of the true labels.

    """

    def __init__(
        self,
        model: Any = None,
        args: TokenClassificationArguments | None = None,
        *,
        reward: PartReward | None = None,
        **more: Any,
    ) -> None:
        if not isinstance(args, TokenClassificationArguments):
            raise RecipeError(
                f"args must be TokenClassificationArguments, got {type(args).__name__}"
            )
        for name in ("data_collator", "compute_loss_func"):
            if more.get(name) is not None:
                raise RecipeError(f"leave out {name}: words and losses are the trainer's own")
        tokenizer = more.get("processing_class")
        if tokenizer is None:
            raise RecipeError("give the tokenizer as processing_class")
        if reward is not None and (args.objective == "ml" or args.annotators):
            raise RecipeError(
                "a reward is for raml and sqdml without a model of annotators, got objective"
                f" {args.objective!r} and annotators {args.annotators!r}"
            )
        if reward is not None and args.entity_weight != 1:
            raise RecipeError("reward and entity_weight do not go together: leave out one of them")
        core = core_of(
            first_model(more["model_init"]) if model is None and more.get("model_init") else model
        )
        names, scheme = core.config.labels, core.config.scheme
        collator = collator_for(core, tokenizer, args.max_length, args.stride)
        more["processing_class"] = collator.words.tokenizer
        if args.entity_weight != 1:
            reward = entity_reward(names, args.entity_weight)
        self._losses = SentenceLosses(args.objective, args.tau, reward)
        self.truth: AnnotatorTruth | None = None
        if args.annotators is not None and more.get("train_dataset") is not None:
            rows = more["train_dataset"]
            if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
                raise DataError(
                    "a model of annotators compares all their labels: expected a train_dataset with"
                    f" a length, got {type(rows).__name__}"
                )
            known = [collator.labels_of(rows[place]) for place in range(len(rows))]
            if any(labels is None for labels in known):
                raise DataError(
                    "expected 'annotations' in all rows of train_dataset, got rows without"
                )
            self.truth = AnnotatorTruth(
                [labels.sentence(names) for labels in known if labels is not None],
                names,
                scheme,
                model=args.annotators,  # type: ignore[arg-type]  # checked by the arguments
                temper=args.temper,
                tau=args.tau,
            )
            more["train_dataset"] = _Numbered(rows)
        if more.get("compute_metrics") is None:
            more["compute_metrics"] = partial(tagging_metrics, labels=names, scheme=scheme)
        super().__init__(model=model, args=args, data_collator=collator, **more)
        if self.truth is not None:
            self.add_callback(_Updates(self))
        self._check_parallel()

    def _check_parallel(self) -> None:
        if self.args.n_gpu > 1:
            raise ModelError(
                f"{self.args.n_gpu} GPUs in one process would tear windows from their sentences:"
                " start one process per GPU with `accelerate launch` or `torchrun`, or show one"
                " GPU only (CUDA_VISIBLE_DEVICES=0)"
            )

    def create_optimizer(self, *given: Any, **more: Any) -> Any:
        """Trainer's own, in which the head has a learning rate of its own."""
        before = self.optimizer
        optimizer = super().create_optimizer(*given, **more)
        rate = self.args.head_learning_rate
        if before is None and rate is not None:  # one that was given stays as it is
            head = {id(weight) for weight in core_of(self._unwrapped()).head_parameters()}
            for group in list(optimizer.param_groups):
                ours = [weight for weight in group["params"] if id(weight) in head]
                if ours:
                    group["params"] = [one for one in group["params"] if id(one) not in head]
                    optimizer.add_param_group({**group, "params": ours, "lr": rate})
            optimizer.param_groups[:] = [one for one in optimizer.param_groups if one["params"]]
        return optimizer

    def _unwrapped(self) -> Any:
        return self.accelerator.unwrap_model(self.model)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Loss of a batch: H(target, model) summed over sentences, divided by labelled words.

        These are counted over all processes and accumulated steps where Trainer does so.
        """
        targets, labels = inputs.get(TARGETS), inputs.get("labels")
        if targets is None or labels is None:
            raise DataError(
                "rows to train on need 'ner_tags' or 'annotations', got rows without labels"
            )
        outputs = model(**_read_by_model(inputs), criterion=self._criterion(targets, model))
        total = outputs.loss.sum()
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            loss = total / max(num_items_in_batch, 1)
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes
        else:  # Trainer divides by the number of accumulated steps
            loss = total / (labels != IGNORED).sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def _criterion(self, targets: Mapping[str, Any], model: nn.Module) -> Any:
        if self.truth is not None and model.training and SENTENCE in targets:
            return partial(_toward_truth, truth=self.truth, sentences=targets[SENTENCE])
        return partial(self._losses, targets=targets)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Loss, most probable label ids ``[B, n]`` and right ones, -100 on padding."""
        inputs = self._prepare_inputs(inputs)
        targets, labels = inputs.get(TARGETS), inputs.get("labels")
        criterion = None if targets is None else self._criterion(targets, model)
        with torch.no_grad():
            outputs = model(**_read_by_model(inputs), criterion=criterion, decode=True)
        loss = None
        if labels is not None:
            loss = outputs.loss.sum() / (labels != IGNORED).sum().clamp(min=1)
        if prediction_loss_only:
            return loss, None, None
        return loss, outputs.predictions, None if targets is None else targets["gold"]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *more: Any, **others: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *more, **others)
        if self.truth is not None:
            self.truth.load(Path(resume_from_checkpoint), self.accelerator)


def tagging_metrics(found: Any, labels: tuple[str, ...], scheme: Any) -> dict[str, float]:
    """Scores of label ids ``[N, n]`` against right ones, -100 on words that do not count.

    >>> import numpy
    >>> from types import SimpleNamespace
    >>> found = SimpleNamespace(
    ...     predictions=numpy.array([[1, 2, 0]]), label_ids=numpy.array([[1, 0, -100]]))
    >>> scores = tagging_metrics(found, ("O", "B-PER", "I-PER"), "bio")
    >>> scores["f1"], scores["token_accuracy"]
    (0.0, 0.5)
    """
    guessed, gold = np.asarray(found.predictions), np.asarray(found.label_ids)
    pairs = [
        ([labels[k] for k in right[known]], [labels[k] for k in guess[known]])
        for right, guess, known in zip(gold, guessed, gold != IGNORED, strict=True)
    ]
    statistics = span_statistics([one for one, _ in pairs], [one for _, one in pairs], scheme)
    sums = statistics.rows.sum(0)
    names = SPAN_METRICS if scheme else ("token_accuracy", "exact_match")
    return {name: float(SPAN_METRICS[name](sums)) for name in names}


def _toward_truth(
    model: TokenClassificationModel,
    logits: Tensor,
    lengths: Tensor,
    *,
    truth: AnnotatorTruth,
    sentences: Tensor,
) -> Tensor:
    """A criterion: toward the truth behind the labels of annotators."""
    p = distribution(model, logits, lengths)
    return truth.losses(target_space(model, p, logits, lengths), p, sentences)


def _read_by_model(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in (TARGETS, "labels")}


class _Numbered(Dataset[Any]):
    """Rows that know their places."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {**self.rows[place], SENTENCE: place}


class _Updates(TrainerCallback):  # type: ignore[misc]  # of no type that mypy knows
    """Updates what is known of annotators after each epoch, and saves it with checkpoints."""

    def __init__(self, trainer: TokenClassificationTrainer) -> None:
        self.trainer = trainer

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        self.trainer.truth.update(self.trainer.accelerator)  # type: ignore[union-attr]

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.trainer.truth.save(folder, self.trainer.accelerator)  # type: ignore[union-attr]
