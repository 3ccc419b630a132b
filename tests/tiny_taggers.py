"""Encoders of a few thousand weights under a tagger, tokenizers that are trained here, and trainers.

Nothing is downloaded.
"""

import functools

import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from softq.integrations.transformers import (
    TokenClassificationArguments,
    TokenClassificationModel,
    TokenClassificationTrainer,
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = ["Ann Lee met Bob in Paris .", "He met Ann .", "internationalisation of Rome", "Lee ran"]
ZERO_WIDTH = "\u200b"  # BERT's tokenizers drop it
ENCODERS = ("bert", "roberta", "deberta-v2", "modernbert")
SENTENCES = [
    {"tokens": ["Ann", "Lee", "met", "Bob", "in", "Paris", "."], "ner_tags": [1, 2, 0, 1, 0, 3, 0]},
    {"tokens": ["internationalisation", "of", "Rome"], "ner_tags": ["O", "O", "B-LOC"]},
    {"tokens": ["Lee", "ran"], "ner_tags": [1, 0]},
    {"tokens": ["Bob"], "ner_tags": [1]},
]


PIECES = [  # a trainer of WordPiece numbers pieces differently each time
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *("Ann", "Lee", "met", "Bob", "in", "Paris", ".", "He", "of", "Rome", "ran"),
    *("inter", "##nation", "##al", "##isation"),
]
CHARACTERS = sorted({character for text in TEXTS for character in text} - {" "})


def tokenizer(kind="bert", words=()):
    """WordPiece for BERT and DeBERTa, which knows ``words`` as well, byte-pair encoding without a space in front for the others."""
    return _tokenizer(kind in ("bert", "deberta-v2"), tuple(words))


@functools.cache
def _tokenizer(word_pieces, words):
    if word_pieces:
        pieces = dict.fromkeys([*PIECES, *CHARACTERS, *(f"##{one}" for one in CHARACTERS), *words])
        vocab = {piece: number for number, piece in enumerate(pieces)}
        made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
        made.normalizer = normalizers.BertNormalizer(lowercase=False)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        pad, unknown, first, last = PIECES[:4]
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        first, pad, last, unknown = specials = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(mark, made.token_to_id(mark)) for mark in (first, last)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=pad, unk_token=unknown, cls_token=first, sep_token=last
    )


def encoder(kind="bert", *, seed=0, dropout=0.0, limit=32):
    """An encoder of random weights, large enough for every subword to matter."""
    sizes = {
        "vocab_size": 320,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "pad_token_id": tokenizer(kind).pad_token_id,
    }
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if kind == "bert":
        config = transformers.BertConfig(**sizes, **drop, max_position_embeddings=limit)
        made = transformers.BertModel(config)
    elif kind == "roberta":
        config = transformers.RobertaConfig(**sizes, **drop, max_position_embeddings=limit + 2)
        made = transformers.RobertaModel(config)
    elif kind == "deberta-v2":
        config = transformers.DebertaV2Config(
            **sizes,
            **drop,
            max_position_embeddings=limit,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
        )
        made = transformers.DebertaV2Model(config)
    else:
        config = transformers.ModernBertConfig(
            **sizes,
            max_position_embeddings=limit,
            attention_dropout=dropout,
            bos_token_id=0,
            cls_token_id=0,
            eos_token_id=2,
            sep_token_id=2,
        )
        made = transformers.ModernBertModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return made


def save_encoder(folder, words=(), kind="bert", **settings):
    """A folder of ``save_pretrained``, whose tokenizer has a subword for each of these words."""
    encoder(kind, **settings).save_pretrained(folder)
    tokenizer(kind, sorted(words)).save_pretrained(folder)
    return folder


def tagger(kind="bert", *, seed=0, **settings):
    """A tagger with such an encoder; dropout only if asked for."""
    limit = settings.pop("limit", 32)
    model = TokenClassificationModel.from_encoder(
        encoder(kind, seed=seed, limit=limit), LABELS, **{"dropout": 0.0, **settings}
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.head_parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return model


def arguments(folder, *, made=TokenClassificationArguments, **settings):
    """For runs of an instant in this process, without files but checkpoints."""
    quiet = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-2,
        "head_learning_rate": 2e-2,
    }
    return made(**{"output_dir": str(folder), **quiet, **settings})


def trainer_for(
    model, folder, rows=SENTENCES, *, kind="bert", evaluate=None, reward=None, **settings
):
    """A trainer of rows."""
    return TokenClassificationTrainer(
        model,
        arguments(folder, **settings),
        reward=reward,
        train_dataset=rows,
        eval_dataset=evaluate,
        processing_class=tokenizer(kind),
    )


def loss_and_gradients(trainer, rows, **more):
    """Of one batch."""
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows), **more)
    loss.backward()
    found = {
        name: weight.grad.clone()
        for name, weight in trainer.model.named_parameters()
        if weight.grad is not None
    }
    return float(loss.detach()), found
