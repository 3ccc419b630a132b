"""The one objective of the paper: cross-entropy between a target and a model on one output space.

    H(target, model) = - E_{y ~ target}[ log P_model(y) ]
                     = log Z(model) - < E_target[parts], scores(model) >

(eq. 2 with `softq.ml`, eq. 4 with `softq.raml`, eq. 14 with `softq.sqdml`; appendix eq. 5). Its
gradient with respect to the scores is E_model[parts] - E_target[parts] (appendix eq. 6). On
candidates the parts are the candidates, their scores the model's log-probabilities, and log Z = 0
(Appendix C). A distribution is a target, too: toward a teacher it is distillation. One number per
example; how to reduce them is the caller's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from softq.checks import check_tau
from softq.errors import DtypeError, TemperatureError
from softq.kernels.backend import use_kernels
from softq.spaces import Distribution
from softq.targets import Target


def cross_entropy(
    target: Target | Distribution,
    model: Any,
    *,
    temperature: float | None = None,
    temperature_scaled: bool = False,
) -> Tensor:
    """H(target, model) per example, ``[*B]``.

    +inf where the model forbids what the target asks for.

    Args:
        target: from `ml`, `raml` or `sqdml`, or any distribution on the model's output space.
        model: the model's distribution; for a target on candidates, the model's log-probabilities
            ``[B, K]`` of ``target.outputs``, or the distribution if they are its outputs
            (`softq.samplers.k_best`).
        temperature: of a distribution as the target: its scores are divided by it.
        temperature_scaled: divide the model's scores by the target's temperature and multiply the
            loss by its square. With RAML and SQDML the scores then estimate rewards at any τ
            instead of shrinking with 1/τ, which is what makes large τ fail in the paper's Figure 2;
            as τ → ∞ the loss becomes least squares on the expected reward. With a teacher it is the
            usual distillation at a temperature.

    >>> import softq, torch
    >>> p = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    >>> target = softq.raml(p, torch.tensor([[0, 1, 1]]), tau=0.5)
    >>> cross_entropy(target, p).exp().round()  # a uniform model: 2**3
    tensor([8.])
    >>> cands = softq.Candidates(torch.tensor([[[1, 2], [1, 3]]]), torch.tensor([[2, 2]]))
    >>> target = softq.raml(cands, [[1, 2]], tau=1.0, reward=softq.rewards.TokenAccuracy())
    >>> cross_entropy(target, torch.tensor([[0.6, 0.4]]).log())
    tensor([0.6199])

    Distillation of a chain into one without transitions, and of a parser at temperature 2:

    >>> teacher = softq.Chain(torch.randn(1, 4, 3), torch.randn(3, 3))
    >>> student = softq.Independent(torch.randn(1, 4, 3, requires_grad=True))
    >>> cross_entropy(teacher, student).sum().backward()
    >>> parser = softq.ProjectiveTree(torch.randn(2, 6, 6))
    >>> small = softq.ProjectiveTree(torch.randn(2, 6, 6, requires_grad=True))
    >>> cross_entropy(parser, small, temperature=2.0, temperature_scaled=True).shape
    torch.Size([2])

    """
    target, model = _on_one_space(target, model, temperature)
    return _scaled(_loss, target, model, temperature_scaled)


def kl(
    target: Target | Distribution,
    model: Any,
    *,
    temperature: float | None = None,
    temperature_scaled: bool = False,
) -> Tensor:
    """KL(target ‖ model) = H(target, model) - H(target) per example, ``[*B]``; arguments as above.

    Raises IntractableError where the target's entropy has no closed form (RAML with several
    different references on chains or trees).

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> kl(softq.ml(p, torch.tensor([2])), p).exp().round()
    tensor([4.])
    """
    target, model = _on_one_space(target, model, temperature)
    return _scaled(_divergence, target, model, temperature_scaled)


def _loss(target: Target, model: Any) -> Any:
    """H(target, model); a kernel computes both terms and the gradient in one sweep."""
    if model.has_kernel and use_kernels():
        expected = target.expected(model)  # E_target[parts]
        if expected is not None and not expected.requires_grad:
            return model.fused_loss(expected)
    log_z = model.log_partition
    loss = log_z - target.expected_score(model)  # log Z - < E_target[parts], scores >
    return loss.masked_fill(log_z == -math.inf, math.inf)  # where the model forbids every output


def _divergence(target: Target, model: Any) -> Any:
    """KL(target ‖ model)."""
    loss = _loss(target, model)
    return loss - target.entropy().to(loss)


def _scaled(
    loss: Callable[[Target, Any], Tensor], target: Target, model: Any, temperature_scaled: bool
) -> Tensor:
    """The loss with the temperature in the target alone, or in the model as well."""
    if not temperature_scaled:
        return loss(target, model)
    if target.tau is None:
        raise TemperatureError(
            "temperature_scaled needs a target with a temperature: softq.raml, softq.sqdml, or a "
            "distribution with temperature="
        )
    return target.tau**2 * loss(target, model.tempered(target.tau))


def _on_one_space(target: Any, model: Any, temperature: float | None) -> tuple[Target, Any]:
    """Target and model, if they fit together; a distribution becomes a target."""
    if isinstance(target, Distribution):
        teacher = target if temperature is None else target.tempered(check_tau(temperature))
        target = Target(teacher, teacher, None, temperature, "distribution", mixed=False)
    elif not isinstance(target, Target):
        raise DtypeError(
            f"expected a target and a model, got {type(target).__name__} as the target"
        )
    elif temperature is not None:
        raise TemperatureError(
            "temperature= is for a distribution as the target; those of softq.raml and softq.sqdml "
            "have their tau"
        )
    return target, target.outputs.as_model(model)
