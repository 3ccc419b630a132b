"""A trained translator: from text to text, many sentences at a time; one file on the disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from softq.data.vocabulary import Vocabulary, vocabulary_from_tensors
from softq.decode import mbr
from softq.errors import DataError, DependencyError, ModelError, RecipeError, SoftqError
from softq.models.sequence import SequenceModel
from softq.models.transformer import TransformerTranslator
from softq.models.translator import AttentionalTranslator
from softq.recipe import at_least, build, check_positive, key
from softq.rewards import Reward, SentenceBLEU
from softq.run import write_atomically
from softq.sentences import Sentences

Search = Literal["beam", "greedy", "sample", "mbr"]
"""The best of a beam; the best word after each; a draw; the draw that is best on average if any of them might be right."""

FORMAT = "softq translator 1"
"""What the file of a translator says it is."""

_PARAMETERS = "model."  # names of parameters in a file begin so
_WINDOW = 1024  # texts that are sorted by length together
_MORE_WORDS = 10  # that a translation may have beyond max_ratio times those of its source
_BATCH, _BATCH_ON_GPU = 64, 512  # sentences at a time, unless told
_DRAWS = 32  # of which minimum Bayes risk chooses, unless told


@dataclass(frozen=True)
class ModelSettings:
    """What the model is."""

    kind: Literal["lstm", "transformer"] = key("lstm", "lstm: the paper's, with attention and input feeding; or a transformer")
    embedding: int = key(256, "size of word vectors of an lstm")
    hidden: int = key(256, "size of states, and of all vectors of a transformer, whose feed-forward layers are four times as wide")
    layers: int = key(1, "of encoder and decoder")
    heads: int = key(4, "of a transformer's attention")
    dropout: float = key(0.2, "share of what is dropped in training")
    tie: bool = key(False, "one weight for the embeddings of the target's words and for the output layer")
    init: float = key(0.1, "parameters of an lstm begin uniform in ± this")

    def __post_init__(self) -> None:
        """Sizes are sizes."""
        for name in ("embedding", "hidden", "layers", "heads"):
            at_least(name, getattr(self, name), 1)
        if not 0 <= self.dropout < 1:
            raise RecipeError(f"dropout must lie in [0, 1), got {self.dropout}")
        check_positive("init", self.init)
        if self.kind == "lstm" and self.tie and self.embedding != self.hidden:
            raise RecipeError(f"tie needs embedding = hidden, got {self.embedding} and {self.hidden}")
        if self.kind == "transformer" and (self.hidden % self.heads or self.hidden % 2):
            raise RecipeError(f"hidden must be even and a multiple of heads, got {self.hidden} and {self.heads}")

    def build(self, source_words: int, target_words: int, seed: int = 0) -> SequenceModel:
        """A new model for vocabularies of these sizes."""
        if self.kind == "transformer":
            return TransformerTranslator(
                source_words,
                target_words,
                size=self.hidden,
                heads=self.heads,
                layers=self.layers,
                feed_forward=4 * self.hidden,
                dropout=self.dropout,
                tie=self.tie,
                seed=seed,
            )
        return AttentionalTranslator(
            source_words,
            target_words,
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            tie=self.tie,
            init=self.init,
            seed=seed,
        )

    def same_parameters(self, other: ModelSettings) -> bool:
        """Whether parameters of one fit the other: dropout and how they began do not matter."""
        return self._shape() == other._shape()

    def _shape(self) -> tuple[Any, ...]:
        special = self.embedding if self.kind == "lstm" else self.heads
        return self.kind, special, self.hidden, self.layers, self.tie


@dataclass(frozen=True)
class Decoding:
    """How translations are found, if nobody says otherwise."""

    beam: int = key(5, "unfinished translations that are gone on with at a time")
    length_penalty: float = key(1.0, "translations are ranked by log P / length^this; 0: by log P")
    max_ratio: float = key(2.0, "a translation has at most this many times the words of its source, and ten")

    def __post_init__(self) -> None:
        """Beams hold something."""
        at_least("beam", self.beam, 1)
        at_least("length_penalty", self.length_penalty, 0)
        check_positive("max_ratio", self.max_ratio)


class Translation(NamedTuple):
    """What a sentence became.

    Attributes:
        text: as people write it.
        words: as metrics count them; what the model has no word for is ``"<unk>"``.
        log_prob: log P(y|x) of the model.
        expected_reward: the mean reward of the choice against all draws, for minimum Bayes risk; else None.

    """

    text: str
    words: tuple[str, ...]
    log_prob: float
    expected_reward: float | None = None


_EMPTY = Translation("", (), 0.0)  # of an empty text, for certain


@dataclass(frozen=True)
class Translator:
    """A model of sentences, and what gives the words of both languages their numbers.

    Attributes:
        model: log P(y|x).
        settings: what it was built by.
        source: words of inputs.
        target: words of translations.
        decoding: how it decodes unless told otherwise.

    """

    model: SequenceModel
    settings: ModelSettings
    source: Vocabulary
    target: Vocabulary
    decoding: Decoding = dataclasses.field(default_factory=Decoding)

    def to(self, device: torch.device | str) -> Translator:
        """The same on another device; the model itself moves."""
        self.model.to(device)
        return self

    def translate(self, texts: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Translations of texts, one for each and in their order, while the texts still come.

        Texts are taken a thousand at a time and sorted by their length, so that little of a batch is padding. An empty text has an empty
        translation. ``options`` are those of `translate_numbers`.
        """
        if "generator" not in options:
            options["generator"] = torch.Generator().manual_seed(0)
        waiting = iter(texts)
        while window := list(islice(waiting, _WINDOW)):
            yield from self.translate_numbers([self.source.encode(text) for text in window], **options)

    def translate_numbers(
        self,
        sources: Sequence[Sequence[int]],
        *,
        method: Search = "beam",
        beam: int | None = None,
        length_penalty: float | None = None,
        samples: int = _DRAWS,
        temperature: float = 1.0,
        top_p: float | None = None,
        reward: Reward | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int | None = None,
    ) -> list[Translation]:
        """Translations of sentences that have their numbers already.

        Args:
            sources: words of each.
            method: how to choose; see `Search`.
            beam: for ``"beam"``; the translator's own if not given.
            length_penalty: for ``"beam"``; the translator's own if not given.
            samples: draws of which ``"mbr"`` chooses one.
            temperature: of draws.
            top_p: of draws.
            reward: that ``"mbr"`` expects, between words of the target vocabulary; sentence BLEU if not given.
            generator: of draws; or one for each source, on the CPU, and then it does not matter what else is translated.
            batch_size: sentences at a time; 64 if not given, and 512 on a GPU.

        """
        if method not in get_args(Search):
            raise ModelError(f"method must be one of {', '.join(get_args(Search))}, got {method!r}")
        found = [_EMPTY] * len(sources)
        order = sorted((number for number, words in enumerate(sources) if len(words)), key=lambda number: len(sources[number]))
        at_a_time = batch_size or (_BATCH_ON_GPU if self.model.output.weight.is_cuda else _BATCH)
        with evaluating(self.model):
            for first in range(0, len(order), at_a_time):
                batch = order[first : first + at_a_time]
                source = on_device(Sentences.pack([list(sources[number]) for number in batch]), self.model)
                limits = (source.lengths * self.decoding.max_ratio).ceil().long() + _MORE_WORDS
                if method in ("beam", "greedy"):
                    penalty = self.decoding.length_penalty if length_penalty is None else length_penalty
                    how: dict[str, Any] = {"method": method, "size": beam or self.decoding.beam, "length_penalty": penalty}
                else:
                    own = [generator[number] for number in batch] if isinstance(generator, Sequence) else generator
                    how = {"method": "sample", "size": samples if method == "mbr" else 1, "generator": own}
                    how |= {"temperature": temperature, "top_p": top_p}
                candidates = self.model.generate(source, max_length=limits, **how)
                chosen, expected = [0] * len(batch), [None] * len(batch)
                if method == "mbr":
                    best = mbr(candidates, reward or SentenceBLEU())
                    chosen, expected = best.index.tolist(), best.expected_reward.tolist()
                best_of_each = candidates.select(torch.tensor(chosen, device=source.tokens.device).unsqueeze(1))
                log_probs = best_of_each.log_model.squeeze(1).tolist() if best_of_each.log_model is not None else []
                for number, (words,), log_prob, gain in zip(batch, best_of_each.sentences.unpack(), log_probs, expected, strict=True):
                    found[number] = self._written(words, log_prob, gain)
        return found

    def _written(self, words: list[int], log_prob: float, expected: float | None) -> Translation:
        return Translation(self.target.decode(words), tuple(self.target.words(words)), log_prob, expected)

    # --- on the disk ------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        parameters = {f"{_PARAMETERS}{name}": value.detach().cpu() for name, value in self.model.named_parameters()}
        return parameters | translator_notes(self.settings, self.source, self.target, self.decoding)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Translator:
        """The translator of `tensors`; what is none is a `DataError`."""
        if "about" not in tensors:
            raise DataError("expected the tensors of a translator, got none of the name 'about'")
        try:
            about = json.loads(tensors["about"].numpy().tobytes())
        except (TypeError, ValueError) as error:
            raise DataError(f"expected JSON in the tensor 'about' of a translator, got {error}") from None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise DataError(f"expected the format {FORMAT!r}, got {about.get('format') if isinstance(about, dict) else about!r}")
        try:
            settings = build(ModelSettings, about["model"], "model")
            decoding = build(Decoding, about["decoding"], "decoding")
            source, target = (vocabulary_from_tensors(tensors, prefix) for prefix in ("source.", "target."))
            model = settings.build(len(source), len(target))
        except DependencyError:
            raise
        except (KeyError, TypeError, AttributeError, SoftqError) as error:
            raise DataError(f"expected the settings and words of a translator, got what does not fit together: {error}") from None
        load_parameters(model, {name.removeprefix(_PARAMETERS): value for name, value in tensors.items() if name.startswith(_PARAMETERS)})
        return cls(model.eval(), settings, source, target, decoding)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the translator to one safetensors file, whole or not at all."""
        write_atomically(Path(path), to_safetensors({name: value.contiguous() for name, value in self.tensors().items()}))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Translator:
        """The translator of a file of `save`, or of the best model of a run."""
        try:
            with safe_open(path, "pt") as file:
                return cls.from_tensors({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 -- not a dict
        except (OSError, SafetensorError, DataError) as error:
            raise DataError(
                f"{path} is not a translator of softq ({error}); expected a run's best.safetensors or a file of Translator.save"
            ) from None


def translator_notes(settings: ModelSettings, source: Vocabulary, target: Vocabulary, decoding: Decoding) -> dict[str, Tensor]:
    """What a translator's file holds beside the parameters, whose names there begin with ``model.``, as tensors."""
    decoding_keys = {field.name: getattr(decoding, field.name) for field in dataclasses.fields(Decoding)}
    about = {"format": FORMAT, "model": dataclasses.asdict(settings), "decoding": decoding_keys}
    text = np.frombuffer(json.dumps(about).encode(), np.uint8).copy()
    return {"about": torch.from_numpy(text), **source.tensors("source."), **target.tensors("target.")}


def load_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Give a model the parameters of another of the same architecture; what does not fit is a `DataError`."""
    known = dict(model.named_parameters(remove_duplicate=False))  # a weight that is tied has two names, and files hold one or both
    missing = sorted(dict(model.named_parameters()).keys() - parameters.keys())
    unknown = sorted(parameters.keys() - known.keys())
    if missing or unknown:
        raise DataError(f"expected {f'a parameter {missing[0]}' if missing else f'no parameter {unknown[0]}'}: the model is another one")
    for name, value in parameters.items():
        if known[name].shape != value.shape or known[name].dtype != value.dtype:
            got = f"{value.dtype} {list(value.shape)}"
            raise DataError(f"expected the parameter {name} as {known[name].dtype} {list(known[name].shape)}, got {got}")
    with torch.no_grad():
        for name, value in parameters.items():
            known[name].copy_(value)


def on_device(sentences: Sentences, model: nn.Module) -> Sentences:
    """Sentences where a model is."""
    device = next(model.parameters()).device
    return Sentences(sentences.tokens.to(device), sentences.lengths.to(device))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model without dropout for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
