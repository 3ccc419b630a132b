"""From rows of a dataset to batches.

What a model reads, what it should generate, and the target that a step is trained toward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from softq.errors import DataError
from softq.integrations.text_rows import check_columns, plain, reward_lists
from softq.integrations.transformers.candidates import Row, StepTargets, batch_seed
from softq.integrations.transformers.step_target import PreparedStep, StepTarget
from softq.integrations.transformers.tokens import IGNORED, TokenIds, padded, padded_inputs

# of a row, which are not the model's inputs
COLUMNS = (
    "labels",
    "candidates",
    "candidate_rewards",
)
# others that are read, or that tokenizers add and nobody misses
_READ = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "length")
# what a batch has beside Transformers' own keys
ROWS, TARGET, PROMPTS = (
    "softq_rows",
    "softq_target",
    "softq_prompts",
)

logger = logging.getLogger(__name__)

Collator = Callable[[list[Any]], Mapping[str, Any]]


class RewardAugmentedCollator:
    """Makes batches.

    Transformers' own keys from the first reference of each row, and beside them the target of the
    step.

    The target is made in a thread while the model trains on the batch before, or in the data
    loader's worker process. Rows without references count as `max_new_tokens` labels, in evaluation
    as none.

    Args:
        causal: whether the model continues its input, or reads it with an encoder.
        pad: token id that fills rows up.
        targets: makes candidates and weights.
        seed: of all that is drawn.
        inputs: makes the inputs of an encoder-decoder from rows without labels and candidates, such
            as images; ``input_ids`` are padded if it is not given.
        context: positions of the model, which prompt and text must not exceed together; None: any
            number.

    """

    def __init__(
        self,
        *,
        causal: bool,
        pad: int,
        targets: StepTargets,
        seed: int,
        inputs: Collator | None = None,
        context: int | None = None,
    ) -> None:
        self.causal, self.pad, self.targets = causal, pad, targets
        self.seed, self.inputs, self.context = seed, inputs, context
        self._told, self._multiple = False, targets.arguments.pad_to_multiple_of
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        # shared, since workers of a data loader may outlive an epoch
        self.training = True
        """Whether batches need a target."""
        self._pool: ThreadPoolExecutor | None = None

    @property
    def epoch(self) -> int:
        """Candidates are drawn anew in each."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __call__(self, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch from rows, with ``input_ids`` if ``inputs`` was not given."""
        self._check_columns(rows)
        wanted = [as_row(row) for row in rows]
        if self.training:
            for place, row in enumerate(wanted):
                self.targets.check(row, place)
        # how many there are is all that matters of the labels of a row without references
        unknown = [self.pad] * self.targets.arguments.max_new_tokens if self.training else []
        first = [row.references[0] if row.references else unknown for row in wanted]
        batch: dict[str, Any] = {ROWS: wanted}
        inputs, labels = self._causal(rows, first) if self.causal else (self._inputs(rows), first)
        batch |= inputs
        if self.training or any(row.references for row in wanted):
            batch["labels"] = padded(labels, IGNORED)
        if self.training and self.targets.weighs(wanted) and not self.targets.wants("model"):
            batch[TARGET] = self._in_background(wanted)
        return batch

    def _in_background(self, rows: Sequence[Row]) -> Any:
        """The target, or a future of it."""
        if get_worker_info() is not None:  # a process of its own, which is ahead anyway
            return self.make(rows)
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="softq-target")
        return self._pool.submit(self.make, rows)

    def _check_columns(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Columns that are misspelt are an error, those that nobody reads a warning, once."""
        read = {*COLUMNS, *_READ}
        for row in rows:
            check_columns(row, (*COLUMNS, "input_ids"))
        if self._told or not rows:
            return
        self._told = True
        others = [] if self.inputs is not None else sorted({*rows[0]} - read)
        if others:
            logger.warning("columns that are not read: %s", ", ".join(others))
        idle = [name for name in COLUMNS[1:] if plain(rows[0].get(name)) is not None]
        if idle and not self.targets.wants("dataset"):
            logger.warning(
                "the column %s is not used: set candidates='dataset', also joined to others by +",
                " and ".join(map(repr, idle)),
            )

    def _causal(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[TokenIds]
    ) -> tuple[dict[str, Any], list[TokenIds]]:
        """Prompts with texts behind them, prompts alone, and labels of both."""
        for row in rows:
            _check_prompt_alone(row)
        prompts = [_source_ids(row) for row in rows]
        pairs = list(zip(prompts, texts, strict=True))
        for place, pair in enumerate(pairs):
            length = sum(map(len, pair))
            if (
                self.context is not None
                and length > self.context
                and plain(rows[place].get("labels"))
            ):
                raise DataError(
                    f"row {place} of the batch has {len(pair[0])} tokens of prompt and"
                    f" {len(pair[1])} of completion, and the model has {self.context} positions:"
                    " make it shorter (max_source and max_target of RowEncoder)"
                )
        inputs: dict[str, Any] = padded_inputs([prompt + text for prompt, text in pairs], self.pad)
        labels = [[IGNORED] * len(prompt) + text for prompt, text in pairs]
        return inputs | {PROMPTS: padded_inputs(prompts, self.pad, "left", self._multiple)}, labels

    def make(self, rows: Sequence[Row], *drawn: Any) -> StepTarget | PreparedStep:
        """The target of these rows; ``drawn`` are the model's own samples."""
        contents = [
            np.concatenate(
                [np.array(text, dtype=np.int64) for text in row.references or [row.source]]
            ).tobytes()
            for row in rows
        ]
        generator = torch.Generator().manual_seed(batch_seed(self.seed, self.epoch, *contents))
        return self.targets(rows, generator, *drawn)

    def _inputs(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """What an encoder reads."""
        if self.inputs is None:
            sources = [_source_ids(row) for row in rows]
            return padded_inputs(sources, self.pad, multiple=self._multiple)
        return self.inputs(
            [{name: row[name] for name in row if name not in COLUMNS} for row in rows]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


def as_row(row: Mapping[str, Any]) -> Row:
    """References and candidates of a dataset's row, checked.

    ``labels`` are one list of token ids or several, or missing.

    >>> as_row({"labels": [5, 6, 1]}).references
    [[5, 6, 1]]
    """
    labels = plain(row.get("labels"))
    if labels is not None and (not isinstance(labels, list) or not labels):
        raise DataError(
            "'labels' of a row must be the token ids of a reference or a list of those, got"
            f" {labels!r}; leave them out of rows without references"
        )
    several = [] if labels is None else labels if isinstance(labels[0], list) else [labels]
    references = [_token_ids(reference, "labels") for reference in several]
    candidates = [_token_ids(text, "candidates") for text in plain(row.get("candidates")) or []]
    rewards = plain(row.get("candidate_rewards"))
    listed = reward_lists(rewards, len(candidates), len(references))
    is_text = isinstance(plain(row.get("input_ids")), list)
    return Row(references, candidates, listed, _source_ids(row) if is_text else [])


def _source_ids(row: Mapping[str, Any]) -> TokenIds:
    """What a model reads of a row.

    ``input_ids`` without those that ``attention_mask`` hides, such as padding.
    """
    numbers, mask = _token_ids(row.get("input_ids"), "input_ids"), plain(row.get("attention_mask"))
    if mask is None:
        return numbers
    if not isinstance(mask, list) or len(mask) != len(numbers):
        raise DataError(
            f"'attention_mask' of a row must have a number for each of its {len(numbers)}"
            f" input_ids, got {mask!r}"
        )
    kept = [number for number, seen in zip(numbers, mask, strict=True) if seen]
    if not kept:
        raise DataError("'attention_mask' of a row hides all of its input_ids")
    return kept


def _check_prompt_alone(row: Mapping[str, Any]) -> None:
    """Rows for plain fine-tuning have prompt and completion in ``input_ids``.

    Here the model would be given the answer.
    """
    labels, source = plain(row.get("labels")), plain(row.get("input_ids"))
    if not isinstance(labels, list) or not isinstance(source, list) or len(labels) != len(source):
        return
    if labels == source:
        raise DataError(
            "'labels' of a row equal its 'input_ids', as rows for plain fine-tuning do: 'input_ids'"
            " must be the prompt alone and 'labels' the completion; use RowEncoder (a completion"
            " that repeats its prompt is given as a list of references, labels=[[...]])"
        )
    if labels[:1] == [IGNORED] and all(
        label in (IGNORED, number) for label, number in zip(labels, source, strict=True)
    ):
        raise DataError(
            "'input_ids' of a row must be the prompt alone and 'labels' the completion, got both"
            f" in input_ids, and {IGNORED} for the prompt in labels; with n such labels in front"
            " give input_ids[:n] and labels[n:], or use RowEncoder"
        )


def _token_ids(value: Any, name: str) -> TokenIds:
    numbers = plain(value)
    if (
        not isinstance(numbers, list)
        or not numbers
        or not all(isinstance(number, int) for number in numbers)
    ):
        raise DataError(
            f"{name!r} of a row must be a list of one or more token ids, got {value!r}; see"
            " RowEncoder"
        )
    kept = [number for number in numbers if number != IGNORED]  # labels that were padded already
    if not kept:
        raise DataError(f"{name!r} of a row holds nothing but {IGNORED}")
    return kept
