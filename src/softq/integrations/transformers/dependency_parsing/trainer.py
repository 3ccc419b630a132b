"""A `transformers.Trainer` for parsers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from softq.errors import OutputError, SoftqError
from softq.formats.conllu import TreeSentence
from softq.integrations.transformers.dependency_parsing.arguments import DependencyArguments
from softq.integrations.transformers.dependency_parsing.losses import TreeLosses
from softq.integrations.transformers.dependency_parsing.model import DependencyModel
from softq.integrations.transformers.dependency_parsing.rows import DependencyCollator
from softq.integrations.transformers.tokens import IGNORED
from softq.integrations.transformers.words.trainer import WordTrainer, is_indexed
from softq.linear.parser import tell_of_crossing
from softq.metrics import ATTACHMENT_METRICS, attachment_statistics


class DependencyTrainer(WordTrainer):
    """Trains a parser: a distribution over dependency trees on an encoder of Transformers.

    Rows have ``tokens``, ``heads`` and ``deprels``, or ``annotations`` of several annotators, or
    are sentences of `softq.formats.read_conllu`; see `DependencyCollator`. Everything else is
    Trainer's. A ``train_dataset`` that has a length is checked before training, and where its trees
    cross and the model is projective, a `softq.linear.parser.NonprojectiveWarning` counts them.

    Evaluation adds ``uas``, ``las``, ``las_subtypes``, ``clas``, ``exact_match`` and
    ``labelled_exact_match``, see `softq.metrics.attachment`, against trees as they were given; so
    ``metric_for_best_model="las"`` works. A word whose head nobody knows is left out; of several
    annotators each word's majority counts.

    Args:
        model: a `DependencyModel`, also with PEFT adapters.
        args: with ``objective``, ``tau`` and the like.
        more: as `transformers.Trainer` takes it; ``processing_class`` is the tokenizer, a fast one.

    """

    arguments_type, model_type = DependencyArguments, DependencyModel

    def prepare(
        self,
        core: DependencyModel,
        args: DependencyArguments,
        collator: DependencyCollator,
        more: dict[str, Any],
    ) -> None:
        """Losses and metrics; the rows to train on are looked at."""
        self.losses = TreeLosses(args.objective, args.tau)
        if more.get("compute_metrics") is None:
            names = collator.trees.names
            more["compute_metrics"] = partial(parsing_metrics, names=names)
        rows: Any = more.get("train_dataset")
        if is_indexed(rows):
            crossing = _crossing(rows, collator)
            if len(crossing) and args.process_index == 0:
                tell_of_crossing(crossing, len(rows), "lift")


def _crossing(rows: Any, collator: DependencyCollator) -> Any:
    """The rows whose trees cross and are lifted; what cannot be learnt from is an error."""
    lifted, relations = [], len(collator.trees.relations)
    for place in range(len(rows)):
        try:
            known = collator.known(rows[place])
            if known is None:
                raise OutputError(f"expected {collator.columns}, got none")
            for tree in known.trees:
                if any(number >= relations for number in tree.relations):
                    wanted = ", ".join(collator.trees.relations)
                    raise OutputError(f"expected one of the relations {wanted}, got another")
        except SoftqError as error:
            raise type(error)(f"row {place} of train_dataset (from 0): {error}") from None
        if known.lifted:
            lifted.append(place)
    return np.array(lifted)


def parsing_metrics(found: Any, names: tuple[str, ...]) -> dict[str, float]:
    """Scores of heads and relations ``[N, n]``, against right ones, -100 on words that do not count.

    >>> from types import SimpleNamespace
    >>> heads, relations = np.array([[2, 0, 2]]), np.array([[1, 0, 1]])
    >>> gold = np.array([[2, 0, -100]]), np.array([[1, 1, -100]])
    >>> scores = parsing_metrics(
    ...     SimpleNamespace(predictions=(heads, relations), label_ids=gold), ("root", "nsubj"))
    >>> scores["uas"], scores["las"]
    (1.0, 0.5)
    """
    (heads, relations), (gold, named) = found.predictions, found.label_ids
    known = gold != IGNORED
    bare = _sums(heads, gold, known)
    scores = {name: ATTACHMENT_METRICS[name](bare) for name in ("uas", "exact_match")}
    known &= named != IGNORED
    if known.any():
        full = _sums(heads, gold, known, (relations, named), np.array(names, object))
        scores |= {name: f(full) for name, f in ATTACHMENT_METRICS.items() if name not in scores}
    return {name: float(score) for name, score in scores.items() if not score.isnan()}


def _sums(heads: Any, gold: Any, counted: Any, relations: Any = (), names: Any = None) -> Tensor:
    """Counts of predicted and right heads and relations of the words that count, summed."""
    some = counted.any(1)
    rows = [
        [row[mask] for row, mask in zip(table[some], counted[some], strict=True)]
        for table in (heads, gold, *relations)
    ]
    guessed, named = (
        ([names[ids] for ids in table] for table in rows[2:]) if relations else (None, None)
    )
    true = []
    for number, tree in enumerate(rows[1]):
        nothing = ("",) * len(tree)
        labels = nothing if named is None else tuple(named[number])
        true.append(TreeSentence(nothing, nothing, nothing, nothing, nothing, tuple(tree), labels))
    return attachment_statistics(true, rows[0], guessed).sum(0)
