"""Examples run as people run them, and learn."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import softq
from softq.formats.conllu import read_conllu
from softq.lab.worlds import EntityWorld

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *flags):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *flags]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # a second thread would only get in the way of other tests
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def token_accuracy(output, system):
    (row,) = [line for line in output.splitlines() if system in line]
    return float(re.findall(r"\d+\.\d+", row)[0])


def f1(output, system):
    (row,) = [line for line in output.splitlines() if system in line]
    return float(re.findall(r"\d+\.\d+", row)[3])


def test_the_tagger_learns():
    output = run("bilstm_crf.py", "--sentences", "500", "--epochs", "4", "--constraints")
    bayes = token_accuracy(output, "Bayes rule")
    assert 90 < bayes < 99
    # Of every hundred words 74 are O: a tagger that learnt nothing is right on those.
    assert 82 < token_accuracy(output, "BiLSTM-CRF, sqdml") <= bayes + 1


@pytest.mark.parametrize("objective", ["ml", "raml"])
def test_the_other_objectives_train_too(objective):
    output = run("bilstm_crf.py", "--objective", objective, "--sentences", "800", "--epochs", "4")
    labels = [
        label for sentence in EntityWorld().sample(1000, seed=1) for label in sentence.labels[0]
    ]  # the example's test sentences
    outside = 100 * labels.count("O") / len(labels)
    assert (
        outside + 4
        < token_accuracy(output, f"BiLSTM-CRF, {objective}")
        <= token_accuracy(output, "Bayes rule") + 1
    )


def test_a_tagger_with_annotators_in_the_loop_beats_the_vote():
    output = run("crowd_tagger.py", "--sentences", "800", "--epochs", "4")
    found, vote = (f1(output, f"{name} on the training set") for name in ("truth", "vote"))
    assert found > vote + 5
    assert f1(output, "toward the truth") > f1(output, "toward the vote") + 1


# A made language in which tags say all: determiners and adjectives hang on the next noun, nouns on
# the verb.
WORDS = {
    "DET": "the a this",
    "ADJ": "old red dry odd",
    "NOUN": "cat dog sun tree stone",
    "VERB": "sees has eats",
    "PUNCT": ". !",
}


def made_sentence(rng):
    def noun_phrase():
        return ["DET"] * rng.randint(0, 1) + ["ADJ"] * rng.randint(0, 2) + ["NOUN"]

    tags = noun_phrase()
    verb = len(tags) + 1
    tags += ["VERB", *noun_phrase(), "PUNCT"]
    lines = []
    for i, tag in enumerate(tags, start=1):
        if tag in ("DET", "ADJ"):
            head, relation = tags.index("NOUN", i) + 1, {"DET": "det", "ADJ": "amod"}[tag]
        elif tag == "NOUN":
            head, relation = verb, "nsubj" if i < verb else "obj"
        else:
            head, relation = (0, "root") if tag == "VERB" else (verb, "punct")
        lines.append(
            f"{i}\t{rng.choice(WORDS[tag].split())}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_\n"
        )
    return "".join(lines) + "\n"


CROSSING = (
    "".join(
        f"{i}\tword{i}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n"
        for i, head in enumerate((3, 4, 0, 3), start=1)
    )
    + "\n"
)


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("treebank")
    rng = random.Random(0)
    (folder / "train.conllu").write_text(
        CROSSING + "".join(made_sentence(rng) for _ in range(150)), encoding="utf-8"
    )
    (folder / "dev.conllu").write_text(
        "".join(made_sentence(rng) for _ in range(40)), encoding="utf-8"
    )
    return folder


def parse_with(treebank, *flags):
    small = ["--hidden", "24", "--batch", "150", "--lr", "0.01", "--device", "cpu"]
    return run(
        "biaffine.py",
        "--train",
        treebank / "train.conllu",
        "--dev",
        treebank / "dev.conllu",
        *small,
        *flags,
    )


def best_scores(output):
    (found,) = re.findall(r"best UAS (\S+), LAS (\S+) \(epoch", output)
    return tuple(map(float, found))


def load_biaffine():
    spec = importlib.util.spec_from_file_location("biaffine", EXAMPLES / "biaffine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_parser_learns_and_what_it_saves_parses_as_well(treebank, tmp_path):
    output = parse_with(treebank, "--epochs", "6", "--out", tmp_path / "parser")
    assert "1 of 151 training trees have crossing arcs" in output
    uas, las = best_scores(output)
    assert 90 < uas <= 100
    assert 80 < las <= uas  # what is learnt in a few epochs differs between versions of torch
    biaffine = load_biaffine()
    described = json.loads((tmp_path / "parser" / "parser.json").read_text(encoding="utf-8"))
    parser = biaffine.Parser(**described)
    parser.load_state_dict(load_file(tmp_path / "parser" / "parser.safetensors"))
    dev = read_conllu(treebank / "dev.conllu")
    batches = biaffine.Corpus(dev, described["vocabularies"]).batches(100)
    assert biaffine.evaluate(
        parser, dev, batches, list(described["vocabularies"]["relations"])
    ) == pytest.approx((uas, las), abs=0.006)


@pytest.mark.parametrize("flags", [("--objective", "raml"), ("--objective", "sqdml", "--spanning")])
def test_the_parser_learns_toward_attachment_and_with_crossing_arcs(treebank, flags):
    output = parse_with(treebank, "--epochs", "5", "--tau", "0.3", *flags)
    assert ("crossing arcs" in output) == ("--spanning" not in flags)
    assert best_scores(output)[0] > 80


def test_batches_hold_every_word_once_and_keep_its_head(treebank):
    biaffine = load_biaffine()
    sentences = read_conllu(treebank / "train.conllu")
    vocabularies = biaffine.make_vocabularies(sentences)
    relations = list(vocabularies["relations"])
    corpus = biaffine.Corpus(sentences, vocabularies)
    batches = corpus.batches(200, generator=torch.Generator().manual_seed(0))
    assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == list(
        range(len(sentences))
    )
    for batch in batches:
        for b, i in enumerate(batch.index.tolist()):
            n = int(batch.lengths[b])
            assert tuple(batch.heads[b, :n].tolist()) == sentences[i].heads
            assert tuple(relations[r] for r in batch.relations[b, :n]) == sentences[i].relations
            assert (batch.relations[b, n:] == biaffine.NO_RELATION).all()
        width = batch.heads.shape[1] + 1
        upos = (
            torch.zeros(len(batch.index) * width, dtype=torch.long)
            .index_copy(0, batch.place, batch.columns[1])
            .reshape(-1, width)
        )
        tags = ["", "", biaffine.ROOT, *vocabularies["upos"]]
        assert [tags[u] for u in upos[0, : len(batch.steps)]] == [
            biaffine.ROOT,
            *sentences[int(batch.index[0])].upos,
        ]


def test_lifted_words_have_no_relation(treebank):
    biaffine = load_biaffine()
    sentences = read_conllu(treebank / "train.conllu")[:2]
    vocabularies = biaffine.make_vocabularies(sentences)
    lifted = biaffine.projective(sentences, biaffine.Console(quiet=True))
    assert (sentences[0].heads, lifted[0].heads) == ((3, 4, 0, 3), (3, 3, 0, 3))
    assert lifted[1] == sentences[1]
    corpus = biaffine.Corpus(lifted, vocabularies)
    dep = vocabularies["relations"]["dep"]
    assert corpus.batch(torch.tensor([0])).relations[0, :4].tolist() == [
        dep,
        biaffine.NO_RELATION,
        dep,
        dep,
    ]
    assert (
        corpus.batch(torch.tensor([1])).relations[0, : len(sentences[1].forms)]
        != biaffine.NO_RELATION
    ).all()


def test_a_sentence_is_scored_alike_alone_and_beside_others(treebank):
    biaffine = load_biaffine()
    sentences = read_conllu(treebank / "train.conllu")
    vocabularies = biaffine.make_vocabularies(sentences)
    corpus = biaffine.Corpus(sentences, vocabularies)
    torch.manual_seed(0)
    parser = biaffine.Parser(vocabularies, hidden=8, spanning=False).eval()
    torch.nn.init.normal_(parser.arc.weight)
    together = corpus.batches(10**6)[0]
    with torch.no_grad():
        many = parser(together)[0]
        for b in (0, len(together.index) - 1):
            alone = parser(corpus.batch(together.index[b : b + 1]))[0]
            assert isinstance(alone, softq.ProjectiveTree)
            size = int(together.lengths[b]) + 1
            torch.testing.assert_close(many.scores[b, :size, :size], alone.scores[0, :size, :size])
            torch.testing.assert_close(many.log_partition[b], alone.log_partition[0])


@pytest.mark.parametrize("name", ["finetune_t5.py", "finetune_causal.py"])
def test_models_of_transformers_learn_by_likelihood_and_then_toward_the_reward(name, tmp_path):
    output = run(name, "--out", tmp_path / "tuned")
    stages = re.findall(r"^(\w+): reward (\S+) before, (\S+) after", output, re.MULTILINE)
    assert [objective for objective, *_ in stages] == ["ml", "sqdml"]
    (first, learnt), (second, tuned) = (
        [float(reward) for reward in rewards] for _, *rewards in stages
    )
    assert first < 0.02
    assert learnt == second  # it goes on from there
    assert tuned > learnt > 0.05
    assert (tmp_path / "tuned" / "model.safetensors").is_file()


def test_the_figure_of_the_readme(tmp_path):
    output = run("reward_against_tau.py", "--grid", "100", "--out", str(tmp_path / "reward.svg"))
    rewards = {
        line.split("  ")[0]: [float(value) for value in re.findall(r"\d\.\d{4}", line)]
        for line in output.splitlines()
    }
    (bayes,) = rewards["Bayes rule"]
    assert rewards["SQDML"] == [bayes, bayes]
    assert rewards["ML"][0] <= rewards["RAML"][0] < rewards["RAML"][1] <= bayes
    assert (tmp_path / "reward.svg").stat().st_size > 1000
