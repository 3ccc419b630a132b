"""From rows of a dataset to batches.

What a model reads, what it should generate, and the target that a step is trained toward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from softq.checks import check_count
from softq.errors import DataError, ModelError
from softq.integrations.text_rows import (
    TEXT_COLUMNS,
    check_columns,
    plain,
    reward_lists,
    text_row,
)
from softq.integrations.transformers.candidates import (
    PreparedStep,
    Row,
    StepTarget,
    StepTargets,
    batch_seed,
)
from softq.integrations.transformers.tokens import (
    IGNORED,
    TokenIds,
    padded,
    padded_inputs,
    special_by_tokenizer,
)

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


class RowEncoder:
    """Turns rows of text into rows of token ids, as `RewardAugmentedTrainer` takes them.

    Args:
        tokenizer: of the model.
        causal: whether the model continues its input (GPT-2, Llama), or reads it with an encoder
            (T5, BART, Marian).
        max_source: longest source or prompt, in tokens. A source is cut at its end, a prompt behind
            its first special tokens, since its end says what is to be written.
        max_target: longest reference or candidate, in tokens; they are cut at their ends.

    A row has ``source`` and may have ``references``, a text or a list of texts, ``candidates``, a
    list of texts, and ``candidate_rewards``, a number for each or, for each, one per reference. A
    warning names columns that are not read. A causal model gets an end-of-text token after each text, one that was cut included. Its
    ``source`` may be a list of chat messages, ``{"role": ..., "content": ...}``, which become a
    prompt by the tokenizer's chat template.

    """

    def __init__(
        self, tokenizer: Any, *, causal: bool, max_source: int = 512, max_target: int = 128
    ) -> None:
        self.tokenizer, self.causal = tokenizer, causal
        self._told = False
        self.max_source = check_count("max_source", max_source, DataError)
        least = 2 if causal else 1  # a token and the end of the text
        self.max_target = check_count("max_target", max_target, DataError, least)
        if causal and tokenizer.eos_token_id is None:
            raise ModelError(
                "the tokenizer has no eos_token, and a text must end: set tokenizer.eos_token"
            )

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """One row of token ids, or columns of many, as ``Dataset.map(…, batched=True)`` gives them.

        ``input_ids``, ``labels`` (one list for each reference), and candidates where there are any.
        """
        sources = plain(row.get("source")) if isinstance(row, Mapping) else None
        if not isinstance(sources, list) or all(isinstance(part, Mapping) for part in sources):
            return self.all([row])[0]  # a text, or the messages of a chat
        names = list(row)
        rows = [dict(zip(names, values, strict=True)) for values in zip(*row.values(), strict=True)]
        made = self.all(rows)
        columns = dict.fromkeys(name for each in made for name in each)
        return {name: [each.get(name) for each in made] for name in columns}

    def all(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Many rows at once, which tokenizers are far quicker at than at one after the other.

        What was cut is counted in a warning.
        """
        if isinstance(rows, Mapping):
            raise DataError(
                "expected a list of rows, got columns: encode row by row, as Dataset.map does"
                " without batched=True, or call the encoder itself"
            )
        checked = [text_row(row, references=False) for row in rows]
        others = {name for row in rows for name in row} - {*TEXT_COLUMNS}
        if others and not self._told:
            self._told = True
            logger.warning("columns that are not read: %s", ", ".join(sorted(others)))
        sources, cut_sources = self._sources([row["source"] for row in checked])
        texts = [[row.get("references", []), row.get("candidates", [])] for row in checked]
        every = [text for columns in texts for column in columns for text in column]
        numbers, cut_targets = self._targets(every)
        if cut_sources + cut_targets:
            logger.warning(
                "cut off: %d of %d sources, which are longer than %d tokens, and %d of %d"
                " references and candidates, longer than %d",
                *(cut_sources, len(sources), self.max_source),
                *(cut_targets, len(numbers), self.max_target),
            )
        targets = iter(numbers)
        for row, source, (references, candidates) in zip(checked, sources, texts, strict=True):
            for name in ("source", "references"):
                row.pop(name, None)
            row["input_ids"] = source
            if references:
                row["labels"] = [next(targets) for _ in references]
            if candidates:
                row["candidates"] = [next(targets) for _ in candidates]
        return checked

    def sources(self, texts: Sequence[str | list[dict[str, Any]]]) -> list[TokenIds]:
        """The token ids of sources or prompts."""
        return self._sources(texts)[0]

    def _sources(self, texts: Sequence[str | list[dict[str, Any]]]) -> tuple[list[TokenIds], int]:
        """Of sources, and how many were cut."""
        if not self.causal:
            if not all(isinstance(text, str) for text in texts):
                raise DataError(
                    "a list of chat messages is for causal models: give 'source' as a text"
                )
            return self._cut_at_the_end("text", texts, self.max_source)
        of_text = iter(self._tokenized("text", [text for text in texts if isinstance(text, str)]))
        end = self.tokenizer.eos_token_id
        whole = [
            _without_end(next(of_text), end) if isinstance(text, str) else self._chat(text)
            for text in texts
        ]
        specials = special_by_tokenizer(self.tokenizer)
        return [_cut_behind_marks(prompt, self.max_source, specials) for prompt in whole], sum(
            len(row) > self.max_source for row in whole
        )

    def _chat(self, messages: list[dict[str, Any]]) -> TokenIds:
        found = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True
        )
        # which of them depends on the version
        return list(found if isinstance(found, list) else found["input_ids"])

    def _targets(self, texts: Sequence[str]) -> tuple[list[TokenIds], int]:
        """Of references and candidates, and how many were cut."""
        if not self.causal:
            return self._cut_at_the_end("text_target", texts, self.max_target)
        rows, cut = self._cut_at_the_end(
            "text", texts, self.max_target - 1, add_special_tokens=False
        )
        return [[*row, self.tokenizer.eos_token_id] for row in rows], cut

    def _cut_at_the_end(
        self, name: str, texts: Sequence[Any], most: int, **how: Any
    ) -> tuple[list[TokenIds], int]:
        rows = self._tokenized(name, texts, **how)
        long = [place for place, row in enumerate(rows) if len(row) > most]
        # end marks stay
        shorter = self._tokenized(
            name, [texts[place] for place in long], truncation=True, max_length=most, **how
        )
        for place, row in zip(long, shorter, strict=True):
            rows[place] = row
        return rows, len(long)

    def _tokenized(self, name: str, texts: Sequence[Any], **how: Any) -> list[TokenIds]:
        return (
            [
                list(row)
                for row in self.tokenizer(**{name: list(texts)}, verbose=False, **how)["input_ids"]
            ]
            if texts
            else []
        )


def _cut_behind_marks(prompt: TokenIds, most: int, specials: Collection[int]) -> TokenIds:
    """The special tokens that a prompt begins with, and as many of its last tokens as there is room for."""
    if len(prompt) <= most:
        return prompt
    first = min(
        next((place for place, number in enumerate(prompt) if number not in specials), 0), most
    )
    return prompt[:first] + prompt[len(prompt) - most + first :]


def _without_end(prompt: TokenIds, end: int) -> TokenIds:
    return prompt[:-1] if len(prompt) > 1 and prompt[-1] == end else prompt


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
        self._told = False
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
        self._check(rows)
        wanted = [as_row(row) for row in rows]
        # how many there are is all that matters of the labels of a row without references
        unknown = [self.pad] * self.targets.arguments.max_new_tokens if self.training else []
        first = [row.references[0] if row.references else unknown for row in wanted]
        batch: dict[str, Any] = {ROWS: wanted}
        inputs, labels = self._causal(rows, first) if self.causal else (self._inputs(rows), first)
        batch |= inputs
        if self.training or any(row.references for row in wanted):
            batch["labels"] = padded(labels, IGNORED)
        weighed = self.targets.arguments.objective != "ml" or any(
            len(row.references) > 1 for row in wanted
        )
        if self.training and weighed and not self.targets.wants("model"):
            if get_worker_info() is not None:  # a process of its own, which is ahead anyway
                batch[TARGET] = self.make(wanted)
            else:
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="softq-target")
                batch[TARGET] = self._pool.submit(self.make, wanted)
        return batch

    def _check(self, rows: Sequence[Mapping[str, Any]]) -> None:
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
        return inputs | {PROMPTS: padded_inputs(prompts, self.pad, "left")}, labels

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
            return padded_inputs([_source_ids(row) for row in rows], self.pad)
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
