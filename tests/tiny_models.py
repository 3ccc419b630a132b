"""Transformers models of a few thousand weights, a tokenizer made here, and trainers for them.

Nothing is downloaded.
"""

import gc

import torch
import transformers
from packaging.version import Version
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from softq.integrations.transformers import RewardAugmentedArguments, RewardAugmentedTrainer

# Trainer collects garbage after every run, and what is loaded by now takes longer to search than a
# run does
gc.freeze()

PAD, END, START, UNKNOWN = range(4)
WORDS = [consonant + vowel for consonant in "bdfgklmnr" for vowel in "aeio"]  # numbers 4..39
VOCAB = 4 + len(WORDS)
ENCODER_DECODERS, CAUSAL = ("t5", "bart", "marian"), ("gpt2", "llama")
NAMES = (*ENCODER_DECODERS, *CAUSAL)
# GPT-2 takes masks of pairs of places, by which candidates are kept apart in one row, from this
# version on
SHARING = (
    NAMES
    if Version(transformers.__version__) >= Version("4.52")
    else tuple(name for name in NAMES if name != "gpt2")
)

_SPECIALS = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START}
_LAYERS = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
_BART = (
    _LAYERS
    | {
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "d_model": 16,
        "max_position_embeddings": 64,
        "vocab_size": VOCAB,
    }
    | _SPECIALS
)


def tiny(name, *, seed=0, dropout=0.0, vocab=VOCAB):
    """A model with weights large enough for every word it reads to matter.

    The same for the same seed.
    """
    if name == "t5":
        sizes = {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 16,
            "num_layers": 1,
            "num_heads": 2,
            "vocab_size": vocab,
        }
        model = T5ForConditionalGeneration(
            T5Config(**sizes, **_SPECIALS, dropout_rate=dropout, decoder_start_token_id=PAD)
        )
    elif name == "bart":
        model = BartForConditionalGeneration(
            BartConfig(
                **_BART, dropout=dropout, decoder_start_token_id=END, forced_eos_token_id=END
            )
        )
    elif name == "marian":
        model = MarianMTModel(
            MarianConfig(
                **_BART, dropout=dropout, decoder_start_token_id=PAD, forced_eos_token_id=None
            )
        )
    elif name == "gpt2":
        drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCAB,
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=128,
                **_SPECIALS,
                **drop,
            )
        )
    else:
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        model = LlamaForCausalLM(
            LlamaConfig(
                **sizes,
                vocab_size=vocab,
                max_position_embeddings=128,
                attention_dropout=dropout,
                **_SPECIALS,
            )
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def tokenizer(*, end=True):
    """One number for each of `WORDS`.

    With ``end`` it puts an end mark behind every text, as those of encoder-decoders do.
    """
    numbers = {"<pad>": PAD, "</s>": END, "<s>": START, "<unk>": UNKNOWN} | {
        word: 4 + place for place, word in enumerate(WORDS)
    }
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if end:
        made.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", END)]
        )
    specials = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, clean_up_tokenization_spaces=False, **specials
    )


def text(numbers):
    """What the tokenizer decodes them to, without special tokens."""
    return " ".join(WORDS[number - 4] for number in numbers if number >= 4)


def random_rows(count, *, seed=0, references=1, **lengths):
    """Rows of different lengths, with an end mark behind every reference."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(least, most):
        length = int(torch.randint(least, most + 1, (), generator=generator))
        return torch.randint(4, VOCAB, (length,), generator=generator).tolist()

    return [
        {"input_ids": numbers(1, 5), "labels": [[*numbers(2, 6), END] for _ in range(references)]}
        for _ in range(count)
    ]


def arguments(folder, **settings):
    """For runs of an instant in this process, without files but checkpoints."""
    quiet = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    small = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_new_tokens": 6,
        "candidate_size": 5,
        "tau": 0.5,
    }
    return RewardAugmentedArguments(
        **{"output_dir": str(folder), "learning_rate": 1e-2, **quiet, **small, **settings}
    )


class Watched:
    """Beside a Trainer: keeps the loss of every batch."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses = [*getattr(self, "losses", []), float(loss)]
        return loss


class WatchedTrainer(Watched, RewardAugmentedTrainer):
    """A trainer that keeps the loss of every batch."""


def trainer_for(
    model,
    folder,
    rows=None,
    *,
    reward=None,
    generate=None,
    evaluate=None,
    words=None,
    collator=None,
    **settings,
):
    """A trainer of rows, with a tokenizer if ``words`` is one."""
    more = {"train_dataset": rows, "eval_dataset": evaluate, "processing_class": words}
    more["generate"] = generate
    return WatchedTrainer(
        model, arguments(folder, **settings), reward=reward, data_collator=collator, **more
    )


def gradients(model):
    """Of all weights, by name."""
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def step(trainer, rows, **more):
    """Loss and gradients of one batch."""
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows), **more)
    loss.backward()
    return float(loss.detach()), gradients(trainer.model)


def assert_same_gradients(ours, theirs, tolerance):
    """Up to ``tolerance`` of the largest, all of them."""
    assert ours.keys() == theirs.keys()
    largest = max(float(value.abs().max()) for value in theirs.values())
    assert largest > 1e-3, "gradients that say nothing"
    for name, value in ours.items():
        assert float((value - theirs[name]).abs().max()) <= tolerance * max(1.0, largest), name


def use_bfloat16(monkeypatch):
    """Makes it work here, and leave nothing behind."""
    monkeypatch.setattr(
        torch.backends.mkldnn, "enabled", False
    )  # it believes virtual machines that boast of instructions
    monkeypatch.setenv(
        "ACCELERATE_MIXED_PRECISION", "no"
    )  # older versions set it for all trainers to come; now it is set back
