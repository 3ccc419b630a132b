"""What a trainer looks at in a model: what is inside, whether it can share, how it samples."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch import nn

from softq.errors import ModelError, RecipeError
from softq.integrations.transformers.scoring import ScoredCandidates
from softq.neural.generation import evaluating

logger = logging.getLogger(__name__)

# by which a log-probability may differ between two ways to compute it, relative to its size
TOLERANCE = 1e-3
LOW_TOLERANCE = 1e-2  # likewise in 16 bits
# settings of `generate` by which a model draws otherwise than it scores, beside those that say
# nothing
_ALTERING = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1,
    "suppress_tokens": None,
    "typical_p": 1,
}


def first_model(make: Any) -> Any:
    """A model to look at, as Trainer makes them; training is as if it had not been made."""
    with torch.random.fork_rng():
        return make(*[None] * min(1, len(inspect.signature(make).parameters)))  # no trial yet


def core_of(model: Any) -> Any:
    """The Transformers model inside an adapter."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a Transformers model, got {type(model).__name__}")
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ModelError(
            "adapters that put something before the prompt are not supported: use one that changes"
            " layers, such as LoRA"
        )
    whole: Any = model
    core = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    if not hasattr(core, "generate") or not hasattr(core, "config"):
        raise ModelError(
            f"expected a Transformers model that generates text, got {type(core).__name__}"
        )
    return core


def can_share(
    score: Any, core: Any, given: Any, scored: ScoredCandidates, tolerance: float
) -> bool:
    """Whether candidates may share what they have in common.

    Tried on a whole batch, since models differ in what they allow.
    """
    with evaluating(core):
        plain = score(core, core, given, scored, shared=False)
        try:
            shared = score(core, core, given, scored, shared=True)
        except (RuntimeError, TypeError, ValueError) as error:
            logger.warning(
                "candidates are scored one by one, since %s cannot read them together: %s",
                type(core).__name__,
                error,
            )
            return False
    if not torch.allclose(plain, shared, rtol=tolerance, atol=tolerance):
        logger.warning(
            "candidates are scored one by one, since %s reads them differently together",
            type(core).__name__,
        )
        return False
    return True


def check_draws(settings: Any) -> None:
    """Whether a model draws texts as it scores them, so that their probability is known."""
    found = [
        name
        for name, neutral in _ALTERING.items()
        if getattr(settings, name, None) not in (None, neutral, [])
    ]
    if found:
        raise RecipeError(
            "importance weights of the model's samples need draws from the model as it is: unset"
            f" {', '.join(found)} in model.generation_config, or use estimator 'set'"
        )
