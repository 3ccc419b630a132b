"""Examples run as people run them, and learn."""

import importlib.util
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softq.formats.conllu import read_conllu
from softq.lab.worlds import EntityWorld
from softq.metrics import attachment_statistics
from softq.metrics import las as labelled
from softq.metrics import uas as unlabelled
from softq.neural import BiaffineParser, TreeVocabulary
from softq.neural.parser_settings import ParserSettings

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


def last_scores(output):
    return tuple(map(float, re.findall(r"UAS (\S+), LAS (\S+)", output)[-1]))


def test_the_parser_learns_and_what_it_saves_parses_as_well(treebank, tmp_path):
    out = tmp_path / "parser.safetensors"
    uas, las = last_scores(parse_with(treebank, "--epochs", "6", "--out", out))
    assert 90 < uas <= 100
    assert 80 < las <= uas  # what is learnt in a few epochs differs between versions of torch
    dev = read_conllu(treebank / "dev.conllu")
    found = BiaffineParser.load(out).parse(dev, "mbr")
    sums = attachment_statistics(dev, [p.heads for p in found], [p.relations for p in found])
    scores = [100 * float(metric(sums.sum(0))) for metric in (unlabelled, labelled)]
    assert scores == pytest.approx([uas, las], abs=0.006)


@pytest.mark.parametrize("flags", [("--objective", "raml"), ("--objective", "sqdml", "--spanning")])
def test_the_parser_learns_toward_attachment_and_with_crossing_arcs(treebank, flags):
    output = parse_with(treebank, "--epochs", "5", "--tau", "0.3", *flags)
    assert last_scores(output)[0] > 80


def test_batches_hold_every_word_once_and_lifted_words_have_no_relation(treebank):
    spec = importlib.util.spec_from_file_location("biaffine", EXAMPLES / "biaffine.py")
    biaffine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(biaffine)
    trees = read_conllu(treebank / "train.conllu")
    relations = sorted({name for tree in trees for name in tree.relations})
    sizes = ParserSettings(hidden=4, layers=1, arc_size=4, relation_size=4)
    for spanning in (True, False):
        parser = BiaffineParser(TreeVocabulary.of(trees, relations), sizes, spanning=spanning)
        found = []
        for batch in biaffine.make_batches(parser, trees, 200):
            lengths = batch.sentences.lengths.tolist()
            assert sum(lengths) < 300
            for heads, named, size in zip(batch.heads, batch.relations, lengths, strict=True):
                assert (named[size:] == -1).all()
                names = [relations[k] if k >= 0 else "" for k in named[:size]]
                found.append((tuple(heads[:size].tolist()), tuple(names)))
        expected = [(tree.heads, tree.relations) for tree in trees]
        if not spanning:  # the crossing arc of the first tree is lifted
            assert trees[0].heads == (3, 4, 0, 3)
            expected[0] = ((3, 3, 0, 3), ("dep", "", "dep", "dep"))
        assert sorted(found) == sorted(expected)


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
