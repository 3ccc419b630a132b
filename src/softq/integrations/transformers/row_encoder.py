"""From rows of text to rows of token ids."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from softq.checks import check_count
from softq.errors import DataError, ModelError
from softq.integrations.text_rows import TEXT_COLUMNS, plain, text_row
from softq.integrations.transformers.tokens import TokenIds, special_by_tokenizer

logger = logging.getLogger(__name__)


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
        self._tell_columns(rows)
        sources, cut_sources = self._sources([row["source"] for row in checked])
        targets = {"references": "labels", "candidates": "candidates"}  # and what they become
        every = [text for row in checked for name in targets for text in row.get(name, [])]
        numbers, cut_targets = self._targets(every)
        if cut_sources + cut_targets:
            logger.warning(
                "cut off: %d of %d sources, which are longer than %d tokens, and %d of %d"
                " references and candidates, longer than %d",
                *(cut_sources, len(sources), self.max_source),
                *(cut_targets, len(numbers), self.max_target),
            )
        rest = iter(numbers)
        for row, source in zip(checked, sources, strict=True):
            row["input_ids"] = source
            del row["source"]
            for name, made in targets.items():
                if name in row:
                    row[made] = [next(rest) for _ in row.pop(name)]
        return checked

    def _tell_columns(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A warning, once, of columns that nobody reads."""
        others = {name for row in rows for name in row} - {*TEXT_COLUMNS}
        if others and not self._told:
            self._told = True
            logger.warning("columns that are not read: %s", ", ".join(sorted(others)))

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
