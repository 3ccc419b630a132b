"""What evaluation reports of the texts that a model writes, against the same by hand."""

import builtins
from types import SimpleNamespace

import pytest
import torch

from softq.errors import DataError, DependencyError, RewardError
from softq.integrations.transformers import generation
from softq.rewards import ExactMatch, MultiReferenceBLEU, SentenceBLEU
from softq.sentences import Sentences
from tiny_models import CAUSAL, END, PAD, START, random_rows, text, tiny, tokenizer, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")

# two batches, of which the second is not full
EVALUATED = [*random_rows(4, references=2), *random_rows(3, seed=1)]


def contents(sequences, first):
    """Words up to the end mark, without what is no word at both ends."""
    found = []
    for row in sequences[:, first:].tolist():
        words = row[: row.index(END)] if END in row else row
        places = [place for place, word in enumerate(words) if word > START]
        found.append(words[places[0] : places[-1] + 1] if places else [])
    return found


def written(trainer, name, **how):
    """Texts for the rows of each batch, through nothing but `generate`."""
    trainer.model.eval()
    for batch in trainer.get_eval_dataloader():
        inputs = (
            batch["softq_prompts"]
            if name in CAUSAL
            else {key: batch[key] for key in ("input_ids", "attention_mask")}
        )
        first = inputs["input_ids"].shape[1] if name in CAUSAL else 1
        with torch.no_grad():
            yield [
                contents(trainer.model.generate(**inputs, max_new_tokens=6, **each), first)
                for each in how["settings"]
            ]


def bleu(candidate, references):
    pairs = Sentences.pack([[candidate]]), Sentences.pack([references])
    return SentenceBLEU()(*pairs[0], *pairs[1])[0, 0].mean().item()


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize(("metric", "beams"), [("bleu", 1), ("chrf", 3)])
def test_scores_are_those_of_the_texts(name, metric, beams, tmp_path):
    sacrebleu = pytest.importorskip("sacrebleu")
    settings = {"eval_num_beams": beams, "corpus_metric": metric}
    trainer = trainer_for(tiny(name), tmp_path, evaluate=EVALUATED, words=tokenizer(), **settings)
    scores = trainer.evaluate()
    texts = [
        words
        for (batch,) in written(trainer, name, settings=[{"do_sample": False, "num_beams": beams}])
        for words in batch
    ]
    assert len({tuple(words) for words in texts}) > 3
    references = [[reference[:-1] for reference in row["labels"]] for row in EVALUATED]
    assert scores["eval_reward"] == pytest.approx(sum(map(bleu, texts, references)) / 7, abs=1e-12)
    streams = [[text(row[min(place, len(row) - 1)]) for row in references] for place in range(2)]
    scorer = sacrebleu.BLEU() if metric == "bleu" else sacrebleu.CHRF()
    assert scores[f"eval_{metric}"] == pytest.approx(
        scorer.corpus_score(list(map(text, texts)), streams).score, abs=1e-9
    )
    assert scores["eval_generation_seconds"] > 0
    assert not {"eval_mbr_gap", "eval_mbr_reward"} & scores.keys()


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_the_gap_to_minimum_bayes_risk(name, tmp_path):
    trainer = trainer_for(
        tiny(name),
        tmp_path,
        evaluate=EVALUATED,
        eval_mbr_samples=5,
        sampling_temperature=0.4,
        sampling_top_p=0.9,
    )
    state = torch.get_rng_state()
    scores = trainer.evaluate()
    drawn = {
        "do_sample": True,
        "num_beams": 1,
        "num_return_sequences": 5,
        "top_k": 0,
        "temperature": 0.4,
        "top_p": 0.9,
    }
    torch.manual_seed(trainer.args.seed)
    total = lowest = highest = 0.0
    references = iter([reference[:-1] for reference in row["labels"]] for row in EVALUATED)
    for best, samples in written(
        trainer, name, settings=[{"do_sample": False, "num_beams": 1}, drawn]
    ):
        for number, mode in enumerate(best):
            evidence = [words for words in samples[5 * number : 5 * number + 5] if words]
            choices = [mode, *evidence]
            expected = [sum(bleu(choice, [other]) for other in evidence) for choice in choices]
            right = next(references)
            total += bleu(mode, right) / 7
            found = [
                bleu(choice, right)
                for choice, value in zip(choices, expected, strict=True)
                if value > max(expected) - 1e-9
            ]
            # rounding decides among equals
            lowest, highest = (lowest + min(found) / 7, highest + max(found) / 7)
    assert not lowest <= total <= highest
    assert lowest - 1e-12 <= scores["eval_mbr_reward"] <= highest + 1e-12
    assert scores["eval_mbr_gap"] == pytest.approx(scores["eval_mbr_reward"] - total, abs=1e-12)
    assert scores["eval_mbr_seconds"] > 0
    torch.set_rng_state(state)
    again = trainer.evaluate()  # the same samples, whatever was drawn before
    assert (again["eval_reward"], again["eval_mbr_gap"]) == (
        scores["eval_reward"],
        scores["eval_mbr_gap"],
    )


def test_a_model_that_says_nothing_is_scored_all_the_same(tmp_path):
    model = tiny("t5")
    model.generate = lambda input_ids, num_return_sequences=1, **more: torch.tensor(
        [[PAD, END]]
    ).repeat(len(input_ids) * num_return_sequences, 1)
    scores = trainer_for(
        model, tmp_path, evaluate=EVALUATED, words=tokenizer(), eval_mbr_samples=2
    ).evaluate()
    assert (scores["eval_reward"], scores["eval_mbr_gap"], scores["eval_bleu"]) == (0.0, 0.0, 0.0)


def test_what_can_be_left_out(tmp_path):
    few = EVALUATED[:2]
    loss = trainer_for(tiny("t5"), tmp_path, evaluate=few, eval_generate=False).evaluate()
    assert "eval_loss" in loss
    assert "eval_reward" not in loss
    without = trainer_for(
        tiny("t5"), tmp_path, evaluate=few, words=tokenizer(), corpus_metric="none"
    ).evaluate()
    assert without["eval_loss"] == pytest.approx(loss["eval_loss"])
    assert not {"eval_bleu", "eval_chrf"} & without.keys()
    # no tokenizer, no text
    assert "eval_bleu" not in trainer_for(tiny("t5"), tmp_path, evaluate=few).evaluate()
    assert "test_reward" in trainer_for(tiny("t5"), tmp_path).predict(few).metrics


def test_rewards_of_all_references_together(tmp_path):
    few = EVALUATED[:3]
    trainer = trainer_for(tiny("t5"), tmp_path, evaluate=few, reward=MultiReferenceBLEU())
    (batch,) = written(trainer, "t5", settings=[{"do_sample": False}])
    references = [[reference[:-1] for reference in row["labels"]] for row in few]
    wanted = MultiReferenceBLEU()(
        *Sentences.pack([[words] for words in batch[0]]), *Sentences.pack(references)
    ).mean()
    assert trainer.evaluate()["eval_reward"] == pytest.approx(float(wanted), abs=1e-12)
    with pytest.raises(RewardError, match=r"minimum Bayes risk needs a reward of two texts, and"):
        trainer_for(
            tiny("t5"), tmp_path, evaluate=few, reward=MultiReferenceBLEU(), eval_mbr_samples=2
        ).evaluate()


def test_the_loss_of_evaluation_is_transformers_own(tmp_path):
    rows = random_rows(4)
    trainer = trainer_for(tiny("llama"), tmp_path, evaluate=rows, reward=ExactMatch())
    batch = trainer.data_collator(rows)
    trainer.model.eval()
    with torch.no_grad():
        wanted = trainer.model(
            **{key: batch[key] for key in ("input_ids", "attention_mask", "labels")}
        ).loss
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(wanted), abs=1e-6)
    assert trainer.data_collator.training
    assert "softq_target" in trainer.data_collator(rows)


def test_nothing_to_evaluate(tmp_path):
    with pytest.raises(DataError, match="there are no rows to evaluate: give an eval_dataset of"):
        trainer_for(tiny("t5"), tmp_path, evaluate=[]).evaluate()


def test_seconds_are_those_of_decoding(monkeypatch):
    """The most probable text is among the choices of minimum Bayes risk.

    Scoring against references is no part of either.
    """
    clock = [0.0]

    def takes(seconds, found):
        def work(*given):
            clock[0] += seconds
            return found

        return work

    writer = SimpleNamespace(
        best=takes(1.0, [[5]]),
        least_risk=takes(10.0, [[5]]),
        special=SimpleNamespace(ids=()),
        how=SimpleNamespace(samples=3),
    )
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(generation, "mean_rewards", takes(100.0, torch.ones(1)))
    found = generation.write_and_score(writer, None, {}, [[[5]]], ExactMatch())
    assert (found.seconds, found.mbr_seconds) == (1.0, 11.0)


def test_without_sacrebleu_it_says_what_to_install(tmp_path, monkeypatch):
    trainer = trainer_for(tiny("t5"), tmp_path, evaluate=EVALUATED[:2], words=tokenizer())
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("sacrebleu"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DependencyError, match=r"corpus metrics are sacreBLEU's: pip install .*,"):
        trainer.evaluate()
