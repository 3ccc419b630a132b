"""What Trainers of models of words share: losses of sentences, and a learning rate for the head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Trainer

from softq.errors import DataError, ModelError, RecipeError
from softq.integrations.transformers.model_checks import first_model
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.arguments import WordArguments
from softq.integrations.transformers.words.encoder import Criterion, WordModel, core_of
from softq.integrations.transformers.words.losses import WordLosses
from softq.integrations.transformers.words.rows import TARGETS


class WordTrainer(Trainer):  # type: ignore[misc]  # of no type that mypy knows
    """Trains a `WordModel`; a subclass says how it is scored and what it is trained toward.

    Args:
        model: of ``model_type``, also with PEFT adapters.
        args: of ``arguments_type``.
        more: as `transformers.Trainer` takes it; ``processing_class`` is the tokenizer, a fast one.

    """

    arguments_type: ClassVar[type[WordArguments]]
    model_type: ClassVar[type[WordModel]]
    losses: WordLosses

    def __init__(self, model: Any = None, args: WordArguments | None = None, **more: Any) -> None:
        if not isinstance(args, self.arguments_type):
            raise RecipeError(
                f"args must be {self.arguments_type.__name__}, got {type(args).__name__}"
            )
        for name in ("data_collator", "compute_loss_func"):
            if more.get(name) is not None:
                raise RecipeError(f"leave out {name}: words and losses are the trainer's own")
        tokenizer = more.get("processing_class")
        if tokenizer is None:
            raise RecipeError("give the tokenizer as processing_class")
        made = model is None and more.get("model_init")
        core = core_of(first_model(more["model_init"]) if made else model, self.model_type)
        collator = core.collator(tokenizer, max_length=args.max_length, stride=args.stride)
        more["processing_class"] = collator.words.tokenizer
        self.prepare(core, args, collator, more)
        super().__init__(model=model, args=args, data_collator=collator, **more)
        if self.args.n_gpu > 1:
            raise ModelError(
                f"{self.args.n_gpu} GPUs in one process would tear windows from their sentences:"
                " start one process per GPU with `accelerate launch` or `torchrun`, or show one"
                " GPU only (CUDA_VISIBLE_DEVICES=0)"
            )

    @abstractmethod
    def prepare(self, core: Any, args: Any, collator: Any, more: dict[str, Any]) -> None:
        """Make ``losses``; look at and complete what Trainer is told."""

    def create_optimizer(self, *given: Any, **more: Any) -> Any:
        """Trainer's own, in which the head has a learning rate of its own."""
        before = self.optimizer
        optimizer = super().create_optimizer(*given, **more)
        rate = self.args.head_learning_rate
        if before is None and rate is not None:  # one that was given stays as it is
            core = core_of(self.accelerator.unwrap_model(self.model), self.model_type)
            head = {id(weight) for weight in core.head_parameters()}
            for group in list(optimizer.param_groups):
                ours = [weight for weight in group["params"] if id(weight) in head]
                if ours:
                    group["params"] = [one for one in group["params"] if id(one) not in head]
                    optimizer.add_param_group({**group, "params": ours, "lr": rate})
            optimizer.param_groups[:] = [one for one in optimizer.param_groups if one["params"]]
        return optimizer

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
                f"rows to train on need {self.data_collator.columns}, got rows without labels"
            )
        outputs = model(**_read_by_model(inputs), criterion=self.criterion(targets, model))
        total = outputs.loss.sum()
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            loss = total / torch.as_tensor(num_items_in_batch).clamp(min=1)
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes
        else:  # Trainer divides by the number of accumulated steps
            loss = total / (labels != IGNORED).sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def criterion(self, targets: Mapping[str, Any], model: nn.Module) -> Criterion:
        """The losses of the sentences of a batch with these targets."""
        return partial(self.losses, targets=targets)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """Loss, most probable outputs and right ones, -100 on padding."""
        inputs = self._prepare_inputs(inputs)
        targets, labels = inputs.get(TARGETS), inputs.get("labels")
        criterion = None if targets is None else self.criterion(targets, model)
        with torch.no_grad():
            outputs = model(**_read_by_model(inputs), criterion=criterion, decode=True)
        loss = None
        if labels is not None:
            loss = outputs.loss.sum() / (labels != IGNORED).sum().clamp(min=1)
        if prediction_loss_only:
            return loss, None, None
        return loss, outputs.predictions, None if targets is None else targets["gold"]


def is_indexed(rows: Any) -> bool:
    """Whether rows have a length and places, so that all can be looked at before training."""
    streamed = isinstance(rows, IterableDataset)  # which has a __getitem__ that raises
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not streamed


def _read_by_model(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in (TARGETS, "labels")}
