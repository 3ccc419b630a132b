"""A `transformers.Trainer` for taggers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainerCallback

from softq.errors import DataError, RecipeError
from softq.integrations.transformers.token_classification.arguments import (
    TokenClassificationArguments,
)
from softq.integrations.transformers.token_classification.losses import (
    SentenceLosses,
    distribution,
    target_space,
)
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.token_classification.rows import (
    SENTENCE,
    TokenClassificationCollator,
)
from softq.integrations.transformers.token_classification.truth import AnnotatorTruth
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.encoder import Criterion
from softq.integrations.transformers.words.trainer import WordTrainer, is_indexed
from softq.linear.tagging import entity_reward
from softq.metrics.spans import SPAN_METRICS, span_statistics
from softq.rewards import PartReward


class TokenClassificationTrainer(WordTrainer):
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

    arguments_type, model_type = TokenClassificationArguments, TokenClassificationModel

    def __init__(
        self,
        model: Any = None,
        args: TokenClassificationArguments | None = None,
        *,
        reward: PartReward | None = None,
        **more: Any,
    ) -> None:
        self.truth: AnnotatorTruth | None = None
        self._reward = reward
        super().__init__(model, args, **more)
        if self.truth is not None:
            self.add_callback(_Updates(self))

    def prepare(
        self,
        core: TokenClassificationModel,
        args: TokenClassificationArguments,
        collator: TokenClassificationCollator,
        more: dict[str, Any],
    ) -> None:
        """Losses, metrics, and the model of annotators."""
        names, scheme = core.config.labels, core.config.scheme
        reward = self._reward
        if reward is not None and (args.objective == "ml" or args.annotators):
            raise RecipeError(
                "a reward is for raml and sqdml without a model of annotators, got objective"
                f" {args.objective!r} and annotators {args.annotators!r}"
            )
        if reward is not None and args.entity_weight != 1:
            raise RecipeError("reward and entity_weight do not go together: leave out one of them")
        if args.entity_weight != 1:
            reward = entity_reward(names, args.entity_weight)
        self.losses = SentenceLosses(args.objective, args.tau, reward)
        if more.get("compute_metrics") is None:
            more["compute_metrics"] = partial(tagging_metrics, labels=names, scheme=scheme)
        if args.annotators is not None and more.get("train_dataset") is not None:
            rows = more["train_dataset"]
            if not is_indexed(rows):
                raise DataError(
                    "a model of annotators compares all their labels: expected a train_dataset with"
                    f" a length, got {type(rows).__name__}"
                )
            known = [collator.known(rows[place]) for place in range(len(rows))]
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

    def criterion(self, targets: Mapping[str, Any], model: nn.Module) -> Criterion:
        """The losses of a batch; toward the truth behind annotators, in training, if it is learnt."""
        if self.truth is not None and model.training and SENTENCE in targets:
            return partial(_toward_truth, truth=self.truth, sentences=targets[SENTENCE])
        return super().criterion(targets, model)

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
