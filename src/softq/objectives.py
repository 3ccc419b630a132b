"""The one objective of the paper: cross-entropy between a target and a model on one output space.

    H(target, model) = - E_{y ~ target}[ log P_model(y) ] = log Z(model) - < E_target[parts], scores(model) >

(eq. 2 with `softq.ml`, eq. 4 with `softq.raml`, eq. 14 with `softq.sqdml`; appendix eq. 5). Its gradient with respect
to the scores is E_model[parts] - E_target[parts] (appendix eq. 6). One number per example; how to reduce them is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from softq.distributions import Distribution
from softq.errors import DtypeError, TemperatureError
from softq.targets import Target


def cross_entropy(target: Target | Distribution, model: Distribution, *, temperature_scaled: bool = False) -> Tensor:
    """H(target, model) per example, ``[*B]``; +inf where the model forbids what the target asks for.

    Args:
        target: from `ml`, `raml` or `sqdml`, or any distribution on the model's output space.
        model: the model's distribution.
        temperature_scaled: divide the model's scores by the target's τ and multiply the loss by τ². The scores then
            estimate rewards at any τ instead of shrinking with 1/τ, which is what makes large τ fail in the
            paper's Figure 2; as τ → ∞ the loss becomes least squares on the expected reward.

    >>> import softq, torch
    >>> p = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    >>> cross_entropy(softq.raml(p, torch.tensor([[0, 1, 1]]), tau=0.5), p).exp().round()  # a uniform model: 2**3
    tensor([8.])

    """
    if isinstance(target, Distribution) and not temperature_scaled:
        return target.cross_entropy(model)
    target = _checked(target, model, temperature_scaled)
    return _tempered(target, model, temperature_scaled, lambda model: model.cross_entropy_from(target.expected_parts(model)))


def kl(target: Target | Distribution, model: Distribution, *, temperature_scaled: bool = False) -> Tensor:
    """KL(target ‖ model) = H(target, model) - H(target) per example, ``[*B]``: 0 if and only if they agree.

    Raises IntractableError where the target's entropy has no closed form (RAML with several different
    references on chains or trees).

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> kl(softq.ml(p, torch.tensor([2])), p).exp().round()
    tensor([4.])
    """
    if isinstance(target, Distribution) and not temperature_scaled:
        return target.kl(model)
    target = _checked(target, model, temperature_scaled)
    return _tempered(
        target, model, temperature_scaled, lambda model: model.cross_entropy_from(target.expected_parts(model)) - target.entropy()
    )


def _checked(target: Target | Distribution, model: Distribution, temperature_scaled: bool) -> Target:
    """The target, if it and the model fit together."""
    if not isinstance(target, (Target, Distribution)) or not isinstance(model, Distribution):
        raise DtypeError(f"expected a target and a distribution, got {type(target).__name__} and {type(model).__name__}")
    if isinstance(target, Distribution) or (temperature_scaled and target.tau is None):
        raise TemperatureError("temperature_scaled needs a target with a temperature (softq.raml or softq.sqdml)")
    target.space.check_same_space(model)
    return target


def _tempered(target: Target, model: Distribution, temperature_scaled: bool, loss: Callable[[Distribution], Tensor]) -> Tensor:
    """The loss with the temperature in the target alone, or in the model as well."""
    if not temperature_scaled or target.tau is None:
        return loss(model)
    return target.tau**2 * loss(model.scaled(1.0 / target.tau))
