"""A file of each kind of model, and ways to change what it holds.

For tests of damaged files and of files from strangers.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from softq import CRFTagger, DependencyParser, RewardClassifier
from softq.formats.conllu import TreeSentence
from softq.formats.vocabulary import Vocabulary
from softq.integrations.transformers.saved import TransformersParser, TransformersTagger
from softq.neural.parser import BiaffineParser, ParserSettings, TreeVocabulary
from softq.neural.recipe import (
    CaptionDecoding,
    CaptionerSettings,
    TranslationDecoding,
    TranslatorSettings,
)
from softq.neural.tagger import SequenceTagger
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.text_generator import TextGenerator
from softq.neural.words import WordVocabulary
from tiny_taggers import save_encoder

WORDS = [["Ann", "met", "Bob"], ["He", "lives", "in", "Paris"]]
ATTRIBUTES = [[{"word": word} for word in sentence] for sentence in WORDS]
LABELS = [["B-PER", "O", "B-PER"], ["O", "O", "O", "B-LOC"]]
BLANK = [("_", "_")] * 2
TREES = [
    TreeSentence(("dogs", "bark"), ("dog", "bark"), ("NOUN", "VERB"), *BLANK, (2, 0), ("nsubj", "root")),
    TreeSentence(("cats",), ("cat",), ("NOUN",), ("_",), ("_",), (0,), ("root",)),
]  # fmt: skip
ROWS = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]])


def make_translator(kind="lstm"):
    """A translator of few words that has learnt nothing."""
    words = Vocabulary.fit_words(["a b c"])
    settings = TranslatorSettings(kind=kind, embedding=4, hidden=4, heads=2)
    model = settings.build(len(words), len(words))
    decoding = TranslationDecoding(beam=2, max_ratio=1.0)
    return TextGenerator(model, settings, words, words, decoding)


def make_captioner():
    """A captioner of few words that has learnt nothing."""
    words, settings = Vocabulary.fit_words(["a b c"]), CaptionerSettings(embedding=4, hidden=4)
    decoding = CaptionDecoding(beam=2, max_words=5)
    return TextGenerator(settings.build(2, len(words)), settings, words, None, decoding)


def write_models(folder):
    """Write a file of each kind."""
    templates = ["bias", "word[0]", "word[-1]|word[0]"]
    tagger = CRFTagger(templates=templates, c2=0.1, constraints="decode")
    tagger.fit(WORDS, LABELS).save(folder / "tagger")
    CRFTagger(c2=0.1).fit(ATTRIBUTES, LABELS).save(folder / "attributes")
    CRFTagger(space="segments", max_segment=2, c2=0.1).fit(WORDS, LABELS).save(folder / "segments")
    sizes = {"bits": 8, "relation_bits": 6, "epochs": 1, "random_state": 0}
    parser = DependencyParser(templates=("head.upos|dep.upos", "dep.word"), **sizes)
    parser.fit(TREES).save(folder / "parser")
    classifier = RewardClassifier(hidden=(3,), max_epochs=2, random_state=0)
    classifier.fit(ROWS, ["a", "b", "a", "b"]).save(folder / "classifier")
    make_translator().save(folder / "translator")
    make_translator("transformer").save(folder / "transformer")
    make_captioner().save(folder / "captioner")
    small = {"word_size": 3, "character_size": 2, "filters": 2, "hidden": 2, "layers": 1}
    words, labels = WordVocabulary.of(WORDS), ["B-LOC", "B-PER", "O"]
    SequenceTagger(words, labels, TaggerSettings(**small), scheme="bio").save(
        folder / "neural-tagger"
    )
    sizes = ParserSettings(**small, tag_size=2, arc_size=2, relation_size=2)
    words = TreeVocabulary.of(TREES, ["nsubj", "root"])
    BiaffineParser(words, sizes).save(folder / "neural-parser")
    sizes = {"arc_size": 2, "relation_size": 2}
    with tempfile.TemporaryDirectory() as place:
        encoder = save_encoder(Path(place) / "encoder")
        tagger = TransformersTagger.from_encoder(encoder, labels, scheme="bio")
        parser = TransformersParser.from_encoder(encoder, ["nsubj", "root"], **sizes)
    tagger.save(folder / "transformers-tagger")
    parser.save(folder / "transformers-parser")


def use(kind, path):
    """Open a file and predict by it."""
    if kind in ("tagger", "segments"):
        model = CRFTagger.load(path)
        model.predict(WORDS)
        model.predict_marginals(WORDS)
        model.tagger_.index.names()
    elif kind == "attributes":
        model = CRFTagger.load(path)
        model.predict(ATTRIBUTES)
        model.tagger_.index.names()
    elif kind == "parser":
        DependencyParser.load(path).predict(TREES)
    elif kind == "classifier":
        model = RewardClassifier.load(path)
        model.predict(ROWS)
        model.expected_reward(ROWS)
        model.score(ROWS, model.classes_[[0, 1, 0, 1]])
    elif kind == "neural-tagger":
        model = SequenceTagger.load(path)
        model.predict(WORDS)
        model.predict_marginals(WORDS)
    elif kind == "neural-parser":
        BiaffineParser.load(path).parse(TREES)
    elif kind == "transformers-tagger":
        model = TransformersTagger.load(path)
        model.predict(WORDS)
        model.predict_marginals(WORDS)
    elif kind == "transformers-parser":
        TransformersParser.load(path).parse(TREES)
    elif kind == "captioner":
        TextGenerator.load(path, kind).generate(ROWS)
    else:
        TextGenerator.load(path, "translator").generate(["a b", "c"])


KINDS = (
    "tagger",
    "attributes",
    "segments",
    "parser",
    "classifier",
    "translator",
    "transformer",
    "captioner",
    "neural-tagger",
    "neural-parser",
    "transformers-tagger",
    "transformers-parser",
)
NOTES = {"translator": ("about", "source.about"), "captioner": ("about", "target.about")}
"""Tensors that hold notes, where there are others than "about"."""


def read_file(path):
    """Tensors and metadata of a safetensors file."""
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


def change_notes(path, change, tensor="about"):
    """Write the notes of a model anew.

    ``change`` is given them and returns others, an object or the text itself.
    """
    tensors, metadata = read_file(path)
    if path.name == "classifier":
        metadata["softq"] = as_text(change(json.loads(metadata["softq"])))
    else:
        text = as_text(change(json.loads(tensors[tensor].numpy().tobytes())))
        tensors[tensor] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    save_file(tensors, path, metadata)


def change_tensors(path, change):
    """Write a file anew.

    ``change`` is given its tensors and returns those to put in the place of the same names.
    """
    tensors, metadata = read_file(path)
    changed = {name: tensor.contiguous() for name, tensor in change(tensors).items()}
    save_file(tensors | changed, path, metadata)


def as_text(notes):
    """JSON, or the text that is given."""
    return notes if isinstance(notes, str) else json.dumps(notes)


def changed(notes, *places, value):
    """The same notes with another value at the end of these keys."""
    at = notes
    for place in places[:-1]:
        at = at[place]
    at[places[-1]] = value
    return notes
