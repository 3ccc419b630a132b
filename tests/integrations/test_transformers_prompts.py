"""Rows with prompts alone: rewards of completions, presets, the base model, and what is logged."""

import math

import peft
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from softq.errors import DataError, RecipeError, RewardError
from softq.integrations.transformers import RewardModel, RowEncoder
from softq.integrations.transformers.rewards import as_reward, as_text_reward, with_sources
from softq.integrations.transformers.rows import as_row
from softq.neural.target_maker import standardized
from softq.rewards import ExactMatch, NegativeEditDistance
from softq.sentences import Sentences
from softq.spaces import Candidates
from tiny_models import (
    END,
    VOCAB,
    WORDS,
    random_rows,
    step,
    text,
    tiny,
    tokenizer,
    trainer_for,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # workers of a data loader are forked; Python from 3.12 on warns of that
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

PROMPTS = [{"input_ids": row["input_ids"]} for row in random_rows(6)]


def share_of_ba(completions, prompts):
    """More of one word is better."""
    assert all(isinstance(prompt, str) for prompt in prompts)
    return [text.split().count(WORDS[0]) / (1 + len(text.split())) for text in completions]


def share_of_b_and_d(completions):
    """More words that begin with one of two letters are better."""
    rows = [text.split() for text in completions]
    return [sum(word[0] in "bd" for word in row) / (1 + len(row)) for row in rows]


@pytest.mark.parametrize("preset", ["raft", "best-of-n", "dpg", "rwr", "tpo"])
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_every_preset_learns_from_rewards_alone(name, preset, tmp_path):
    more = {"dpg": {"tau": 0.1}, "rwr": {"tau": 0.1}, "tpo": {}}.get(preset, {})
    trainer = trainer_for(
        tiny(name),
        tmp_path,
        PROMPTS,
        reward=share_of_b_and_d,
        words=tokenizer(),
        preset=preset,
        **{"tau": None, "candidate_size": 16, "max_steps": 30, "learning_rate": 3e-2, **more},
        logging_strategy="steps",
        logging_steps=5,
    )
    torch.manual_seed(0)
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    assert len(rewards) == 6
    assert max(rewards[3:]) > rewards[0] + 0.05
    assert all(math.isfinite(loss) for loss in trainer.losses)


def test_rewards_that_say_nothing_move_a_normalized_model_nowhere(tmp_path):
    """All completions are equally good: TPO's target is the model, and its gradient is 0."""
    more = {"reward": lambda completions: [0.3] * len(completions), "words": tokenizer()}
    settings = {"preset": "tpo", "tau": None, "candidate_size": 8}
    trainer = trainer_for(tiny("llama"), tmp_path, **more, **settings)
    torch.manual_seed(0)
    _, found = step(trainer, PROMPTS[:2])
    assert max(float(value.abs().max()) for value in found.values()) < 1e-6
    trainer = trainer_for(tiny("llama"), tmp_path, **more, **settings | {"preset": "rwr", "tau": 1})
    torch.manual_seed(0)
    _, found = step(trainer, PROMPTS[:2])
    assert max(float(value.abs().max()) for value in found.values()) > 1e-3


def test_a_row_whose_samples_are_all_empty_counts_for_nothing(tmp_path):
    """And so does a whole batch of them."""
    for preset in ("raft", "tpo", "rwr"):
        trainer = trainer_for(
            tiny("llama"),
            tmp_path,
            reward=share_of_ba,
            words=tokenizer(),
            preset=preset,
            tau=1.0 if preset == "rwr" else None,
            candidate_size=2,
        )
        empty = set()

        def some(prompts, samples, seed, empty=empty):
            return [
                [([END], [-1.0])] * samples
                if place in empty
                else [([7, 8, END], [-1.0] * 3), ([9, END], -1.0)]
                for place in range(len(prompts))
            ]

        trainer.writer.generate = some
        both, _ = step(trainer, PROMPTS[:2])
        empty.add(1)
        one, found = step(trainer, PROMPTS[:2])
        assert 0 < one < both
        assert all(bool(value.isfinite().all()) for value in found.values())
        empty.add(0)
        none, found = step(trainer, PROMPTS[:2])
        assert none == 0
        assert all(float(value.abs().max()) == 0 for value in found.values())


def test_what_a_row_without_references_needs(tmp_path):
    words = tokenizer()
    for settings, message in [
        ({"objective": "ml", "tau": None}, "row 1 of the batch has no 'labels': ml trains on refe"),
        (
            {"candidates": "ngram"},
            "row 1 .*: candidates 'ngram' are made of references; use the mo",
        ),
        ({"candidates": "model+edit"}, "row 1 .*: candidates 'edit' are made of references"),
        (
            {"candidates": "model"},
            "and the reward 'sentence-bleu.*' compares with references: give a funct",
        ),
    ]:
        trainer = trainer_for(tiny("llama"), tmp_path, words=words, **settings)
        rows = [random_rows(1)[0], PROMPTS[0]]
        with pytest.raises(DataError, match=message):
            trainer.data_collator(rows)


def test_completions_that_are_scored_already_need_neither(tmp_path):
    """Neither references nor a reward: prompt, completions, their scores."""
    row = PROMPTS[0] | {"candidates": [[5, END], [6, 7, END], [5, END]]}
    trainer = trainer_for(tiny("t5"), tmp_path, candidates="dataset", tau=2.0)
    target = trainer.data_collator.make([as_row(row | {"candidate_rewards": [1.0, 0.0, 3.0]})])
    texts = map(tuple, target.scored.tokens[0].tolist())
    found = dict(zip(texts, target.weights[0].tolist(), strict=True))
    share = math.exp(1.0) / (1 + math.exp(1.0))  # rewards 2 and 0 at a temperature of 2
    assert found[5, END, 0] == pytest.approx(share, rel=1e-5)
    assert sum(found.values()) == pytest.approx(1.0)
    with pytest.raises(DataError, match="compares with references"):
        trainer.data_collator([row])


def test_rows_with_and_without_references_in_one_batch(tmp_path):
    """A reference is a candidate of its row alone."""
    trainer = trainer_for(
        tiny("llama"), tmp_path, reward=share_of_ba, words=tokenizer(), candidates="model"
    )
    rows = [as_row(random_rows(1)[0]), as_row(PROMPTS[0])]
    samples = Candidates(*Sentences.pack([[[4, 5], [6]], [[4], [7, 8]]]))
    target = trainer.data_collator.make(rows, samples)
    assert target.scored.lengths[0].tolist()[0] == len(rows[0].references[0])
    assert (target.weights[1] > 0).sum() == 2
    assert (target.weights[0] > 0).sum() == 3


# --- rewards of completions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "prompts"),
    [
        (lambda completions: [len(text) for text in completions], False),
        (lambda candidates: [len(text) for text in candidates], False),
        (
            lambda completions, prompts: [
                len(a + b) for a, b in zip(completions, prompts, strict=True)
            ],
            True,
        ),
        (
            lambda candidates, sources: [
                len(a + b) for a, b in zip(candidates, sources, strict=True)
            ],
            True,
        ),
        (lambda prompts, completions, **more: [len(a) for a in completions], True),
    ],
)
def test_functions_without_references(function, prompts):
    reward = as_text_reward(function, tokenizer())
    assert (reward.uses_references, reward.uses_prompts) == (False, prompts)
    given = with_sources(reward, [[5, 6], [7]])
    candidates = Sentences.pack([[[4], [5, 6]], [[7]]])
    found = given(*candidates, *Sentences.pack([[[9]], [[9]]]))
    assert found.shape == (2, 2, 1)
    longer = len(text([5, 6])) if prompts and function.__code__.co_argcount == 2 else 0
    if "zip" in function.__code__.co_names:
        assert found[0, :, 0].tolist() == [len(text([4])) + longer, len(text([5, 6])) + longer]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda completions: [math.nan],
            "must return finite numbers, got nan for the completion 'b",
        ),
        (
            lambda completions: [1.0, 2.0],
            "must return one number per completion, got 2 for 1 compl",
        ),
        (lambda completions: ["good"], "must return numbers: could not convert string to float"),
        (lambda completions: None, "must return numbers: 'NoneType' object is not iterable"),
        (
            lambda completions: 1 / 0,
            "raised ZeroDivisionError: division by zero; it was given 1 co",
        ),
    ],
)
def test_rewards_that_fail_say_where(function, message, tmp_path):
    settings = {"reward": function, "words": tokenizer(), "candidates": "model"}
    trainer = trainer_for(tiny("llama"), tmp_path, candidate_size=1, **settings)
    with pytest.raises(RewardError, match=message):
        trainer.data_collator.make([as_row(PROMPTS[0])], Candidates(*Sentences.pack([[[4]]])))


def test_several_rewards_are_added_up_with_weights():
    def length(completions):
        return [len(text.split()) for text in completions]

    given = [[[[7, 8], [7, 9, 9]]], [[[7, 8], [7]]]]
    cands, refs = (Sentences.pack(part) for part in given)
    both = as_reward([ExactMatch(), length], [2.0, 0.5], tokenizer())
    assert both.uses_references
    assert both(*cands, *refs)[0].tolist() == [[3.0, 1.0], [1.5, 1.5]]
    assert as_reward({length: 3.0}, None, tokenizer()).uses_references is False
    assert (
        as_reward({ExactMatch(): 2.0, length: 0.5}, None, tokenizer()).signature == both.signature
    )
    assert both.signature.startswith("2*exact-match+0.5*callable:")
    for weights, message in [([1.0], "a number for each of 2 rewards, got"), (None, None)]:
        if message:
            with pytest.raises(RewardError, match=message):
                as_reward([ExactMatch(), length], weights, tokenizer())
    with pytest.raises(RewardError, match="reward_weights is for a list of rewards, got one"):
        as_reward("bleu", [1.0], tokenizer())
    with pytest.raises(RewardError, match="the rewards have weights already"):
        as_reward({"bleu": 1.0}, [1.0], tokenizer())
    with pytest.raises(RewardError, match="weights of rewards must be finite numbers, got"):
        as_reward({"bleu": math.nan}, None, tokenizer())


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_reward_model(outputs, tmp_path):
    """Scores are those of the model on one pair at a time."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = BertConfig(vocab_size=VOCAB, intermediate_size=8, num_labels=outputs, **sizes)
    model, words = BertForSequenceClassification(config), tokenizer()
    label = None if outputs == 1 else 2
    scored = RewardModel(model, words, batch_size=2, label=label)
    completions, prompts = ["ba be", "bi", "do da do"], ["fa", "fe fi", "ga"]
    with torch.no_grad():
        model.eval()
        wanted = [
            model(**words(f"{a} {b}", return_tensors="pt")).logits[0]
            for a, b in zip(prompts, completions, strict=True)
        ]
    numbers = [float(row[0]) if outputs == 1 else float(row.log_softmax(0)[2]) for row in wanted]
    model.train()
    assert scored(completions, prompts) == pytest.approx(numbers, abs=1e-5)
    assert model.training
    reward = as_text_reward(scored, words)
    assert reward.signature == "callable:RewardModel(model)"
    assert reward.uses_prompts
    pair = RewardModel(model, words, label=label, template=None)
    assert len(pair(completions, prompts)) == 3
    trainer = trainer_for(
        tiny("llama"), tmp_path, reward=scored, words=words, preset="tpo", tau=None
    )
    assert math.isfinite(step(trainer, PROMPTS[:2])[0])
    if outputs == 3:
        with pytest.raises(RewardError, match=r"has 3 outputs: give label, .*, in 0..2, got None"):
            RewardModel(model, words)
    with pytest.raises(
        RewardError, match="needs a model for sequence classification and its token"
    ):
        RewardModel(words, model)
    with pytest.raises(RewardError, match=r"template must contain \{completion\}, got 'x'"):
        RewardModel(model, words, label=label, template="x")


def test_what_a_reward_model_reads():
    """Places of the template in a prompt stay as they are; what is too long loses its beginning."""
    seen = []

    class Words:
        truncation_side = "right"

        def __call__(self, *texts, **options):
            seen.append((texts, self.truncation_side))
            raise KeyboardInterrupt

    model = type("Model", (), {"config": type("Config", (), {"num_labels": 1})})()
    words = Words()
    scored = RewardModel(model, words, template="Q: {prompt} A: {completion}")
    with pytest.raises(KeyboardInterrupt):
        scored(["yes {prompt}"], ["write {completion} here"])
    assert seen == [((["Q: write {completion} here A: yes {prompt}"],), "left")]
    assert words.truncation_side == "right"


def test_rows_with_and_without_labels_need_one_process(tmp_path, monkeypatch):
    rows = [PROMPTS[0], random_rows(1)[0]]
    trainer = trainer_for(
        tiny("llama"), tmp_path, rows, preset="tpo", tau=None, reward=len_of, words=tokenizer()
    )
    trainer._check_evaluated(rows)  # one process
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    trainer._check_evaluated(rows[:1])
    with pytest.raises(
        DataError, match="rows with and without labels cannot be evaluated together"
    ):
        trainer._check_evaluated(rows)


def len_of(completions):
    return [float(len(text)) for text in completions]


def test_standardized_rewards(tmp_path):
    cands = Candidates(*Sentences.pack([[[4], [5], [6]], [[4], [5]]]))
    refs = Sentences.pack([[[4], [5]], [[4]]])
    rewards = torch.tensor(
        [[[1.0, 3.0], [2.0, 0.0], [0.0, 0.0]], [[0.1, 9.0], [0.1, 9.0], [9.0, 9.0]]]
    ).double()
    found = standardized(rewards, cands, refs)
    # means over references: 2, 1, 0, with mean 1 and variance 2/3
    assert found[0, :, 0].tolist() == pytest.approx([1.5**0.5, 0.0, -(1.5**0.5)])
    assert torch.equal(found[0, :, 0], found[0, :, 1])
    assert found[1].tolist() == [[0.0, 0.0]] * 3  # all equal; the last is missing
    settings = {"candidates": "dataset", "standardize_rewards": True, "tau": 1.0}
    trainer = trainer_for(tiny("t5"), tmp_path, **settings)
    row = PROMPTS[0] | {"candidates": [[5, END], [6, END]], "candidate_rewards": [10.0, 30.0]}
    target = trainer.data_collator.make([as_row(row)])
    high = math.exp(1) / (math.exp(1) + math.exp(-1))
    assert sorted(target.weights[0].tolist()) == pytest.approx([1 - high, high])
    assert target.signature.endswith(":standardized")


@pytest.mark.parametrize("prior", ["base", "current"])
def test_rewards_of_a_worker_process_wait_for_the_prior(prior, tmp_path):
    """Edits and their rewards are made there; they come back without the function."""
    losses = []
    for workers in (0, 1):
        trainer = trainer_for(
            tiny("t5"),
            tmp_path,
            random_rows(8),
            reward=lambda candidates, references: [
                float(len(a) > len(b)) for a, b in zip(candidates, references, strict=True)
            ],
            words=tokenizer(),
            prior=prior,
            candidates="ngram+edit",
            max_steps=2,
            dataloader_num_workers=workers,
        )
        trainer.train()
        losses.append(trainer.losses)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


# --- the base model ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_with_adapters_the_base_is_the_model_without_them(name, tmp_path):
    plain = tiny(name)
    modules = {"t5": ["q", "v"], "llama": ["q_proj", "v_proj"]}[name]
    kind = {"t5": "SEQ_2_SEQ_LM", "llama": "CAUSAL_LM"}[name]
    model = peft.get_peft_model(
        tiny(name), peft.LoraConfig(r=2, target_modules=modules, task_type=kind)
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    rows = [PROMPTS[0] | {"candidates": [[5, END], [6, 7, END], [8, END]]}]
    rows[0] |= {"candidate_rewards": [0.0, 0.0, 0.0]}
    found = []
    for each in (model, plain):
        prior = "base" if each is model else "current"
        trainer = trainer_for(each, tmp_path, candidates="dataset", prior=prior, tau=1.0)
        trainer.model.train()
        batch = trainer.data_collator(rows)
        own = {key: value for key, value in batch.items() if key.startswith("softq")}
        given = batch["softq_prompts"] if trainer.causal else batch_inputs(batch)
        target, _ = trainer._step(trainer.model, own, given)
        weights = target.weights[0]
        found.append(sorted(weights[weights > 0].tolist()))
        if each is model:
            assert trainer.base._frozen is None
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def batch_inputs(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def test_a_frozen_copy_stays_as_training_began(tmp_path):
    model = tiny("llama")
    trainer = trainer_for(
        model,
        tmp_path,
        PROMPTS,
        reward=share_of_ba,
        words=tokenizer(),
        preset="dpg",
        tau=0.2,
        max_steps=3,
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.train()
    kept = dict(trainer.base._frozen.named_parameters())
    for name, parameter in tiny("llama").named_parameters():
        assert torch.equal(kept[name], parameter)
        assert not kept[name].requires_grad
    assert not any("_frozen" in name for name, _ in model.named_parameters())
    kl = [line["kl_base"] for line in trainer.state.log_history if "kl_base" in line]
    assert kl[0] == pytest.approx(0.0, abs=1e-5)
    assert abs(kl[-1]) > 1e-4


# --- what is logged ------------------------------------------------------------------------------


def test_what_is_logged_of_the_samples(tmp_path):
    """Values of known samples, by hand."""
    texts = [[4, 4, END], [5, END], [5, END], [4, 5, 6, END]]
    trainer = trainer_for(
        tiny("llama"),
        tmp_path,
        PROMPTS[:1],
        reward=share_of_ba,
        words=tokenizer(),
        candidates="model",
        candidate_size=4,
        tau=1.0,
        max_steps=1,
        track_base=True,
        per_device_train_batch_size=1,
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.writer.generate = lambda prompts, samples, seed: [
        [(row, [-1.0] * len(row)) for row in texts] for _ in prompts
    ]
    before = tiny("llama")
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "reward" in line]
    rewards = [2 / 3, 0.0, 0.0, 1 / 4]
    mean = sum(rewards) / 4
    assert line["reward"] == pytest.approx(mean)
    assert line["reward_std"] == pytest.approx(
        math.sqrt(sum((value - mean) ** 2 for value in rewards) / 4)
    )
    assert (line["completion_length"], line["distinct"], line["finished"]) == (7 / 4, 3 / 4, 1)
    payoffs = [math.exp(2 / 3), 1.0, math.exp(1 / 4)]  # each text once
    ess = sum(payoffs) ** 2 / sum(payoff**2 for payoff in payoffs)
    assert line["ess"] == pytest.approx(ess / 3, rel=1e-5)
    prompt, logs = PROMPTS[0]["input_ids"], []
    for row in texts:
        labels = torch.tensor([[-100] * len(prompt) + row])
        with torch.no_grad():
            loss = before(input_ids=torch.tensor([prompt + row]), labels=labels).loss
        logs.append(-float(loss) * len(row))
    assert line["entropy"] == pytest.approx(-sum(logs) / 4, rel=1e-4)
    assert line["kl_base"] == pytest.approx(0.0, abs=1e-5)
    assert "ess_reused" not in line


def test_likelihood_logs_no_rewards(tmp_path):
    trainer = trainer_for(
        tiny("t5"),
        tmp_path,
        random_rows(4, references=2),
        objective="ml",
        tau=None,
        max_steps=1,
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.train()
    assert not any("reward" in line for line in trainer.state.log_history)


def test_evaluation_of_prompts_alone(tmp_path):
    more = {"reward": share_of_ba, "words": tokenizer(), "evaluate": PROMPTS}
    trainer = trainer_for(tiny("llama"), tmp_path, candidates="model", **more)
    scores = trainer.evaluate()
    assert 0 <= scores["eval_reward"] <= 1
    assert "eval_bleu" not in scores
    assert "eval_loss" not in scores
    on_references = trainer_for(tiny("llama"), tmp_path, words=tokenizer(), evaluate=PROMPTS)
    with pytest.raises(
        DataError, match="a row to evaluate has no 'labels', and the reward 'senten"
    ):
        on_references.evaluate()
    with pytest.raises(
        RecipeError, match="eval_mbr_samples needs a reward that compares two texts"
    ):
        trainer_for(tiny("llama"), tmp_path, candidates="model", eval_mbr_samples=2, **more)


def test_length_normalization(tmp_path):
    """Of the prior it changes the weights, of the loss what is weighted."""
    row = PROMPTS[0] | {
        "candidates": [[5, END], [6, 7, 8, 9, END]],
        "candidate_rewards": [0.0, 0.0],
    }
    losses, weights = {}, {}
    for how in ("none", "prior", "loss", "both"):
        settings = {"candidates": "dataset", "prior": "current", "tau": 1.0}
        trainer = trainer_for(tiny("llama"), tmp_path, length_normalization=how, **settings)
        trainer.model.train()
        batch = trainer.data_collator([row])
        own = {name: value for name, value in batch.items() if name.startswith("softq")}
        target, log_probs = trainer._step(trainer.model, own, batch["softq_prompts"])
        kept = target.weights[0] > 0
        logs, found = log_probs[0][kept].tolist(), target.weights[0][kept].tolist()
        priors = logs if how in ("none", "loss") else [logs[0] / 2, logs[1] / 5]
        payoffs = [math.exp(value) for value in priors]
        assert found == pytest.approx([payoff / sum(payoffs) for payoff in payoffs], rel=1e-4)
        weights[how] = found
        scores = logs if how in ("none", "prior") else [6 * logs[0] / 2, 6 * logs[1] / 5]
        wanted = -sum(w * score for w, score in zip(found, scores, strict=True)) / 6
        losses[how] = step(trainer, [row])[0]
        assert losses[how] == pytest.approx(wanted, rel=1e-4)
    assert weights["none"] != pytest.approx(weights["prior"], rel=1e-2)


def test_rows_of_text_without_references():
    encode = RowEncoder(tokenizer(), causal=True)
    assert encode({"source": "ba be"}) == {"input_ids": [4, 5]}
    scored = {"source": "ba", "candidates": ["be", "bi"], "candidate_rewards": [0.0, 1.0]}
    assert encode(scored) == {
        "input_ids": [4],
        "candidates": [[5, END], [6, END]],
        "candidate_rewards": [0.0, 1.0],
    }
    assert NegativeEditDistance().uses_references
