"""The one objective of the paper: cross-entropy between a target and a model on one output space.

    H(target, model) = - E_{y ~ target}[ log P_model(y) ] = log Z(model) - < E_target[parts], scores(model) >

(eq. 2 with `softq.ml`, eq. 4 with `softq.raml`, eq. 14 with `softq.sqdml`; appendix eq. 5). Its gradient with respect
to the scores is E_model[parts] - E_target[parts] (appendix eq. 6). Where the target lives on candidates, the model is what it gives to
them, and the loss is - Σ_s w_s log P_model(y_s) (Appendix C). One number per example; how to reduce them is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softq.distributions import Distribution
from softq.errors import DtypeError, ShapeError, TemperatureError
from softq.numerics import inner, or_inf
from softq.sampled import SampledTarget
from softq.targets import Target


def cross_entropy(
    target: Target | SampledTarget | Distribution, model: Distribution | Tensor, *, temperature_scaled: bool = False
) -> Tensor:
    """H(target, model) per example, ``[*B]``; +inf where the model forbids what the target asks for.

    Args:
        target: from `ml`, `raml` or `sqdml`, or any distribution on the model's output space.
        model: the model's distribution; for a target on candidates, the model's log-probabilities ``[B, K]`` of ``target.outputs``.
        temperature_scaled: divide the model's scores by the target's τ and multiply the loss by τ². The scores then
            estimate rewards at any τ instead of shrinking with 1/τ, which is what makes large τ fail in the
            paper's Figure 2; as τ → ∞ the loss becomes least squares on the expected reward.

    >>> import softq, torch
    >>> p = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    >>> cross_entropy(softq.raml(p, torch.tensor([[0, 1, 1]]), tau=0.5), p).exp().round()  # a uniform model: 2**3
    tensor([8.])
    >>> cands = softq.Candidates(torch.tensor([[[1, 2], [1, 3]]]), torch.tensor([[2, 2]]))
    >>> cross_entropy(softq.raml(cands, [[1, 2]], tau=1.0, reward=softq.rewards.TokenAccuracy()), torch.tensor([[0.6, 0.4]]).log())
    tensor([0.6199])

    """
    if isinstance(target, SampledTarget):
        return _on_candidates(target, model, temperature_scaled)
    if isinstance(target, Distribution) and isinstance(model, Distribution) and not temperature_scaled:
        return target.cross_entropy(model)
    target, model = _checked(target, model, temperature_scaled)
    return _tempered(target, model, temperature_scaled, lambda model: model.cross_entropy_from(target.expected_parts(model)))


def kl(target: Target | SampledTarget | Distribution, model: Distribution | Tensor, *, temperature_scaled: bool = False) -> Tensor:
    """KL(target ‖ model) = H(target, model) - H(target) per example, ``[*B]``: 0 if and only if they agree.

    Raises IntractableError where the target's entropy has no closed form (RAML with several different
    references on chains or trees).

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> kl(softq.ml(p, torch.tensor([2])), p).exp().round()
    tensor([4.])
    """
    if isinstance(target, SampledTarget):
        return _on_candidates(target, model, temperature_scaled) - target.entropy().to(model if isinstance(model, Tensor) else None)
    if isinstance(target, Distribution) and isinstance(model, Distribution) and not temperature_scaled:
        return target.kl(model)
    target, model = _checked(target, model, temperature_scaled)
    return _tempered(
        target, model, temperature_scaled, lambda model: model.cross_entropy_from(target.expected_parts(model)) - target.entropy()
    )


def _on_candidates(target: SampledTarget, model: Distribution | Tensor, temperature_scaled: bool) -> Tensor:
    """- Σ_s w_s log P(y_s); a candidate without weight counts nothing, whatever the model says of it."""
    if not isinstance(model, Tensor) or not model.dtype.is_floating_point:
        got = model.dtype if isinstance(model, Tensor) else type(model).__name__
        raise DtypeError(f"a target on candidates needs the model's log-probabilities of target.outputs as a tensor, got {got}")
    if model.shape != target.weights.shape:
        raise ShapeError(
            f"log-probabilities must have shape {list(target.weights.shape)}, one per candidate of target.outputs, got {list(model.shape)}"
        )
    if temperature_scaled:
        raise TemperatureError("temperature_scaled divides scores by tau, and log-probabilities of candidates are normalised already")
    model = model if model.dtype == torch.float64 else model.float()  # weights lose too much in 16 bits
    return -inner(target.weights.to(model), model, (1,))


def _checked(target: Target | Distribution, model: Distribution | Tensor, temperature_scaled: bool) -> tuple[Target, Distribution]:
    """Target and model, if they fit together."""
    if not isinstance(target, (Target, Distribution)) or not isinstance(model, Distribution):
        raise DtypeError(f"expected a target and a distribution, got {type(target).__name__} and {type(model).__name__}")
    if isinstance(target, Distribution) or (temperature_scaled and target.tau is None):
        raise TemperatureError("temperature_scaled needs a target with a temperature (softq.raml or softq.sqdml)")
    target.space.check_same_space(model)
    return target, model


def _tempered(target: Target, model: Distribution, temperature_scaled: bool, loss: Callable[[Distribution], Tensor]) -> Tensor:
    """The loss with the temperature in the target alone, or in the model as well."""
    if not temperature_scaled or target.tau is None:
        return or_inf(loss(model))
    return or_inf(target.tau**2 * loss(model.scaled(1.0 / target.tau)))
