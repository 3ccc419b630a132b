"""Minimum-Bayes-risk self-distillation: what rows hold, that they are SQDML on samples, and what a kill leaves."""

import json
import math
from dataclasses import replace

import pytest
import torch

import softq
from softq.errors import DataError, RewardError, RunError
from softq.integrations.transformers import RowEncoder, distillation
from softq.integrations.transformers.distillation import distill, distill_to
from softq.integrations.transformers.generation import TextModel, Writing
from softq.integrations.transformers.loading import Loaded
from softq.integrations.transformers.rows import as_row
from softq.lab.run import RunFolder
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates
from tiny_models import END, WORDS, text, tiny, tokenizer, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")
HOW = Writing(samples=6, reward="words:bleu", max_new_tokens=5, batch_size=3, seed=4)
SOURCES = ["ba", "be bi", "fo", "ga ge gi go", "la li", "me", "no ni"]


def model_of(name="t5", seed=0):
    return TextModel(Loaded(tiny(name, seed=seed), tokenizer()))


def sampled(model, monkeypatch):
    """All batches of samples that a model is asked for, as they come."""
    batches, draw = [], model.samples

    def watched(*given):
        batches.append(draw(*given))
        return batches[-1]

    monkeypatch.setattr(model, "samples", watched)
    return batches


def utility(candidate, reference):
    """Sentence BLEU of words, by the reward that is tested elsewhere."""
    pair = [[WORDS.index(word) for word in one.split()] for one in (candidate, reference)]
    return float(
        softq.rewards.SentenceBLEU()(*Sentences.pack([pair[:1]]), *Sentences.pack([pair[1:]]))
    )


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_rows_hold_the_samples_with_what_each_earns_against_all(name, monkeypatch):
    model = model_of(name)
    batches = sampled(model, monkeypatch)
    rows = [row for some in distill(model, SOURCES, HOW) for row in some]
    assert [row["source"] for row in rows] == SOURCES
    drawn = [several for batch in batches for several in batch.sentences.unpack()]
    assert len(batches) == 3
    assert len(drawn) == len(SOURCES)
    for row, several in zip(rows, drawn, strict=True):
        texts = [text(numbers) for numbers in several]
        assert set(row["candidates"]) == set(texts)
        assert len(row["candidates"]) == len(set(texts))
        expected = {
            one: math.fsum(utility(one, other) for other in texts) / len(texts) for one in texts
        }
        for candidate, value in zip(row["candidates"], row["candidate_rewards"], strict=True):
            assert value == pytest.approx(expected[candidate], abs=1e-12)
        assert row["candidate_rewards"] == sorted(row["candidate_rewards"], reverse=True)
        assert row["references"] == row["candidates"][:1]
        assert expected[row["references"][0]] == pytest.approx(max(expected.values()), abs=1e-12)
    hard = [row for some in distill(model, SOURCES, HOW, hard=True) for row in some]
    assert hard == [{name: row[name] for name in ("source", "references")} for row in rows]


@pytest.mark.parametrize("tau", [0.05, 0.4])
def test_training_on_rows_is_sqdml_with_the_samples_as_references(tau, monkeypatch, tmp_path):
    model = model_of()
    batches = sampled(model, monkeypatch)
    rows = [row for some in distill(model, SOURCES[:3], HOW) for row in some]
    encoded = RowEncoder(tokenizer(), causal=False).all(rows)
    trainer = trainer_for(
        tiny("t5"),
        tmp_path,
        encoded,
        words=tokenizer(),
        candidates="dataset",
        objective="sqdml",
        tau=tau,
    )
    made = trainer.data_collator.targets(
        [as_row(row) for row in encoded], torch.Generator().manual_seed(0)
    )
    (drawn,) = batches
    for b, numbers in enumerate(drawn.sentences.unpack()):
        # as text, in which an unknown token is nothing
        several = [[one for one in row if one >= 4] for row in numbers]
        distinct = [list(one) for one in dict.fromkeys(map(tuple, several))]
        target = softq.sqdml(
            Candidates(*Sentences.pack([distinct])),
            Sentences.pack([several]),
            tau,
            reward=softq.rewards.SentenceBLEU(),
        )
        wanted = dict(zip(map(tuple, distinct), target.weights[0].tolist(), strict=True))
        got = {
            tuple(number for number in tokens[:length] if number != END): float(weight)
            for tokens, length, weight in zip(
                made.scored.tokens[b].tolist(),
                made.scored.lengths[b].tolist(),
                made.weights[b],
                strict=True,
            )
            if weight > 0
        }
        assert got.keys() == {one for one, weight in wanted.items() if weight > 1e-30}
        for one, weight in got.items():
            assert weight == pytest.approx(wanted[one], rel=1e-5, abs=1e-7)


def test_a_killed_distillation_resumes_to_the_same_file(tmp_path, monkeypatch):
    model, told = model_of(), []
    unbroken = distill_to(tmp_path / "whole.jsonl", model, SOURCES, HOW)
    assert unbroken == (len(SOURCES), 0, 0)
    append = RunFolder.append_line

    def kill(folder, name, row):
        append(folder, name, row)
        with (folder.path / name).open("a") as file:
            file.write('{"rows": [{"sou')  # a line that was cut
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_line", kill)
        with pytest.raises(KeyboardInterrupt):
            distill_to(tmp_path / "out.jsonl", model, SOURCES, HOW)
    assert [path.name for path in tmp_path.glob("*out*")] == [".out.jsonl.part"]
    with pytest.raises(
        RunError, match="begun and not finished with other samples, seed: finish it"
    ):
        distill_to(tmp_path / "out.jsonl", model, SOURCES, replace(HOW, seed=5, samples=2))
    with pytest.raises(RunError, match="with other model"):
        distill_to(tmp_path / "out.jsonl", model, SOURCES, HOW, about={"model": "x"})
    batches = sampled(model, monkeypatch)
    again = distill_to(
        tmp_path / "out.jsonl",
        model,
        SOURCES,
        HOW,
        tell=lambda done, total: told.append((done, total)),
    )
    assert again == (len(SOURCES), 0, 3)
    assert len(batches) == 2
    assert told == [(3, 7), (6, 7), (7, 7)]
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "whole.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == SOURCES
    distill_to(tmp_path / "other.jsonl", model, SOURCES, replace(HOW, seed=5))
    assert (tmp_path / "other.jsonl").read_bytes() != (tmp_path / "whole.jsonl").read_bytes()


def test_sources_without_a_sample_are_left_out(tmp_path, monkeypatch):
    model = model_of()
    draw = model.samples

    def without_second(sources, how):
        drawn = draw(sources, how)
        lengths = drawn.lengths.clone()
        lengths[[place for place, one in enumerate(sources) if one == "fo"]] = MISSING
        return Candidates(drawn.tokens, lengths)

    monkeypatch.setattr(model, "samples", without_second)
    assert distill_to(tmp_path / "out.jsonl", model, SOURCES, HOW) == (6, 1, 0)
    assert '"fo"' not in (tmp_path / "out.jsonl").read_text()
    with pytest.raises(DataError, match="nothing but empty texts"):
        distill_to(tmp_path / "none.jsonl", model, ["fo"], HOW)
    assert not (tmp_path / "none.jsonl").exists()


def test_what_cannot_be_distilled(tmp_path):
    with pytest.raises(DataError, match="expected sources"):
        distill_to(tmp_path / "out.jsonl", model_of(), [], HOW)
    model = model_of()
    model.reward = lambda name: softq.rewards.MultiReferenceBLEU()
    with pytest.raises(RewardError, match="needs a reward of two texts"):
        next(distillation.distill(model, SOURCES, HOW))
    assert not list(tmp_path.iterdir())
