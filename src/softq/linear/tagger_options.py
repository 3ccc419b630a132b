"""What the options of `CRFTagger` mean: rewards and tag schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from softq.errors import DataError, EstimatorError, OutputError, RewardError, ShapeError
from softq.formats.tags import Scheme, faults
from softq.linear.options import choice, not_negative, positive
from softq.linear.tagger_input import Annotations
from softq.linear.tagging import entity_reward
from softq.rewards import TokenReward

Array = np.ndarray[Any, Any]
SchemeOption = Literal["auto", "iob1", "bio", "bioes"]


def scheme_for(option: Any, annotations: Annotations) -> Scheme:
    """The tag scheme of an option, where it says "auto" the one that the labels follow."""
    known: tuple[SchemeOption, ...] = get_args(SchemeOption)
    scheme = choice("scheme", option, known)
    found = annotations.scheme()
    if scheme != "auto":
        if found not in (scheme, None):
            _check_scheme(scheme, annotations, found)
        return scheme
    if found is None:
        labels = ", ".join(annotations.labels[:5])
        raise DataError(
            f"constraints are for tags of entities such as B-PER, and the labels of y are {labels}:"
            " leave constraints at 'none'"
        )
    return found


def _check_scheme(scheme: Scheme, annotations: Annotations, found: Scheme | None) -> None:
    """Labels of another scheme would all be forbidden, and a tagger that keeps to this one would predict nothing but O."""
    for number, sequences in enumerate(annotations.sequences):
        for labels in sequences:
            for place, message in faults(labels, scheme):
                raise DataError(
                    f"scheme={scheme!r} does not fit: sentence {number}, token {place}: {message};"
                    f" the labels of y follow {found}"
                )


def reward_for(option: Any, entity_weight: Any, labels: Sequence[str]) -> TokenReward:
    """The reward over these labels."""
    weight = positive("entity_weight", entity_weight)
    if option is None:
        return entity_reward(labels, weight)
    if weight != 1.0:
        raise EstimatorError(
            f"reward and entity_weight={weight:g} do not go together: put the weight into the"
            " reward"
        )
    if isinstance(option, Mapping):
        unknown = [label for label in option if label not in labels]
        if unknown:
            raise OutputError(
                f"reward must name labels that occur in y, {', '.join(labels)}; got {unknown[0]!r}"
            )
        weights = [not_negative(f"reward of {label}", option.get(label, 1.0)) for label in labels]
        return TokenReward.weighted(torch.tensor(weights, dtype=torch.float64))
    table = reward_table(option)
    if table.shape != (len(labels), len(labels)):
        wanted = (
            f"[{len(labels)}, {len(labels)}] (predicted, right) for the labels of y,"
            f" {', '.join(labels)}"
        )
        raise ShapeError(f"reward must be {wanted}; got {list(table.shape)}")
    return TokenReward(torch.from_numpy(table))


def reward_table(option: Any) -> Array:
    """A reward that is given as a table, as float64."""
    try:
        return np.array(
            option.table.cpu().numpy() if isinstance(option, TokenReward) else option,
            dtype=np.float64,
        )
    except (TypeError, ValueError):
        wanted = (
            "a table [K, K] of numbers, a softq.rewards.TokenReward, or a dict from labels to"
            " numbers"
        )
        raise RewardError(f"reward must be {wanted}, got {type(option).__name__}") from None


def reward_as_json(option: Any) -> Any:
    """A reward as JSON can hold it; a tagger that gets the result has the same one."""
    if isinstance(option, Mapping):
        return {label: float(weight) for label, weight in option.items()}
    return None if option is None else reward_table(option).tolist()
