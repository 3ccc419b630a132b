"""Minimum-Bayes-risk self-distillation: a model is trained toward what its own samples agree on.

The samples y_1..y_m of the model for a source are the references of SQDML (eq. 15 of the paper):
the target is Q~(y_s|x; tau) ∝ exp( mean_i r(y_s, y_i) / tau ) over the distinct samples. As tau → 0
it is the sample of minimum Bayes risk alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainerCallback

from softq.decode import mbr
from softq.errors import DataError, RewardError, RunError
from softq.integrations.transformers.candidates import batch_seed
from softq.integrations.transformers.generation import TextModel, Writing
from softq.integrations.transformers.tokens import decode_all
from softq.lab.run import RunFolder, write_atomically
from softq.rewards import Reward
from softq.spaces import Candidates

Row = dict[str, Any]


def distill(
    model: TextModel, sources: Sequence[str], how: Writing, *, hard: bool = False, skip: int = 0
) -> Iterator[list[Row | None]]:
    """Rows to train on, one for each source in their order, a batch at a time.

    A row has the ``source``, as ``references`` the sample of the highest mean reward against all
    samples, as ``candidates`` all distinct samples, that one first, and as ``candidate_rewards``
    their mean rewards. It is None where the model samples nothing but empty texts.

    Args:
        model: that samples and learns.
        sources: what it reads.
        how: ``samples``, ``reward``, ``temperature``, ``top_p``, ``max_new_tokens``, ``batch_size``
            and ``seed`` count.
        hard: leave out ``candidates`` and ``candidate_rewards``: tau → 0, for training by ML.
        skip: batches that are done already; samples of a batch depend on its number and the seed.

    """
    reward = _utility(model, how)
    for first in range(skip * how.batch_size, len(sources), how.batch_size):
        some = sources[first : first + how.batch_size]
        drawn = model.samples(some, replace(how, seed=batch_seed(how.seed, first)))
        made: list[Row | None] = [None] * len(some)
        places = drawn.present.any(1).nonzero().squeeze(1)
        if len(places):
            kept = Candidates(drawn.tokens[places], drawn.lengths[places])
            rewards = mbr(kept, reward).expected_rewards.tolist()
            for place, texts, values in zip(
                places.tolist(), kept.sentences.unpack(), rewards, strict=True
            ):
                made[place] = _row(some[place], decode_all(model.tokenizer, texts), values, hard)
        yield made


def _utility(model: TextModel, how: Writing) -> Reward:
    """The reward of one sample against another."""
    reward = model.reward(how.reward)
    if not reward.pairwise:
        raise RewardError(
            f"distillation needs a reward of two texts, and {reward!r} takes all references"
            " together: choose another one, such as words:chrf"
        )
    return reward


def _row(source: str, texts: Sequence[str], rewards: Sequence[float], hard: bool) -> Row | None:
    present = (value for value in rewards if value > float("-inf"))
    found: dict[str, float] = {}
    for text, value in zip(texts, present, strict=True):
        if text.strip():
            found[text] = max(value, found.get(text, value))
    ordered = sorted(found, key=lambda text: -found[text])
    if not ordered:
        return None
    row: Row = {"source": source, "references": ordered[:1]}
    if not hard:
        row |= {"candidates": ordered, "candidate_rewards": [found[text] for text in ordered]}
    return row


class EveryEpoch(TrainerCallback):  # type: ignore[misc]  # of no type that mypy knows
    """Puts other rows in the place of a dataset's at the beginning of every epoch.

    Args:
        rows: the dataset of a Trainer, which stays as long as it is.
        make: the rows of an epoch, by its number; they are repeated where there are fewer.

    """

    def __init__(self, rows: list[Any], make: Callable[[int], Sequence[Any]]) -> None:
        self.rows, self.make = rows, make

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer, before it reads the dataset."""
        # epochs are counted in steps, as a sum of fractions
        made = self.make(int((state.epoch or 0.0) + 1e-6))
        self.rows[:] = islice(cycle(made), len(self.rows))


class Distilled(NamedTuple):
    """What is in a file of `distill_to`."""

    rows: int
    left_out: int
    """Sources for which the model samples nothing but empty texts."""
    resumed_from: int
    """Sources that an earlier call, which did not end, had done."""


def distill_to(
    out: Path,
    model: TextModel,
    sources: Sequence[str],
    how: Writing,
    *,
    hard: bool = False,
    about: Mapping[str, Any] | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Distilled:
    """Write the rows of `distill` to a file of JSON lines, whole or not at all.

    Until it is whole, the batches that are done are in ``.NAME.part``; the same call after a kill
    resumes there and makes the same file.

    Args:
        out: the file; an existing one is replaced when the new one is whole.
        model: as in `distill`, and so ``sources``, ``how`` and ``hard``.
        sources: likewise.
        how: likewise.
        hard: likewise.
        about: what else the rows depend on, such as the model's path; a file that was begun with
            another model, other sources or settings is an error.
        tell: told how many sources are done, and of how many.

    """
    if not sources:
        raise DataError("expected sources to distill from, got none")
    _utility(model, how)  # an error before anything is written
    digest = hashlib.sha256(json.dumps(list(sources)).encode()).hexdigest()[:16]
    names = ("samples", "reward", "temperature", "top_p", "max_new_tokens", "batch_size", "seed")
    settings = {name: getattr(how, name) for name in names}
    described = {"sources": digest, "hard": hard, **settings, **(about or {})}
    folder, part = RunFolder(out.parent), f".{out.name}.part"
    begun = _begin(out, folder, part, described)
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    done = [row for line in begun[1:] for row in line["rows"]]
    before = len(done)
    tell(before, len(sources))
    ordered = [sources[place] for place in order]
    for rows in distill(model, ordered, how, hard=hard, skip=len(begun) - 1):
        folder.append_line(part, {"rows": rows})
        done += rows
        tell(len(done), len(sources))
    kept = [row for _, row in sorted(zip(order, done, strict=True)) if row is not None]
    if not kept:
        raise DataError("the model samples nothing but empty texts: train it by ml first")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
    write_atomically(out, lines.encode())
    out.with_name(part).unlink()
    return Distilled(len(kept), len(done) - len(kept), before)


def _begin(out: Path, folder: RunFolder, part: str, described: dict[str, Any]) -> list[Any]:
    """The lines of an unfinished file, the first of which says what it depends on."""
    out.parent.mkdir(parents=True, exist_ok=True)
    begun = folder.lines(part)
    if begun and begun[0] != described:
        changed = sorted(name for name in described if begun[0].get(name) != described[name])
        raise RunError(
            f"{out} was begun and not finished with other {', '.join(changed) or 'settings'}: finish"
            f" it with the same ones, choose another file, or delete {out.with_name(part)} to begin"
            " anew"
        )
    lines = begun or [described]
    folder.rewrite_lines(part, lines)  # without half a line that a kill has left
    return lines
