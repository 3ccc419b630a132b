"""Taggers and parsers on encoders of Transformers, as runs of ``softq train`` keep them: in one file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from softq.errors import DataError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import mapping, refusing, string_list
from softq.integrations.transformers.dependency_parsing.model import DependencyModel
from softq.integrations.transformers.loading import loading, quiet, save_model, with_adapters
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.words.encoder import WordModel
from softq.integrations.transformers.words.subwords import Subwords, WordTokenizer
from softq.neural.modules.biaffine import Biaffine, Views
from softq.neural.parsing import NeuralParser
from softq.neural.saved_module import SavedModule
from softq.neural.tagging import NeuralTagger
from softq.neural.words import Array

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files that a fast tokenizer needs, those of them that it has."""


class SubwordBatch(NamedTuple):
    """B sentences in W windows of subwords.

    Attributes:
        input_ids: subwords, ``[W, S]``.
        attention_mask: which of them are there, ``[W, S]``.
        words: window, first subword, and one after the last, of each word, ``[B, n, 3]``.
        lengths: words of each sentence, ``[B]``.

    """

    input_ids: Tensor
    attention_mask: Tensor
    words: Tensor
    lengths: Tensor

    @property
    def width(self) -> int:
        """Words of a padded sentence."""
        return self.words.shape[1]

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return type(self)(*(tensor.to(device) for tensor in self))


class EncodedSubwords(NamedTuple):
    """N sentences as subwords."""

    sentences: Sequence[Subwords]
    collate: Any

    @property
    def lengths(self) -> Array:
        """Words of each sentence, ``[N]``."""
        return np.fromiter((len(one.words) for one in self.sentences), np.int64)

    def batch(self, sentences: Array | Sequence[int]) -> SubwordBatch:
        """These sentences."""
        return SubwordBatch(**self.collate([self.sentences[number] for number in sentences]))


class SavedEncoder(SavedModule):
    """A model of Transformers over words, and its tokenizer, as one file.

    Attributes:
        core: the model, as `save_pretrained` writes it, too.
        bf16: whether training computes in bfloat16 where it is safe.

    """

    option = "transformers:PATH"
    bf16 = False
    core_type: ClassVar[type[Any]]

    def __init__(
        self,
        core: WordModel,
        files: Mapping[str, str],
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        """A model, the files of its tokenizer by their names, and how long sentences are read."""
        super().__init__()
        self.core: Any = core
        self._files = dict(files)
        self._windows = {"max_length": max_length, "stride": stride}
        self._collator = core.collator(_tokenizer(files), **self._windows)

    @classmethod
    def from_encoder(
        cls,
        encoder: str | PathLike[str],
        labels: Sequence[str],
        *,
        lora: int = 0,
        max_length: int | None = None,
        stride: int | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """A model on an encoder that was trained already.

        Args:
            encoder: a folder of ``save_pretrained``, or a name that Transformers know, with a fast
                tokenizer.
            labels: their names.
            lora: rank of low-rank adapters that are trained in place of the encoder's weights; 0:
                none.
            max_length: most subwords of a window; None: as many as the encoder reads.
            stride: subwords that windows of a longer sentence share; None: a quarter.
            seed: of what is not the encoder's.
            settings: of the model, see `TokenClassificationModel.from_encoder`.

        """
        name = str(encoder)
        with loading(name), quiet():
            loaded, tokenizer = AutoModel.from_pretrained(name), AutoTokenizer.from_pretrained(name)
        loaded, files = loaded.float(), _files_of(WordTokenizer(tokenizer).tokenizer)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed % 2**63)
            if lora:
                loaded = with_adapters(loaded, lora)
            core = cls.core_type.from_encoder(loaded, labels, **settings)
        return cls(core, files, max_length, stride)

    @property
    def tokenizer(self) -> Any:
        """What turns words into subwords."""
        return self._collator.words.tokenizer

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> EncodedSubwords:
        """Sentences as subwords."""
        found, known = self._collator.words(sentences), self.core.get_input_embeddings().weight
        largest = max((max(ids) for one in found for ids in one.windows if ids), default=0)
        if largest >= len(known):
            raise DataError(
                f"the encoder knows {len(known)} token ids, and its tokenizer gave {largest}"
            )
        return EncodedSubwords(found, self._collator.inputs)

    def read(self, batch: SubwordBatch) -> Any:
        """What the model returns for a batch."""
        half = self.training and self.bf16
        with torch.autocast(batch.words.device.type, torch.bfloat16, enabled=half):
            return self.core(**batch._asdict())

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write model and tokenizer to a new folder, as Transformers read them."""
        save_model(self.core, _tokenizer(self._files), Path(folder))

    # --- on the disk ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Configuration, tokenizer and windows."""
        config = json.loads(self.core.config.to_json_string(use_diff=False))
        return {
            "settings": _portable(config),
            "tokenizer": self._files,
            **self._windows,
            **super().about(),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The model of `tensors`, in evaluation mode; what is none, or damaged, is a `DataError`."""
        model = super().from_tensors(tensors)
        with refusing("expected a model that can read a word"), torch.no_grad():
            model.read(model.encode_words([["a"]]).batch([0]))
        return model

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Self:
        """The model of `about`, with any parameters."""
        with loading("the model"), quiet():
            core = cls.core_type(cls._config(about))
        files = mapping("tokenizer", about["tokenizer"])
        model = cls(core, files, about["max_length"], about["stride"])
        model.take_about(about)
        return model

    @classmethod
    def layer_count(cls, about: Mapping[str, Any]) -> int:
        """Of the encoder."""
        with loading("the model"), quiet():
            return int(cls._config(about).encoder.num_hidden_layers)

    @classmethod
    def _config(cls, about: Mapping[str, Any]) -> Any:
        return cls.core_type.config_class(**_portable(mapping("settings", about["settings"])))


class TransformersTagger(SavedEncoder, NeuralTagger):
    """A tagger on an encoder of Transformers, as ``softq train ner --model transformers:PATH`` trains it.

    `TransformersTagger.load` opens a run; `predict`, `predict_marginals` and `save` are those of
    every neural tagger, and `save_pretrained` writes a folder for `WordTagger` and Transformers.
    """

    noun, format = "Transformers tagger", "softq tagger transformers 1"
    core_type = TokenClassificationModel

    def __init__(
        self,
        core: TokenClassificationModel,
        files: Mapping[str, str],
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(core, files, max_length, stride)
        config = core.config
        self.labels = string_list("labels", [*config.labels])
        self.scheme = config.scheme
        self.constraints = config.constraints
        self._forbid()

    def encode(self, sentences: Sequence[Sequence[str]]) -> EncodedSubwords:
        """Sentences as subwords."""
        return self.encode_words(sentences)

    def scores(self, batch: SubwordBatch) -> Tensor:
        """Scores of labels ``[B, n, K]``, 0 on padding."""
        logits: Tensor = self.read(batch).logits
        return logits

    def neighbour_scores(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those of a chain."""
        crf = self.core.crf
        if crf is None:
            return None, None, None
        return crf.transitions, crf.start_transitions, crf.end_transitions


class TransformersParser(SavedEncoder, NeuralParser):
    """A parser on an encoder of Transformers, as ``softq train parsing --model transformers:PATH`` trains it.

    `TransformersParser.load` opens a run; `parse` and `save` are those of every neural parser, and
    `save_pretrained` writes a folder for Transformers.
    """

    noun, format = "Transformers parser", "softq parser transformers 1"
    core_type = DependencyModel

    def __init__(
        self,
        core: DependencyModel,
        files: Mapping[str, str],
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(core, files, max_length, stride)
        self.relations = string_list("relations", [*core.config.relations])
        self.spanning = bool(core.config.spanning)

    @property
    def biaffine(self) -> Biaffine:  # type: ignore[override]  # nobody sets it
        """Of the model."""
        found: Biaffine = self.core.biaffine
        return found

    def encode(self, sentences: Sequence[TreeSentence]) -> EncodedSubwords:
        """Sentences as subwords."""
        return self.encode_words([sentence.forms for sentence in sentences])

    def scores(self, batch: SubwordBatch) -> tuple[Tensor, Views]:
        """Scores of arcs ``[B, head, dependent]``, and the views of relations, in float32."""
        output = self.read(batch)
        head, dependent = output.views
        return output.arcs, (head.float(), dependent.float())


def _files_of(tokenizer: Any) -> dict[str, str]:
    """The files of a fast tokenizer."""
    with tempfile.TemporaryDirectory() as folder, quiet():
        tokenizer.save_pretrained(folder)
        paths = {name: Path(folder) / name for name in _TOKENIZER}
        return {n: path.read_text(encoding="utf-8") for n, path in paths.items() if path.exists()}


def _tokenizer(files: Mapping[str, str]) -> Any:
    """The tokenizer of its files."""
    with tempfile.TemporaryDirectory() as folder, loading("the tokenizer"), quiet():
        for name in _TOKENIZER:
            if name in files:
                (Path(folder) / name).write_text(files[name], encoding="utf-8")
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _portable(config: Any) -> Any:
    """A configuration without what is of one machine, or of a type of weights: files hold float32."""
    if isinstance(config, dict):
        return {
            name: _portable(value)
            for name, value in config.items()
            if not name.startswith("_") and name not in _OF_A_MACHINE
        }
    return config


_OF_A_MACHINE = {"dtype", "torch_dtype", "attn_implementation", "base_model_name_or_path"}
