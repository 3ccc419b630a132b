"""A `transformers.Trainer` for ML, RAML and SQDML."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, RandomSampler
from transformers import Trainer, TrainerCallback

from softq.errors import DataError, ModelError, RecipeError
from softq.integrations.text_rows import plain
from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.base_model import BaseModel, has_adapters, is_deterministic
from softq.integrations.transformers.candidates import StepTargets, batch_seed
from softq.integrations.transformers.generation import (
    Writer,
    Writing,
    corpus_score,
    positions,
    seeded,
    write_and_score,
)
from softq.integrations.transformers.model_checks import (
    LOW_TOLERANCE,
    TOLERANCE,
    can_share,
    check_draws,
    core_of,
    first_model,
)
from softq.integrations.transformers.own_samples import OwnSamples, RepeatedBatches
from softq.integrations.transformers.rewards import (
    as_reward,
    unknown_never_matches,
    with_sources,
)
from softq.integrations.transformers.rows import PROMPTS, ROWS, TARGET, RewardAugmentedCollator
from softq.integrations.transformers.sampling import Generate
from softq.integrations.transformers.scoring import (
    ScoredCandidates,
    causal_log_probs,
    encoder_decoder_log_probs,
    fits_one_row,
    one_row_is_less,
)
from softq.integrations.transformers.step_statistics import Averages
from softq.integrations.transformers.step_target import StepTarget
from softq.integrations.transformers.tokens import (
    IGNORED,
    decode_all,
    special_tokens,
    usual_ends,
)
from softq.neural.generation import evaluating

logger = logging.getLogger(__name__)

# by what names Trainer's history has what was seen of the model's samples
AVERAGES = (
    *("reward", "reward_std", "kl_base", "entropy", "completion_length", "distinct", "ess"),
    *("ess_reused", "finished"),
)
# steps between two looks at the model's entropy where an epoch has one log
_LOOKS_EVERY = 8


class RewardAugmentedTrainer(Trainer):  # type: ignore[misc]  # of no type that mypy knows
    """Fine-tunes encoder-decoders and causal models toward a reward.

    A Trainer whose loss is - Σ_s w_s log P(y_s | x).

    Rows have ``input_ids`` (source or prompt) and may have ``labels``: the token ids of one
    reference, or a list of several. They may have ``candidates`` and ``candidate_rewards``.
    `RowEncoder` makes them from text. Everything else is Trainer's.

    Args:
        model: with an encoder and a decoder (T5, BART, Marian) or a causal one (GPT-2, Llama), also
            with PEFT adapters.
        args: with ``objective``, ``tau`` and the like.
        reward: one of `softq.rewards` on token ids, or a function of two lists of strings,
            candidates and references pair by pair, that returns a number for each, and takes
            ``sources`` as its third argument if it has one of that name; or a function of
            ``completions`` and, if it has that parameter, ``prompts``, which needs no references;
            or several, a list or a dict of weights; ``args.reward`` names it if not given.
        generate: generates the samples of ``candidates="model"`` in place of the model, such as a
            client of a server (`softq.integrations.transformers.sampling.Generate`).
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
        generate: Generate | None = None,
        data_collator: Any = None,
        **more: Any,
    ) -> None:
        if not isinstance(args, RewardAugmentedArguments):
            raise RecipeError(f"args must be RewardAugmentedArguments, got {type(args).__name__}")
        tokenizer = more.get("processing_class")
        core = core_of(
            first_model(more["model_init"]) if model is None and more.get("model_init") else model
        )
        self.causal = not core.config.is_encoder_decoder
        self._check_given(args, data_collator, more.get("compute_loss_func"))
        self._check_samples(args, core, generate)
        special = special_tokens(tokenizer, core)
        given = as_reward(args.reward if reward is None else reward, args.reward_weights, tokenizer)
        self.reward = unknown_never_matches(given, tokenizer, special.ids)
        if args.eval_mbr_samples and not self.reward.uses_references:
            raise RecipeError(
                "eval_mbr_samples needs a reward that compares two texts, got"
                f" {self.reward.signature!r}"
            )
        vocab = (
            len(tokenizer) if tokenizer is not None else core.get_input_embeddings().num_embeddings
        )
        ends = usual_ends(tokenizer, special, causal=self.causal)
        self.targets = StepTargets(args, self.reward, vocab, special, ends)
        self.writer = Writer(
            _writing(args),
            self.causal,
            special,
            mode=args.generation,
            generate=generate,
            start=ends.before,
        )
        collator = RewardAugmentedCollator(
            causal=self.causal,
            pad=special.pad,
            targets=self.targets,
            seed=args.seed,
            inputs=data_collator,
            context=positions(core) if self.causal else None,
        )
        self.averages, self._stale = Averages(), False
        # whether what candidates share is computed once; found out on the first batch
        self._shared: bool | None = None
        super().__init__(model=model, args=args, data_collator=collator, **more)
        self._order = torch.Generator()
        self.add_callback(_Epochs(collator, self._order))
        if args.objective != "ml":
            self._check_parallel()
        self._prepare_samples()

    def _prepare_samples(self) -> None:
        """What is needed for priors and for the model's own samples, as training begins."""
        args, core = self.args, core_of(self.model)
        if args.reuse_samples > 1 and isinstance(self.train_dataset, IterableDataset):
            raise RecipeError("reuse_samples needs a dataset of known length, got a stream")
        self._deterministic = is_deterministic(core)
        wanted = args.prior == "base" or args.track_base or has_adapters(self.model)
        self.base = BaseModel(self.model, core) if wanted and args.objective != "ml" else None
        self.samples = OwnSamples(
            args,
            self.writer,
            self.data_collator,
            own_log_probs=self._own_log_probs,
            base_log_probs=None if self.base is None else self._base_log_probs,
        )

    def _check_given(
        self, args: RewardAugmentedArguments, data_collator: Any, compute_loss_func: Any
    ) -> None:
        """Whether the trainer can be given these functions."""
        if self.causal and data_collator is not None:
            raise RecipeError(
                "a causal model's rows are collated by softq; data_collator is for the inputs of"
                " encoder-decoders"
            )
        if args.objective != "ml" and compute_loss_func is not None:
            raise RecipeError(
                f"compute_loss_func is for ml: the loss of {args.objective} is the trainer's own"
            )

    @staticmethod
    def _check_samples(args: RewardAugmentedArguments, core: Any, generate: Any) -> None:
        """Whether samples can be had as they are asked for."""
        if generate is not None and (
            not callable(generate) or "model" not in args.candidate_kinds or args.objective == "ml"
        ):
            raise RecipeError(
                "generate must be a function that makes samples for candidates 'model', got"
                f" {generate!r} for candidates {args.candidates!r}"
            )
        own = args.candidates == "model" and generate is None
        if args.objective != "ml" and args.estimator == "importance" and own:
            check_draws(core.generation_config)

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
        if not model.training or not own or not self.targets.weighs(own[ROWS]):
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
        target, log_probs = self._step(model, own, given)
        self.averages.add(target.statistics)
        scores = log_probs
        if self.args.length_normalization in ("loss", "both"):
            tokens = (labels != IGNORED).sum(1, keepdim=True)
            scores = log_probs * tokens / target.scored.lengths.clamp(min=1)
        total = target.cross_entropy(scores)
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

    def _keep_labels(self, model: nn.Module, batch: dict[str, Any]) -> None:
        """What a decoder reads, where Trainer keeps labels from the model, which makes it of them."""
        if self._has_own_loss and not self.causal and "labels" in batch:
            core = core_of(self.accelerator.unwrap_model(model))
            made = core.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
            batch["decoder_input_ids"] = made

    def _step(
        self, model: nn.Module, own: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[StepTarget, Tensor]:
        """The target of a batch, and the model's log-probabilities ``[B, K]`` of its candidates."""
        device, drawn = self.args.device, None
        if TARGET in own:  # an error in making it is raised here
            made: Any = own[TARGET]
            step = made.result() if isinstance(made, Future) else made
        elif self.targets.wants("model"):
            core = core_of(self.accelerator.unwrap_model(model))
            step, drawn = self.samples(model, core, own[ROWS], given)
            self.averages.add({"finished": drawn.exact.double().mean(1)})
            if self._logs_next():
                self.averages.add(self.samples.look_at(model, own[ROWS], given, drawn))
        else:
            step = self.data_collator.make(own[ROWS])
        if isinstance(step, StepTarget):
            target = step.to(device)
            return target, self._log_probs(model, given, target.scored)
        scored = step.scored
        if self.args.prior == "current" and self._deterministic and self.args.k is None:
            log_probs = self._log_probs(model, given, scored.to(device))
            return step.weigh(log_probs.detach().cpu(), keep_all=True).to(device), log_probs
        if self.args.prior == "base":
            prior = self._base_log_probs(model, given, scored)
        else:
            known = step.known_log_probs if drawn is None or drawn.fresh else None
            prior = self._own_log_probs(model, given, scored) if known is None else known
        target = step.weigh(prior).to(device)
        return target, self._log_probs(model, given, target.scored)

    def _logs_next(self) -> bool:
        """Whether Trainer logs after this step."""
        step, strategy = self.state.global_step, str(self.args.logging_strategy.value)
        if strategy == "epoch":
            return bool(step % _LOOKS_EVERY == 0)
        every = max(1, int(self.state.logging_steps or 1))
        first = self.args.logging_first_step and step == 0
        return strategy != "no" and (bool(first) or (step + 1) % every == 0)

    def log(self, logs: dict[str, float], *more: Any, **named: Any) -> None:
        """Trainer's own, and in training the averages of `AVERAGES` since the last time."""
        if "loss" in logs and self.args.objective != "ml":
            logs |= self.averages.take(AVERAGES, self._sum_over_processes)
            share = logs.get("ess_reused", 1.0)
            if share < self.args.min_ess and not self._stale:
                self._stale = True
                logger.warning(
                    "reused samples are stale: their effective share is %.2f, below min_ess=%g; lower"
                    " reuse_samples or the learning rate",
                    *(share, self.args.min_ess),
                )
        super().log(logs, *more, **named)

    def _sum_over_processes(self, table: Tensor) -> Tensor:
        if self.accelerator.num_processes == 1:
            return table
        return self.accelerator.reduce(table.to(self.args.device), "sum").cpu()  # type: ignore[no-any-return]

    def _own_log_probs(
        self, model: nn.Module, given: Mapping[str, Any], scored: ScoredCandidates
    ) -> Tensor:
        """Of all candidates under the model as it is, without dropout and gradients, on the CPU."""
        core = core_of(self.accelerator.unwrap_model(model))
        return self._frozen_log_probs(core, given, scored)

    def _base_log_probs(
        self, model: nn.Module, given: Mapping[str, Any], scored: ScoredCandidates
    ) -> Tensor:
        """Likewise under the model that training started from."""
        if self.base is None:
            raise ModelError("there is no base model: set prior='base' or track_base")
        whole = self.accelerator.unwrap_model(model)
        with self.base.of(whole, core_of(whole)) as core:
            return self._frozen_log_probs(core, given, scored)

    def _frozen_log_probs(
        self, core: Any, given: Mapping[str, Any], scored: ScoredCandidates
    ) -> Tensor:
        if not bool((scored.lengths >= 0).any()):
            return torch.zeros(scored.lengths.shape)
        with self.accelerator.autocast(), evaluating(core):
            return self._log_probs(core, given, scored.to(self.args.device)).cpu()

    def _log_probs(
        self, model: nn.Module, given: Mapping[str, Any], scored: ScoredCandidates
    ) -> Tensor:
        core = core_of(self.accelerator.unwrap_model(model))
        score = causal_log_probs if self.causal else encoder_decoder_log_probs
        # one candidate shares nothing, and neither do those of a row that is too long; so they do
        # not say whether it can be
        together = scored.tokens.shape[1] > 1 and (
            not self.causal or fits_one_row(core, given, scored)
        )
        if together and self._shared is None:
            exact = core.dtype == torch.float32 and self.accelerator.mixed_precision == "no"
            self._shared = can_share(
                score, core, given, scored, TOLERANCE if exact else LOW_TOLERANCE
            )
        worth = not self.causal or one_row_is_less(given, scored)
        return score(model, core, given, scored, shared=together and worth and bool(self._shared))

    def _get_train_sampler(self, *given: Any) -> Any:
        """Trainer's own, with each batch as often in succession as its samples are used.

        Accelerate seeds random orders alone; all others follow `_Epochs`, so that a resumed run has
        the same.
        """
        sampler, times = super()._get_train_sampler(*given), self.args.reuse_samples
        if times == 1 and isinstance(sampler, RandomSampler):
            return sampler
        if hasattr(sampler, "generator"):
            sampler.generator = self._order
        if times == 1:
            return sampler
        steps = self.args.world_size * self.args.gradient_accumulation_steps
        return RepeatedBatches(sampler, self._train_batch_size * steps, times)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *more: Any, **named: Any
    ) -> Any:
        """Trainer's own; rows without references have no loss."""
        if "labels" not in inputs:
            return None, None, None
        return super().prediction_step(model, inputs, *more, **named)

    def _check_evaluated(self, dataset: Any) -> None:
        """Processes gather losses together: each of them has some, or none has."""
        if self.accelerator.num_processes == 1 or not hasattr(dataset, "__len__"):
            return
        if len({bool(plain(row.get("labels"))) for row in dataset}) > 1:
            raise DataError(
                "rows with and without labels cannot be evaluated together in several processes:"
                " give two datasets, eval_dataset={'labelled': …, 'prompts': …}"
            )

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
        self._check_evaluated(dataloader.dataset)
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
        core = core_of(self.accelerator.unwrap_model(self.model_wrapped))
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
            if self.reward.uses_references and not all(references):
                raise DataError(
                    f"a row to evaluate has no 'labels', and the reward {self.reward.signature!r}"
                    " compares with references: give a function of completions and prompts, or set"
                    " eval_generate False"
                )
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
        if self.processing_class is not None and all(right):
            said = decode_all(self.processing_class, list(texts))
            wanted = [decode_all(self.processing_class, row) for row in right]
            scores |= corpus_score(self.args.corpus_metric, said, wanted)
        return scores


def _writing(args: RewardAugmentedArguments) -> Writing:
    return Writing(
        beams=args.eval_num_beams,
        samples=args.eval_mbr_samples,
        temperature=args.sampling_temperature,
        top_p=args.sampling_top_p,
        max_new_tokens=args.max_new_tokens,
    )


class _Epochs(TrainerCallback):  # type: ignore[misc]  # of no type that mypy knows
    """Tells the collator which epoch it is: candidates and the order are new, and the same after a restart."""

    def __init__(self, collator: RewardAugmentedCollator, order: torch.Generator) -> None:
        self.collator, self.order = collator, order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by Trainer."""
        # epochs are counted in steps, as a sum of fractions
        self.collator.epoch = int((state.epoch or 0.0) + 1e-6)
        self.order.manual_seed(batch_seed(args.seed, self.collator.epoch))
