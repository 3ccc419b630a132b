"""How samples are generated, used again, and what does not fit a model."""

import logging
import math

import pytest
import torch
from torch.utils.data import IterableDataset

from softq.errors import DataError, ModelError, RecipeError
from softq.integrations.transformers import RowEncoder
from softq.integrations.transformers.sampling import Generator
from softq.sentences import Sentences
from softq.spaces import Candidates
from tiny_models import (
    END,
    assert_same_gradients,
    random_rows,
    step,
    tiny,
    tokenizer,
    trainer_for,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [{"input_ids": row["input_ids"]} for row in random_rows(6)]


def length(completions):
    return [0.1 * len(text.split()) for text in completions]


def made(folder, name="llama", **settings):
    """A trainer of prompts alone."""
    usual = {"candidates": "model", "tau": 1.0, "reward": length, "words": tokenizer()}
    return trainer_for(tiny(name), folder, PROMPTS, **{**usual, **settings})


# --- a server ------------------------------------------------------------------------------------


def test_samples_of_a_server_have_its_probabilities(tmp_path):
    """What it was given, and weights exp(r/τ) / (n P), with the P that it reports."""
    calls = []

    def generate(prompts, samples, seed):
        calls.append((prompts, samples, seed))
        return [
            [([5, END], [-1.0, -0.5]), ([6, 7, END], -2.0), ([8, 9, 10], [-1.0] * 3)]
            for _ in prompts
        ]

    settings = {"estimator": "importance", "candidate_size": 3, "generate": generate}
    trainer = made(tmp_path, prior="none", **settings)
    trainer.model.train()
    torch.manual_seed(0)
    batch = trainer.data_collator(PROMPTS[:2])
    own = {name: value for name, value in batch.items() if name.startswith("softq")}
    target, _ = trainer._step(trainer.model, own, batch["softq_prompts"])
    ((prompts, samples, seed),) = calls
    assert prompts == [row["input_ids"] for row in PROMPTS[:2]]
    assert samples == 3
    assert isinstance(seed, int)
    # the third was cut off
    payoffs = [math.exp(0.1 + 1.5), math.exp(0.2 + 2.0)]
    for row in target.weights:
        assert row[row > 0].tolist() == pytest.approx(
            [payoff / sum(payoffs) for payoff in payoffs], rel=1e-5
        )
    torch.manual_seed(0)
    step(trainer, PROMPTS[:2])
    assert calls[1] == calls[0]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "must return a list for each of 2 prompts, got NoneType"),
        ([[]], "must return a list for each of 2 prompts, got 1"),
        ([[([5], -1.0)], []], "must return 1 samples for each prompt, got 0 for prompt 1"),
        (
            [[([5], -1.0)], [7]],
            "must be a pair: a list of token ids, and a finite .* got 7 for prom",
        ),
        ([[([5], -1.0)], [("de", -1.0)]], "must be a pair: .*, got .* for prompt 1"),
        ([[([5, 6], [-1.0])], [([5], -1.0)]], "must be a pair: .* for prompt 0"),
        ([[([5], math.nan)], [([5], -1.0)]], "must be a pair: .* for prompt 0"),
        ([[([5], 2.0)], [([5], -1.0)]], "must be a pair: .* for prompt 0"),
        ([[([-5], -1.0)], [([5], -1.0)]], "must be a pair: .* for prompt 0"),
    ],
)
def test_what_a_server_returns_is_checked(found, message, tmp_path):
    trainer = made(tmp_path, generate=lambda prompts, samples, seed: found, candidate_size=1)
    with pytest.raises(ModelError, match=message):
        step(trainer, PROMPTS[:2])


def test_a_server_is_for_the_models_samples(tmp_path):
    with pytest.raises(
        RecipeError, match="generate must be a function that makes samples for cand"
    ):
        made(tmp_path, generate=print, candidates="dataset")
    with pytest.raises(RecipeError, match="generate must be a function that makes samples"):
        made(tmp_path, generate="http://server")


# --- ways to generate ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "llama"])
def test_a_static_cache_generates_the_same(name, tmp_path, caplog):
    found = []
    for mode in ("eager", "static"):
        trainer = made(tmp_path, name, generation=mode)
        torch.manual_seed(0)
        found.append(step(trainer, PROMPTS[:3])[0])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert "cannot generate in mode" not in caplog.text


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("llama", "compiled", "Transformers compiles decoding on a GPU alone"),
        ("t5", "continuous", "continuous batching is for causal models"),
    ],
)
def test_what_cannot_be_is_told_once(name, mode, reason, tmp_path, caplog):
    found = []
    for each in ("eager", mode):
        trainer = made(tmp_path, name, generation=each)
        torch.manual_seed(0)
        found.append([step(trainer, PROMPTS[:3])[0] for _ in range(2)])
    assert found[0] == found[1]
    lines = [line for line in caplog.messages if "cannot generate in mode" in line]
    assert len(lines) == 1
    assert reason in lines[0]


def test_continuous_batching_returns_the_texts_of_each_prompt(monkeypatch):
    """In the order of the prompts, through what Transformers calls it."""
    model = tiny("llama")
    asked = []

    class Output:
        error = None

        def __init__(self, tokens):
            self.generated_tokens = tokens

    def generate_batch(prompts, generation_config, progress_bar):
        asked.append((prompts, generation_config))
        count = generation_config.num_return_sequences
        rows = [[*prompt, place] for prompt in prompts for place in range(count)]
        return {str(place): Output(row) for place, row in enumerate(rows)}

    monkeypatch.setattr(model, "generate_batch", generate_batch, raising=False)
    inputs = {
        "input_ids": torch.tensor([[0, 5], [6, 7]]),
        "attention_mask": torch.tensor([[0, 1], [1, 1]]),
    }
    options = {"num_return_sequences": 2, "max_new_tokens": 3, "pad_token_id": 0}
    generator = Generator("continuous")
    found = generator(model, inputs, do_sample=True, top_k=0, **options)
    assert found == [[5, 0], [5, 1], [6, 7, 0], [6, 7, 1]]
    ((prompts, settings),) = asked
    assert prompts == [[5], [6, 7]]
    assert (settings.do_sample, settings.max_new_tokens, settings.eos_token_id) == (True, 3, END)
    assert generator.mode == "continuous"


# --- samples that are used again -----------------------------------------------------------------


def test_samples_are_used_for_several_steps(tmp_path, caplog):
    """Each batch in succession, sampled once; staleness is logged, and told once."""
    trainer = made(
        tmp_path,
        estimator="importance",
        reuse_samples=3,
        learning_rate=0.3,
        candidate_size=60,
        min_ess=1.0,
        num_train_epochs=1,
        per_device_train_batch_size=2,
        logging_strategy="steps",
        logging_steps=1,
    )
    calls, rows = [], []
    samples, compute = trainer.writer.samples, trainer.compute_loss
    trainer.writer.samples = lambda *given: calls.append(1) or samples(*given)

    def watched(model, inputs, *more, **named):
        rows.append([row.source for row in inputs["softq_rows"]])
        return compute(model, inputs, *more, **named)

    trainer.compute_loss = watched
    torch.manual_seed(0)
    trainer.train()
    assert len(rows) == 9
    assert len(calls) == 3
    for first in range(0, 9, 3):
        assert rows[first] == rows[first + 1] == rows[first + 2]
    used = [source for batch in rows[::3] for source in batch]
    assert sorted(used) == sorted(row["input_ids"] for row in PROMPTS)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    shares = [line.get("ess_reused") for line in lines]
    assert [share is None for share in shares] == [True, False, False] * 3
    assert all(share is None or 0 < share <= 1 + 1e-6 for share in shares)
    assert caplog.text.count("reused samples are stale: their effective share is") == 1


def test_samples_of_accumulated_batches_are_used_again(tmp_path):
    trainer = made(
        tmp_path,
        reuse_samples=2,
        gradient_accumulation_steps=3,
        per_device_train_batch_size=2,
        num_train_epochs=1,
    )
    calls, samples = [], trainer.writer.samples
    trainer.writer.samples = lambda *given: calls.append(1) or samples(*given)
    trainer.train()
    assert (len(calls), trainer.state.global_step) == (3, 2)


@pytest.mark.parametrize(
    ("settings", "saved", "steps"),
    [
        ({"reuse_samples": 2}, 8, 12),  # within the second epoch
        ({"train_sampling_strategy": "group_by_length"}, 3, 6),  # between the two
    ],
)
def test_a_resumed_training_has_the_same_order(settings, saved, steps, tmp_path):
    def rows_of(resume):
        trainer = made(
            tmp_path,
            per_device_train_batch_size=2,
            num_train_epochs=2,
            save_strategy="steps",
            save_steps=saved,
            **settings,
        )
        rows, compute = [], trainer.compute_loss

        def watched(model, inputs, *given, **named):
            rows.append([row.source for row in inputs["softq_rows"]])
            return compute(model, inputs, *given, **named)

        trainer.compute_loss = watched
        trainer.train(resume_from_checkpoint=resume)
        return rows

    rows = rows_of(None)
    assert len(rows) == steps
    assert rows[: steps // 2] != rows[steps // 2 :]  # every epoch has its own order
    assert rows_of(str(tmp_path / f"checkpoint-{saved}")) == rows[saved:]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PROMPTS)


def test_a_stream_is_not_repeated(tmp_path):
    with pytest.raises(RecipeError, match="reuse_samples needs a dataset of known length, got a"):
        trainer_for(
            tiny("t5"), tmp_path, Stream(), candidates="model", reuse_samples=2, max_steps=2
        )


# --- what does not fit ---------------------------------------------------------------------------


def test_a_prompt_longer_than_the_context(tmp_path):
    """One error with the row, before anything is generated or scored."""
    rows = [PROMPTS[0], {"input_ids": [5] * 125}]
    trainer = made(tmp_path, "gpt2")
    with pytest.raises(
        ModelError,
        match="row 1 of the batch has 125 tokens of prompt for 6 new ones, and GPT2LMHeadModel has"
        " 128 positions: shorten it",
    ):
        step(trainer, rows)
    trainer = trainer_for(tiny("gpt2"), tmp_path)
    labelled = [random_rows(1)[0], {"input_ids": [5] * 125, "labels": [6, 7, 8, END]}]
    with pytest.raises(
        DataError,
        match="row 1 of the batch has 125 tokens of prompt and 4 of completion, and the model has"
        " 128 positions: make it shorter",
    ):
        trainer.data_collator(labelled)
    trainer = made(tmp_path, "bart")
    with pytest.raises(
        ModelError, match="row 0 of the batch has 65 tokens of prompt for 6 new one"
    ):
        step(trainer, [{"input_ids": [5] * 65}])
    assert math.isfinite(step(made(tmp_path, "t5"), [{"input_ids": [5] * 130}])[0])


def test_padding_has_no_positions_of_its_own(tmp_path):
    """A long completion of one row does not lead beyond the context in another with a long prompt."""
    rows = [
        {
            "input_ids": [5] * 120,
            "candidates": [[6, END], [7, END]],
            "candidate_rewards": [0.0, 1.0],
        },
        {
            "input_ids": [5],
            "candidates": [[6] * 40 + [END], [7] * 30 + [END]],
            "candidate_rewards": [0.0, 1.0],
        },
    ]
    losses = []
    for shared in (True, False):
        trainer = trainer_for(tiny("gpt2"), tmp_path, candidates="dataset", tau=1.0)
        trainer._shared = shared
        losses.append(step(trainer, rows)[0])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_padding_to_a_multiple_changes_nothing(name, tmp_path):
    rows = [
        row | {"candidates": [[5, 6, END], [7, END]], "candidate_rewards": [0.0, 1.0]}
        for row in PROMPTS[:3]
    ]
    found = []
    for multiple in (None, 8):
        trainer = trainer_for(
            tiny(name), tmp_path, candidates="dataset", tau=1.0, pad_to_multiple_of=multiple
        )
        batch = trainer.data_collator(rows)
        given = batch["softq_prompts"] if trainer.causal else batch
        target = batch["softq_target"].result()
        widths = given["input_ids"].shape[1], target.scored.tokens.shape[2]
        assert (widths[0] % 8 == widths[1] % 8 == 0) is (multiple == 8)
        found.append(step(trainer, rows))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert_same_gradients(found[0][1], found[1][1], 1e-5)


# --- columns -------------------------------------------------------------------------------------


def test_columns_are_not_ignored_in_silence(tmp_path, caplog):
    row = random_rows(1)[0]
    trainer = trainer_for(tiny("t5"), tmp_path)
    with pytest.raises(
        DataError, match="no column 'candidate_rewards', but one called 'candidate_s"
    ):
        trainer.data_collator([row | {"candidates": [[5, END]], "candidate_scores": [1.0]}])
    with pytest.raises(DataError, match="no column 'labels', but one called 'label': rename it"):
        trainer.data_collator([{"input_ids": [5], "label": [6, END]}])
    caplog.clear()
    for _ in range(2):
        trainer.data_collator([row | {"candidates": [[5, END]], "topic": "birds"}])
    assert caplog.messages == [
        "columns that are not read: topic",
        "the column 'candidates' is not used: set candidates='dataset', also joined to others by +",
    ]
    caplog.clear()
    known = {"attention_mask": [1] * len(row["input_ids"]), "token_type_ids": [0]}
    trainer = trainer_for(tiny("t5"), tmp_path, candidates="dataset")
    trainer.data_collator([row | known | {"candidates": [[5, END]]}])
    assert not caplog.messages


def test_rows_for_plain_fine_tuning_are_refused(tmp_path):
    trainer = trainer_for(tiny("gpt2"), tmp_path)
    with pytest.raises(
        DataError, match="'labels' of a row equal its 'input_ids', as rows for plain"
    ):
        trainer.data_collator([{"input_ids": [5, 6, END], "labels": [5, 6, END]}])
    trainer.data_collator([{"input_ids": [5, 6, END], "labels": [[5, 6, END]]}])  # an echo


def test_columns_of_text(caplog):
    encode = RowEncoder(tokenizer(), causal=True)
    rows = {"source": ["ba", "be bi"], "references": [["do"], ["da", "di"]], "topic": ["a", "b"]}
    columns = encode(rows)  # Dataset.map(encode, batched=True)
    single = [encode({name: values[place] for name, values in rows.items()}) for place in range(2)]
    assert columns == {name: [row[name] for row in single] for name in ("input_ids", "labels")}
    assert caplog.messages == ["columns that are not read: topic"]
    with pytest.raises(DataError, match="no column 'references', but one called 'reference'"):
        encode({"source": "ba", "reference": "do"})
    with pytest.raises(
        DataError, match="no column 'candidate_rewards', but one called 'candidate_s"
    ):
        encode({"source": "ba", "candidates": ["do"], "candidate_scores": [1.0]})


def test_a_special_token_at_an_end_is_no_sample_of_known_probability(tmp_path):
    """Taking it away would make another text of it."""
    trainer = made(tmp_path, estimator="importance", candidate_size=4)
    trainer.writer.generate = lambda prompts, samples, seed: [
        [([0, 5, END], -1.0), ([5, 2, END], -1.0), ([5, END], -1.0), ([5, 2, 6, END], -1.0)]
        for _ in prompts
    ]
    given = given_to(trainer, PROMPTS[:1])
    drawn = trainer.samples.draw(trainer.model, trainer.model, [], given)
    assert drawn.texts.present.tolist() == [[False, False, True, True]]
    assert isinstance(drawn.texts, Candidates)
    assert isinstance(drawn.texts.sentences, Sentences)


def given_to(trainer, rows):
    return trainer.data_collator(rows)["softq_prompts"]


def test_likelihood_has_no_samples(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    rows = random_rows(3, references=2)
    assert math.isfinite(step(trainer_for(tiny("t5"), tmp_path, objective="ml", tau=None), rows)[0])
