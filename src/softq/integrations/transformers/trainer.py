"""A `transformers.Trainer` for ML, RAML and SQDML."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from softq.errors import DataError, ModelError, RecipeError
from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.candidates import (
    Row,
    StepTarget,
    StepTargets,
    add_ends,
    batch_seed,
)
from softq.integrations.transformers.generation import (
    Writer,
    Writing,
    corpus_score,
    seeded,
    write_and_score,
)
from softq.integrations.transformers.rewards import (
    as_text_reward,
    unknown_never_matches,
    with_sources,
)
from softq.integrations.transformers.rows import PROMPTS, ROWS, TARGET, RewardAugmentedCollator
from softq.integrations.transformers.scoring import (
    ScoredCandidates,
    causal_log_probs,
    encoder_decoder_log_probs,
    fits_one_row,
    one_row_is_less,
)
from softq.integrations.transformers.tokens import IGNORED, decode_all, special_tokens
from softq.neural.generation import evaluating
from softq.spaces import Candidates

logger = logging.getLogger(__name__)

# by which a log-probability may differ between two ways to compute it, relative to its size
_TOLERANCE = 1e-3
_LOW_TOLERANCE = 1e-2  # likewise in 16 bits
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


class RewardAugmentedTrainer(Trainer):  # type: ignore[misc]  # of no type that mypy knows
    """Fine-tunes encoder-decoders and causal models toward a reward.

    A Trainer whose loss is - Σ_s w_s log P(y_s | x).

    Rows have ``input_ids`` (source or prompt) and ``labels``: the token ids of one reference, or a
    list of several. They may have ``candidates`` and ``candidate_rewards``. `RowEncoder` makes them
    from text. Everything else is Trainer's.

    Args:
        model: with an encoder and a decoder (T5, BART, Marian) or a causal one (GPT-2, Llama), also
            with PEFT adapters.
        args: with ``objective``, ``tau`` and the like.
        reward: one of `softq.rewards` on token ids, or a function of two lists of strings,
            candidates and references pair by pair, that returns a number for each, and takes
            ``sources`` as its third argument if it has one of that name; ``args.reward`` names it
            if not given.
        data_collator: makes an encoder-decoder's inputs from rows without labels and candidates,
            such as images; token ids are padded if not given.
        more: as `transformers.Trainer` takes it; ``processing_class`` is the tokenizer, which
            rewards on text need.

    """

    def __init__(
        self,
        model: Any = None,
        args: RewardAugmentedArguments | None = None,
        *,
        reward: Any = None,
        data_collator: Any = None,
        **more: Any,
    ) -> None:
        if not isinstance(args, RewardAugmentedArguments):
            raise RecipeError(f"args must be RewardAugmentedArguments, got {type(args).__name__}")
        tokenizer = more.get("processing_class")
        core = _core_of(
            first_model(more["model_init"]) if model is None and more.get("model_init") else model
        )
        self.causal = not core.config.is_encoder_decoder
        if self.causal and data_collator is not None:
            raise RecipeError(
                "a causal model's rows are collated by softq; data_collator is for the inputs of"
                " encoder-decoders"
            )
        if args.objective != "ml" and more.get("compute_loss_func") is not None:
            raise RecipeError(
                f"compute_loss_func is for ml: the loss of {args.objective} is the trainer's own"
            )
        if args.objective != "ml" and args.estimator == "importance" and args.candidates == "model":
            _check_draws(core.generation_config)
        special = special_tokens(tokenizer, core)
        given = as_text_reward(args.reward if reward is None else reward, tokenizer)
        self.reward = unknown_never_matches(given, tokenizer, special.ids)
        vocab = (
            len(tokenizer) if tokenizer is not None else core.get_input_embeddings().num_embeddings
        )
        self.targets = StepTargets(args, self.reward, vocab, special)
        how = Writing(
            beams=args.eval_num_beams,
            samples=args.eval_mbr_samples,
            temperature=args.sampling_temperature,
            top_p=args.sampling_top_p,
            max_new_tokens=args.max_new_tokens,
        )
        self.writer = Writer(how, self.causal, special)
        collator = RewardAugmentedCollator(
            causal=self.causal,
            pad=special.pad,
            targets=self.targets,
            seed=args.seed,
            inputs=data_collator,
        )
        # whether what candidates share is computed once; found out on the first batch
        self._shared: bool | None = None
        super().__init__(model=model, args=args, data_collator=collator, **more)
        self.add_callback(_Epochs(collator))
        if args.objective != "ml":
            self._check_parallel()

    def _check_parallel(self) -> None:
        if self.args.n_gpu > 1:
            raise ModelError(
                f"{self.args.n_gpu} GPUs in one process would tear candidates from their sources:"
                " start one process per GPU with `accelerate launch` or `torchrun`, or show one"
                " GPU only (CUDA_VISIBLE_DEVICES=0)"
            )
        zero = getattr(getattr(self.accelerator.state, "deepspeed_plugin", None), "zero_stage", 0)
        pieces = "FSDP" if self.is_fsdp_enabled else "DeepSpeed ZeRO-3" if zero == 3 else None
        if pieces:
            raise ModelError(
                f"{pieces} is not supported: it gathers the weights only while the wrapped model"
                " runs, and softq also runs the model inside it, to read a source once for all its"
                " candidates, to sample candidates and to generate texts in evaluation; use DDP,"
                " with LoRA or DeepSpeed ZeRO-2 where memory is short"
            )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Loss of a batch.

        Transformers' own for ``ml`` with one reference and in evaluation, else the cross-entropy
        from the target.

        It is divided by the label tokens of the whole batch over all processes and accumulated
        steps, where Trainer counts them, or else by those of this batch.
        """
        own = {name: inputs[name] for name in (ROWS, TARGET, PROMPTS) if name in inputs}
        batch = {name: value for name, value in inputs.items() if name not in own}
        if not model.training or not own or not self._is_weighed(own[ROWS]):
            self._keep_labels(model, batch)
            return super().compute_loss(model, batch, return_outputs, num_items_in_batch)
        if self._has_own_loss:
            raise RecipeError(
                "label_smoothing_factor and compute_loss_func are for rows of one reference: leave"
                " them out"
            )
        self._check_parallel()
        labels = batch.pop("labels")
        given = own[PROMPTS] if self.causal else batch
        target = self._target(model, own, given).to(labels.device)
        log_probs = self._log_probs(model, given, target.scored)
        total = -(target.weights * log_probs).sum()
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            loss = total / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes
        else:  # Trainer divides by the number of accumulated steps
            loss = total / (labels != IGNORED).sum()
        return (loss, {"log_probs": log_probs}) if return_outputs else loss

    @property
    def _has_own_loss(self) -> bool:
        return self.label_smoother is not None or self.compute_loss_func is not None

    def _is_weighed(self, rows: Sequence[Row]) -> bool:
        """Whether a batch has a target of its own: not for ``ml`` with one reference."""
        return self.args.objective != "ml" or any(len(row.references) > 1 for row in rows)

    def _keep_labels(self, model: nn.Module, batch: dict[str, Any]) -> None:
        """What a decoder reads, where Trainer keeps labels from the model, which makes it of them."""
        if self._has_own_loss and not self.causal and "labels" in batch:
            core = _core_of(self.accelerator.unwrap_model(model))
            made = core.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
            batch["decoder_input_ids"] = made

    def _target(
        self, model: nn.Module, own: Mapping[str, Any], given: Mapping[str, Any]
    ) -> StepTarget:
        if TARGET in own:  # an error in making it is raised here
            made: Any = own[TARGET]
            return made.result() if isinstance(made, Future) else made  # type: ignore[no-any-return]
        drawn = [self._samples(model, own[ROWS], given)] if self.targets.wants("model") else []
        return self.data_collator.make(own[ROWS], *drawn)  # type: ignore[no-any-return]

    def _samples(
        self, model: nn.Module, rows: Sequence[Row], given: Mapping[str, Any]
    ) -> Candidates:
        """The model's own texts, with their probabilities where importance weights need them."""
        core, size = _core_of(self.accelerator.unwrap_model(model)), self.args.candidate_size
        weighed = self.args.estimator == "importance"
        drawn = self.writer.samples(core, given, size, finished=weighed)
        if not weighed:
            return drawn
        log_probs = torch.zeros(drawn.lengths.shape)
        if bool(drawn.present.any()):
            scored = add_ends(drawn.sentences, self.targets.ends(rows))
            with evaluating(model):
                log_probs = self._log_probs(model, given, scored.to(self.args.device))
        return replace(
            drawn, log_proposal=log_probs.double().cpu(), draws=torch.full((len(rows),), size)
        )

    def _log_probs(
        self, model: nn.Module, given: Mapping[str, Any], scored: ScoredCandidates
    ) -> Tensor:
        core = _core_of(self.accelerator.unwrap_model(model))
        score = causal_log_probs if self.causal else encoder_decoder_log_probs
        # one candidate shares nothing, and neither do those of a row that is too long; so they do
        # not say whether it can be
        together = scored.tokens.shape[1] > 1 and (
            not self.causal or fits_one_row(core, given, scored)
        )
        if together and self._shared is None:
            exact = core.dtype == torch.float32 and self.accelerator.mixed_precision == "no"
            self._shared = can_share(
                score, core, given, scored, _TOLERANCE if exact else _LOW_TOLERANCE
            )
        worth = not self.causal or one_row_is_less(given, scored)
        return score(model, core, given, scored, shared=together and worth and bool(self._shared))

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Trainer's own, and the scores of generated texts.

        These are ``reward``, the corpus metric, and with ``eval_mbr_samples`` also ``mbr_reward``
        and ``mbr_gap``, by how much the texts of minimum Bayes risk do better than the most
        probable ones.
        """
        collator = self.data_collator
        collator.training = False
        try:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            if self.args.eval_generate:
                # the same samples whenever it is called, and training continues as if it had not been
                with seeded(self.args.seed, self.args.device):
                    scores = self._scores(dataloader)
                output.metrics.update(
                    {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
                )
        finally:
            collator.training = True
        return output

    def _scores(self, dataloader: Any) -> dict[str, float]:
        core = _core_of(self.accelerator.unwrap_model(self.model_wrapped))
        written: list[tuple[Any, ...]] = []  # for each row: reward, reward of MBR, text, references
        seconds = mbr_seconds = 0.0
        for batch in dataloader:
            given = batch[PROMPTS] if self.causal else batch
            others = (ROWS, TARGET, PROMPTS, "labels")
            inputs = {
                name: value
                for name, value in given.items()
                if name not in others and value is not None
            }
            references = [row.references for row in batch[ROWS]]
            reward = with_sources(self.reward, [row.source for row in batch[ROWS]])
            found = write_and_score(self.writer, core, inputs, references, reward)
            seconds, mbr_seconds = seconds + found.seconds, mbr_seconds + found.mbr_seconds
            scored = found.rewards.tolist(), found.mbr_rewards.tolist()
            rows = list(zip(*scored, found.best, references, strict=True))
            written += self.accelerator.gather_for_metrics(rows, use_gather_object=True)
        if not written:
            raise DataError(
                "there are no rows to evaluate: give an eval_dataset of one or more, or set"
                " eval_generate False"
            )
        rewards, risk_rewards, texts, right = zip(*written, strict=True)
        scores = {"reward": sum(rewards) / len(rewards), "generation_seconds": seconds}
        if self.args.eval_mbr_samples:
            mean = sum(risk_rewards) / len(risk_rewards)
            scores |= {
                "mbr_reward": mean,
                "mbr_gap": mean - scores["reward"],
                "mbr_seconds": mbr_seconds,
            }
        if self.processing_class is not None:
            said = decode_all(self.processing_class, list(texts))
            wanted = [decode_all(self.processing_class, row) for row in right]
            scores |= corpus_score(self.args.corpus_metric, said, wanted)
        return scores


class _Epochs(TrainerCallback):  # type: ignore[misc]  # of no type that mypy knows
    """Tells the collator which epoch it is, so that candidates are drawn anew, and the same after a restart."""

    def __init__(self, collator: RewardAugmentedCollator) -> None:
        self.collator = collator

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        # epochs are counted in steps, as a sum of fractions
        self.collator.epoch = int((state.epoch or 0.0) + 1e-6)
        if getattr(args, "group_by_length", False) or getattr(
            args, "train_sampling_strategy", "random"
        ) not in ("random", "sequential"):
            # Trainer draws such an order from the seed of all things, which a resumed run has left
            # elsewhere
            torch.manual_seed(batch_seed(args.seed, self.collator.epoch))


def first_model(make: Any) -> Any:
    """A model to look at, as Trainer makes them; training is as if it had not been made."""
    with torch.random.fork_rng():
        return make(*[None] * min(1, len(inspect.signature(make).parameters)))  # no trial yet


def _core_of(model: Any) -> Any:
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


def _check_draws(settings: Any) -> None:
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
