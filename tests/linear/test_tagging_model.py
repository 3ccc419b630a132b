"""Taggers: decoding and marginals against enumeration, and their files."""

import json
import math
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import oracle
from softq import CRFTagger
from softq.errors import DataError, ShapeError
from softq.kernels.features import crf as feature_crf
from softq.linear.features import TemplateIndex
from softq.linear.lbfgs import LBFGS
from softq.linear.tagging import Tagger
from tagging_cases import NAMES, evaluate, features, sequences, settings_for, some_references

SENTENCES = [["Ann", "Lee", "met", "Bob"], [], ["Rome"], ["in", "Paris", "today"]]


def small_tagger(scheme="bioes", hash_bits=None, seed=0):
    index, matrix = TemplateIndex.fit(SENTENCES, ["word[0]", "word[-1]"], hash_bits=hash_bits)
    names = NAMES[5]
    rng = np.random.default_rng(seed)
    weights = np.zeros(feature_crf.padded(index.size * 5), np.float32)
    weights[: index.size * 5] = rng.standard_normal(index.size * 5)
    return Tagger(index, names, weights, rng.standard_normal((5, 5)), scheme), matrix


@pytest.mark.parametrize("scheme", [None, "bioes"])
@pytest.mark.parametrize("cells", [1, 25, 1 << 20])
def test_decoding_and_marginals_by_enumeration(monkeypatch, scheme, cells):
    monkeypatch.setattr("softq.linear.tagging._BATCH_CELLS", cells)
    tagger, matrix = small_tagger(scheme)
    scores = feature_crf.emissions(matrix.offsets, matrix.indices, matrix.values, tagger.weights, 5)
    best, right, marginals = (
        tagger.decode(matrix),
        tagger.decode(matrix, "mbr"),
        tagger.marginals(matrix),
    )
    token = 0
    for number, words in enumerate(SENTENCES):
        length = len(words)
        possible = sequences(length, tagger.labels, scheme)
        emissions = scores[token : token + length].tolist()
        token += length
        values = [
            oracle.label_score(emissions, [tagger.transitions.tolist()] * length, y)
            for y in possible
        ]
        p = oracle.probabilities(values)
        assert best[number] == [tagger.labels[k] for k in possible[int(np.argmax(values))]]
        chances = np.array(
            [
                [
                    math.fsum(a for a, y in zip(p, possible, strict=True) if y[t] == k)
                    for k in range(5)
                ]
                for t in range(length)
            ]
        )
        assert np.allclose(marginals[number], chances.reshape(length, 5), atol=1e-5)
        expected = [math.fsum(chances[t][k] for t, k in enumerate(y)) for y in possible]
        assert right[number] == [tagger.labels[k] for k in possible[int(np.argmax(expected))]]


def test_features_of_another_index_are_refused():
    tagger, matrix = small_tagger()
    with pytest.raises(
        ShapeError,
        match=r"expected features of the tagger's own index, which has \d+ columns, got 64",
    ):
        tagger.decode(matrix._replace(size=64))


def tensors_of(model):
    return {name: torch.from_numpy(np.array(array)) for name, array in model.tensors().items()}


@pytest.mark.parametrize("hash_bits", [None, 6])
def test_a_tagger_comes_back_from_its_tensors(hash_bits):
    tagger, _ = small_tagger(hash_bits=hash_bits)
    again = Tagger.from_tensors(tensors_of(tagger), json.loads(json.dumps(tagger.notes())))
    assert (again.labels, again.scheme) == (tagger.labels, tagger.scheme)
    assert np.array_equal(again.weights, tagger.weights)
    assert np.array_equal(again.transitions, tagger.transitions)
    unseen = [["Ann", "in", "Oslo"], ["Rome", "Lee"]]
    for sentences in (SENTENCES, unseen):
        rows, others = tagger.index.transform(sentences), again.index.transform(sentences)
        assert np.array_equal(rows.indices, others.indices)
        assert tagger.decode(rows) == again.decode(others)


def test_a_loaded_tagger_stays_on_the_disk(tmp_path):
    maps = "/proc/self/maps"
    if not os.path.exists(maps):
        pytest.skip("what is mapped is only to be seen on Linux")
    fitted = CRFTagger(templates=["word[0]"]).fit([["a", "b"]], [["X", "Y"]])
    path = tmp_path / "mapped-tagger.safetensors"
    fitted.save(path)
    again = CRFTagger.load(path)
    with open(maps) as file:
        assert path.name in file.read()
    again.save(path)  # over the file that it is mapped from
    assert again.predict([["a", "b"]]) == CRFTagger.load(path).predict([["a", "b"]]) == [["X", "Y"]]


def test_what_is_no_tagger_is_refused(tmp_path):
    fitted = CRFTagger(templates=["word[0]"]).fit([["a", "b"]], [["X", "Y"]])
    whole, path = fitted.tensors(), tmp_path / "t"

    def refused(tensors, match):
        save_file(tensors, path)
        with pytest.raises(DataError, match=match) as found:
            CRFTagger.load(path)
        assert str(path) in str(found.value)

    for name in ("about", "weights", "transitions", "index.slots"):
        rest = {other: tensor for other, tensor in whole.items() if other != name}
        refused(rest, name.removeprefix("index."))
    refused(
        whole | {"weights": whole["weights"][:-1]},
        r"expected weights \[\d+\] and transitions \[2, 2\] for 2 features and 2 labels, got",
    )
    refused(whole | {"weights": whole["weights"].double()}, "expected weights of float32.*float64")
    refused(whole | {"transitions": whole["transitions"][:1]}, r"got \[\d+\] and \[1, 2\]")
    for text in (b"{", b"[]", b"\xff", b"null", b'{"format": "softq tagger 0"}', b"3"):
        refused(
            whole | {"about": torch.frombuffer(bytearray(text), dtype=torch.uint8)},
            "is not a tagger of softq",
        )
    fitted.save(path)
    for content in (b"no such thing", path.read_bytes()[:-10]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a tagger of softq"):
            CRFTagger.load(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="is not a tagger of softq"):
            CRFTagger.load(missing)


def test_training_ends_at_the_minimum():
    names, lengths = NAMES[3], (4, 3, 1, 4, 2)
    references, matrix = some_references(9, lengths, names), features(9, lengths)
    whole = settings_for(names, "sqdml", 0.5, c2=0.1).whole(matrix, references)
    search = LBFGS(torch.zeros(whole.layout.size), whole, tolerance=1e-5)
    while search.status == "going":
        search.iterate()
    assert search.status == "converged"
    lowest = search.value
    for seed in range(20):  # it is convex: nothing around is lower
        nearby = search.point + 0.1 * torch.randn(
            len(search.point), generator=torch.Generator().manual_seed(seed)
        )
        assert evaluate(whole, nearby)[0] > lowest
