"""A file of each kind of model, and ways to change what stands in one: for tests of files that strangers send."""

import json

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from softq import CRFTagger, DependencyParser, RewardClassifier
from softq.formats.conllu import TreeSentence
from softq.formats.vocabulary import WordVocabulary
from softq.neural.translator import Decoding, ModelSettings, Translator

WORDS = [["Ann", "met", "Bob"], ["He", "lives", "in", "Paris"]]
LABELS = [["B-PER", "O", "B-PER"], ["O", "O", "O", "B-LOC"]]
TREES = [
    TreeSentence(
        ("dogs", "bark"),
        ("dog", "bark"),
        ("NOUN", "VERB"),
        ("_", "_"),
        ("_", "_"),
        heads=(2, 0),
        relations=("nsubj", "root"),
    ),
    TreeSentence(("cats",), ("cat",), ("NOUN",), ("_",), ("_",), heads=(0,), relations=("root",)),
]
ROWS = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]])


def as_features(words):
    """The words as features that a program made."""
    return [[{"word": word} for word in sentence] for sentence in words]


def make_translator():
    """A translator of few words that has learnt nothing."""
    words = WordVocabulary.fit(["a b c"])
    settings = ModelSettings(embedding=4, hidden=4)
    return Translator(
        settings.build(len(words), len(words)),
        settings,
        words,
        words,
        Decoding(beam=2, max_ratio=1.0),
    )


def write_models(folder):
    """Write a file of each kind; returns how each is read and used, by name."""
    CRFTagger(templates=["bias", "word[0]", "word[-1]|word[0]"], c2=0.1, constraints="decode").fit(
        WORDS, LABELS
    ).save(folder / "tagger")
    CRFTagger(c2=0.1).fit(as_features(WORDS), LABELS).save(folder / "attributes")
    DependencyParser(
        bits=8,
        relation_bits=6,
        epochs=1,
        random_state=0,
        templates=("head.upos|dep.upos", "dep.word"),
    ).fit(TREES).save(folder / "parser")
    RewardClassifier(hidden=(3,), max_epochs=2, random_state=0).fit(
        ROWS, ["a", "b", "a", "b"]
    ).save(folder / "classifier")
    make_translator().save(folder / "translator")


def use(kind, path):
    """Open a file and predict by it."""
    if kind == "tagger":
        model = CRFTagger.load(path)
        model.predict(WORDS)
        model.predict_marginals(WORDS)
        model.tagger_.index.names()
    elif kind == "attributes":
        model = CRFTagger.load(path)
        model.predict(as_features(WORDS))
        model.tagger_.index.names()
    elif kind == "parser":
        DependencyParser.load(path).predict(TREES)
    elif kind == "classifier":
        model = RewardClassifier.load(path)
        model.predict(ROWS)
        model.expected_reward(ROWS)
        model.score(ROWS, model.classes_[[0, 1, 0, 1]])
    else:
        list(Translator.load(path).translate(["a b", "c"]))


def change_notes(path, change, tensor="about"):
    """Write the notes of a model anew: ``change`` is given them and returns others, an object or the text itself."""
    if path.name == "classifier":
        with safe_open(path, "numpy") as file:
            metadata, tensors = (
                file.metadata(),
                {name: file.get_tensor(name) for name in file.keys()},
            )
        save_arrays(
            tensors, path, metadata | {"softq": as_text(change(json.loads(metadata["softq"])))}
        )
        return
    tensors = load_file(path)
    text = as_text(change(json.loads(tensors[tensor].numpy().tobytes())))
    save_file(tensors | {tensor: torch.tensor(list(text.encode()), dtype=torch.uint8)}, path)


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
