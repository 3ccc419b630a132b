"""Losses and gradients of the trainer, against Transformers' own loss of one candidate at a time."""

import logging
import math
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPTNeoConfig, GPTNeoForCausalLM, MistralConfig, MistralForCausalLM

from softq.integrations.transformers.model_checks import can_share
from softq.integrations.transformers.scoring import (
    IGNORED,
    ScoredCandidates,
    causal_log_probs,
    encoder_decoder_log_probs,
)
from softq.rewards import NegativeEditDistance
from tiny_models import (
    CAUSAL,
    ENCODER_DECODERS,
    END,
    NAMES,
    PAD,
    SHARING,
    START,
    VOCAB,
    assert_same_gradients,
    gradients,
    random_rows,
    step,
    tiny,
    trainer_for,
    use_bfloat16,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCES = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
CANDIDATES = [
    [[14, 15, END], [16, END], [17, 18, 19, 20, END]],
    [[21, END]],
    [[START, 22, END], [23, 24, END], [24]],
]

# Three rows: several references, one, one of two that repeats; candidates of their own, of which
# one is a reference.
ROWS = [
    {
        "input_ids": [5, 6, 7, 8],
        "labels": [[10, 11, 12, END], [10, 13, END]],
        "candidates": [[10, 11, END], [14, 11, 12, 15, END]],
    },
    {
        "input_ids": [9],
        "labels": [[20, 21, END]],
        "candidates": [[20, 22], [20, 21], [23, 21, 21, END]],
    },
    {"input_ids": [8, 7], "labels": [[30, END], [30, END]], "candidates": [[31, END]]},
]
OWN = {"reward": NegativeEditDistance(), "candidates": "dataset", "tau": 0.8}


def plain_loss(model, source, target):
    """- log P(target | source): Transformers' own mean loss, times the tokens it is a mean of."""
    if model.config.is_encoder_decoder:
        found = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).loss
    else:
        labels = [IGNORED] * len(source) + target
        found = model(input_ids=torch.tensor([source + target]), labels=torch.tensor([labels])).loss
    return found * len(target)


def edits(one, two):
    """Edit distance, by its definition."""
    if not one or not two:
        return len(one) + len(two)
    return min(
        edits(one[1:], two) + 1,
        edits(one, two[1:]) + 1,
        edits(one[1:], two[1:]) + (one[0] != two[0]),
    )


def weights_by_hand(row, objective, tau):
    """Candidates, references among them, with the weights of eq. 2, 4-5 or 14-15."""
    contents = [tuple(word for word in reference if word != END) for reference in row["labels"]]
    if objective == "ml":
        return [(list(content), 1 / len(contents)) for content in contents]
    space = sorted(
        {*contents, *(tuple(word for word in text if word != END) for text in row["candidates"])}
    )

    def softmax(scores):
        return [
            math.exp(score / tau) / sum(math.exp(other / tau) for other in scores)
            for score in scores
        ]

    rewards = [[-edits(text, content) for content in contents] for text in space]
    if objective == "sqdml":
        weights = softmax([sum(row) / len(row) for row in rewards])
    else:
        each = [softmax(column) for column in zip(*rewards, strict=True)]
        weights = [sum(column[s] for column in each) / len(each) for s in range(len(space))]
    return list(zip(map(list, space), weights, strict=True))


def oracle(model, rows, objective, tau):
    """Loss and gradients, candidate by candidate."""
    model.zero_grad()
    tokens = sum(len(row["labels"][0]) for row in rows)
    total = 0.0
    for row in rows:
        for content, weight in weights_by_hand(row, objective, tau):
            loss = weight * plain_loss(model, row["input_ids"], [*content, END]) / tokens
            loss.backward()
            total += float(loss.detach())
    return total, gradients(model)


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_weighted_sums_of_those_of_candidates(name, objective, tmp_path):
    model = tiny(name)
    loss, found = step(trainer_for(model, tmp_path, objective=objective, **OWN), ROWS)
    wanted, right = oracle(model, ROWS, objective, 0.8)
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert_same_gradients(found, right, 1e-5)


def scored_of(candidates):
    size, width = max(map(len, candidates)), max(len(text) for row in candidates for text in row)
    # what stands behind an end must not matter
    tokens = torch.full((len(candidates), size, width), 33)
    lengths = torch.full((len(candidates), size), -1)
    for b, row in enumerate(candidates):
        for s, text in enumerate(row):
            tokens[b, s, : len(text)] = torch.tensor(text, dtype=torch.int64)
            lengths[b, s] = len(text)
    return ScoredCandidates(tokens, lengths)


def given_to(name, sources=SOURCES):
    """What a model reads: padded on the left for a causal one, on the right for an encoder."""
    width = max(map(len, sources))
    left = name in CAUSAL
    rows = [
        [PAD] * (width - len(source)) + source if left else source + [PAD] * (width - len(source))
        for source in sources
    ]
    mask = [
        [0] * (width - len(s)) + [1] * len(s) if left else [1] * len(s) + [0] * (width - len(s))
        for s in sources
    ]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def log_probs(name, model, given, scored, *, shared):
    score = causal_log_probs if name in CAUSAL else encoder_decoder_log_probs
    return score(model, model, given, scored, shared=shared)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_what_a_source_is_to_a_decoder_is_computed_once(name, missing):
    model = tiny(name)
    candidates = (
        CANDIDATES if missing else [row * 3 if len(row) == 1 else row for row in CANDIDATES]
    )
    given, scored = given_to(name), scored_of(candidates)
    with FlopCounterMode(display=False) as counter:
        log_probs(name, model, given, scored, shared=True)
    done = {module: sum(found.values()) for module, found in counter.get_flop_counts().items()}
    crossed = [
        count
        for module, count in done.items()
        if re.search(r"(EncDecAttention|encoder_attn)\.(k|v|k_proj|v_proj)$", module)
    ]
    places, width = given["input_ids"].numel(), model.config.d_model
    # keys and values of its one layer, of three sources and not of all candidates
    assert crossed == [2 * places * width**2] * 2


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_a_compiled_model_shares_too(name):
    if name not in SHARING:
        pytest.skip("these Transformers do not let it share")
    model, scored = tiny(name), scored_of([row * 3 if len(row) == 1 else row for row in CANDIDATES])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    score = causal_log_probs if name in CAUSAL else encoder_decoder_log_probs
    found, slopes = [], []
    for called in (compiled, model):
        model.zero_grad()
        values = score(called, model, given_to(name), scored, shared=True)
        values.sum().backward()
        found.append(values.detach())
        slopes.append(gradients(model))
    torch.testing.assert_close(found[0], found[1])
    assert_same_gradients(slopes[0], slopes[1], 1e-5)
    # as many candidates as before, of other sources: nothing of the first batch may be left
    # in what was compiled
    for missing in (0, 2):
        lengths = scored.lengths.clone()
        lengths[missing, 1] = -1
        fewer = score(
            compiled, model, given_to(name), ScoredCandidates(scored.tokens, lengths), shared=True
        )
        torch.testing.assert_close(
            fewer, found[1].masked_fill(lengths < 0, 0.0), rtol=1e-4, atol=1e-4
        )


@pytest.mark.skipif(
    torch.__version__ < "2.8", reason="torch.compile does not follow a tensor of another class"
)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_compiled_decoder_makes_keys_and_values_once(name):
    model, scored = (
        tiny(name).eval(),
        scored_of([row * 3 if len(row) == 1 else row for row in CANDIDATES]),
    )
    made = []

    def look(graph, _inputs):
        linear = [node for node in graph.graph.nodes if node.target is torch.nn.functional.linear]
        made.extend(tuple(node.meta["example_value"].shape[:2]) for node in linear)
        return graph

    compiled = torch.compile(model, backend=look, fullgraph=True, dynamic=False)
    given = given_to(name, [source + source for source in SOURCES])  # longer than candidates
    encoder_decoder_log_probs(compiled, model, given, scored, shared=True)
    batch, width = given["input_ids"].shape
    sources, candidates = (batch, width), (scored.lengths.numel(), scored.tokens.shape[2])
    assert set(made) == {sources, candidates}  # and not a source for every candidate


@pytest.mark.parametrize("name", SHARING)
def test_candidates_read_together_are_scored_as_one_by_one(name):
    model, scored = tiny(name), scored_of(CANDIDATES)
    weights = torch.rand(scored.lengths.shape, generator=torch.Generator().manual_seed(1))
    found, slopes = [], []
    for shared in (True, False):
        model.zero_grad()
        values = log_probs(name, model, given_to(name), scored, shared=shared)
        (values * weights).sum().backward()
        found.append(values.detach())
        slopes.append(gradients(model))
    assert torch.allclose(*found, atol=1e-5)
    assert_same_gradients(*slopes, 1e-5)
    assert found[0][1, 1:].tolist() == [0.0, 0.0]  # missing
    for b, row in enumerate(CANDIDATES):
        for s, candidate in enumerate(row):
            with torch.no_grad():
                assert float(found[0][b, s]) == pytest.approx(
                    -float(plain_loss(model, SOURCES[b], candidate)), abs=1e-5
                )


@pytest.mark.parametrize("shared", [True, False])
def test_a_text_without_any_token_is_certain(shared):
    name, model = "llama", tiny("llama")
    with torch.no_grad():
        assert (
            log_probs(
                name, model, given_to(name, [[5, 6]]), scored_of([[[7, 8], []]]), shared=shared
            )[0, 1]
            == 0
        )


def short_sighted(name):
    """A model that looks back a few places only."""
    if name == "gpt-neo":
        sizes = {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "max_position_embeddings": 64,
            "vocab_size": VOCAB,
        }
        config = GPTNeoConfig(
            **sizes,
            window_size=10,
            attention_types=[[["global", "local"], 1]],
            initializer_range=0.3,
        )
        for drop in ("attention_dropout", "embed_dropout", "resid_dropout"):
            setattr(config, drop, 0.0)
        config.pad_token_id, config.bos_token_id, config.eos_token_id = PAD, START, END
        return GPTNeoForCausalLM(config)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    specials = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    return MistralForCausalLM(
        MistralConfig(
            **sizes, **specials, vocab_size=VOCAB, sliding_window=10, initializer_range=0.3
        )
    )


@pytest.mark.parametrize("name", ["mistral", "gpt-neo"])
def test_a_row_is_not_longer_than_a_model_looks_back(name):
    """It may share in a short row; in a long one the last candidates would not see their prompt."""
    model = short_sighted(name).eval()
    read = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(list(kwargs["input_ids"].shape)), with_kwargs=True
    )
    for prompt, size, rows in (
        [[5], 2, [1, 9]],
        [[5, 6, 7], 2, [2, 7]],
        [[5], 8, [8, 5]],
        [[5, 6, 7, 8, 9, 10, 11], 3, [3, 11]],
    ):
        candidates = [[11 + place, 12, 13, END] for place in range(size)]
        with torch.no_grad():
            found = causal_log_probs(
                model, model, given_to("llama", [prompt]), scored_of([candidates]), shared=True
            )[0].tolist()
            assert read.pop() == rows
            assert found == pytest.approx(
                [-float(plain_loss(model, prompt, text)) for text in candidates], abs=1e-5
            )
            read.clear()


@pytest.mark.parametrize("name", ["mistral", "gpt-neo"])
def test_whether_it_can_be_is_tried_where_it_would_be(name, tmp_path):
    """Neither a row that is too long to be shared nor one candidate alone says anything."""
    model = short_sighted(name)
    trainer = trainer_for(model, tmp_path, **OWN)
    many = {
        "input_ids": [5],
        "labels": [[6, 7, END]],
        "candidates": [[8 + place, 7, END] for place in range(6)],
    }
    alone = {"input_ids": [5], "labels": [[6, 7, END]], "candidates": [[6, 7, END]]}
    for row, known in (
        (many, None),
        (alone, None),
        (many | {"candidates": [[8, 7, END]]}, True),
        (many, True),
    ):
        loss, found = step(trainer, [row])
        assert trainer._shared is known
        wanted, right = oracle(model, [row], "raml", 0.8)
        assert loss == pytest.approx(wanted, abs=1e-5)
        assert_same_gradients(found, right, 1e-5)


@pytest.mark.parametrize("name", SHARING)
def test_what_candidates_share_is_computed_once(name, tmp_path):
    model = tiny(name)
    read = []
    reader = model.get_encoder() if name in ENCODER_DECODERS else model
    reader.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    trainer = trainer_for(model, tmp_path, candidates="ngram", candidate_size=6)
    rows = random_rows(3)
    step(trainer, rows)  # the first one also finds out whether it can be
    read.clear()
    step(trainer, rows)
    target = trainer.data_collator.make(trainer.data_collator(rows)["softq_rows"])
    longest = max(len(row["input_ids"]) for row in rows)
    wanted = (
        3 * longest if name in ENCODER_DECODERS else 3 * (longest + target.scored.tokens[0].numel())
    )
    assert read == [wanted]


def test_a_row_of_many_gaps_is_not_worth_it(tmp_path):
    model = tiny("llama")
    rows = [
        {
            "input_ids": [5, 6],
            "labels": [7, 8, END],
            "candidates": [[9, 10 + place, END] for place in range(count)],
        }
        for count in (8, 1, 1, 1)
    ]
    trainer = trainer_for(model, tmp_path, **OWN)
    wanted, right = step(trainer, rows)
    read = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    step(trainer, rows)
    assert read == [15 * (2 + 3)]  # and not 4 · (2 + 9 · 3)
    total, slopes = oracle(model, [row | {"labels": [row["labels"]]} for row in rows], "raml", 0.8)
    assert wanted == pytest.approx(total, abs=1e-5)
    assert_same_gradients(right, slopes, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_ml_is_the_loss_of_transformers(name, tmp_path):
    model, rows = tiny(name), random_rows(3)
    model.train()
    trainer = trainer_for(model, tmp_path, objective="ml")
    batch = trainer.data_collator(rows)
    ours = trainer.compute_loss(model, batch)
    theirs = model(**{key: batch[key] for key in ("input_ids", "attention_mask", "labels")}).loss
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    total = sum(
        float(plain_loss(model, row["input_ids"], row["labels"][0]).detach()) for row in rows
    )
    assert float(ours.detach()) == pytest.approx(
        total / sum(len(row["labels"][0]) for row in rows), abs=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_without_temperature_it_is_ml(name, tmp_path):
    model, rows = tiny(name), random_rows(3)
    wanted, right = step(trainer_for(model, tmp_path, objective="ml"), rows)
    for objective in ("raml", "sqdml"):
        loss, found = step(
            trainer_for(model, tmp_path, objective=objective, tau=1e-3, candidates="ngram+edit"),
            rows,
        )
        assert loss == pytest.approx(wanted, abs=1e-5)
        assert_same_gradients(found, right, 1e-5)


def test_raml_is_sqdml_with_one_reference(tmp_path):
    model = tiny("t5")
    for references, same in ((1, True), (3, False)):
        rows = random_rows(3, references=references)
        losses = [
            step(trainer_for(model, tmp_path, objective=objective), rows)[0]
            for objective in ("raml", "sqdml")
        ]
        assert (abs(losses[0] - losses[1]) < 1e-6) == same


def test_the_loss_is_divided_by_the_tokens_that_trainer_counted(tmp_path):
    rows = random_rows(3)
    trainer = trainer_for(tiny("gpt2"), tmp_path, rows, average_tokens_across_devices=False)
    assert trainer.model_accepts_loss_kwargs
    alone, _ = step(trainer, rows)
    tokens = sum(len(row["labels"][0]) for row in rows)
    assert step(trainer, rows, num_items_in_batch=torch.tensor(2 * tokens))[0] == pytest.approx(
        alone / 2, rel=1e-6
    )
    trainer.model.train()
    loss, outputs = trainer.compute_loss(
        trainer.model, trainer.data_collator(rows), return_outputs=True
    )
    assert float(loss.detach()) == pytest.approx(alone, rel=1e-6)
    assert outputs["log_probs"].shape[0] == 3


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_gradient_checkpointing_changes_nothing(name, tmp_path):
    model = tiny(name)
    trainer = trainer_for(model, tmp_path, objective="sqdml", **OWN)
    wanted, right = step(trainer, ROWS)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert model.is_gradient_checkpointing
    loss, found = step(trainer, ROWS)
    assert loss == pytest.approx(wanted, abs=1e-6)
    assert_same_gradients(found, right, 1e-6)


@pytest.mark.parametrize("name", ["t5", "gpt2", "llama"])
def test_bfloat16_is_near(name, tmp_path, caplog, monkeypatch):
    model = tiny(name)
    wanted, right = step(trainer_for(model, tmp_path, **OWN), ROWS)
    use_bfloat16(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        loss, found = step(trainer_for(model, tmp_path, bf16=True, **OWN), ROWS)
    whole, _ = step(trainer_for(tiny(name).to(torch.bfloat16), tmp_path, **OWN), ROWS)
    assert loss != wanted
    assert (loss, whole) == pytest.approx((wanted, wanted), rel=3e-2)
    flat = [
        torch.cat([slopes[name].flatten() for name in sorted(right)]) for slopes in (found, right)
    ]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99
    assert bool(caplog.records) == (name not in SHARING)  # what candidates share was computed once


class NoPositions(torch.nn.Module):
    """A causal model whose forward knows no position_ids, and which takes words for positions."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config, self.generation_config, self.dtype = (
            inner,
            inner.config,
            inner.generation_config,
            inner.dtype,
        )
        self.generate, self.get_input_embeddings = inner.generate, inner.get_input_embeddings

    def forward(self, input_ids, attention_mask=None, use_cache=None, labels=None):
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache, labels=labels
        )


class Leaking(NoPositions):
    """Lets candidates see each other: those of every row, or of one."""

    row = None

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, use_cache=None, labels=None
    ):
        if attention_mask is not None and attention_mask.dim() == 4:
            if self.row is None:
                attention_mask = None
            else:
                attention_mask = attention_mask.clone()
                attention_mask[self.row] = attention_mask[self.row].triu(1)
        return self.inner(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            labels=labels,
        )


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (NoPositions, "NoPositions cannot read them together"),
        (Leaking, "Leaking reads them differently together"),
    ],
)
def test_a_model_that_cannot_share_reads_candidates_one_by_one(wrapper, reason, tmp_path, caplog):
    inner = tiny("llama")
    # of one length: without positions there is no padding on the left
    rows = [row | {"input_ids": [9, 8]} for row in ROWS]
    wanted, right = step(trainer_for(inner, tmp_path, objective="sqdml", **OWN), rows)
    model = wrapper(inner)
    trainer = trainer_for(model, tmp_path, objective="sqdml", **OWN)
    with caplog.at_level(logging.WARNING, "softq"):
        loss, _ = step(trainer, rows)
        step(trainer, rows)
    assert len(caplog.records) == 1
    assert f"candidates are scored one by one, since {reason}" in caplog.text
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert_same_gradients(gradients(inner), right, 1e-5)


def test_all_of_the_first_batch_is_tried():
    inner = tiny("llama")
    scored = scored_of([[[8, 9, END], [10, 11, END], [12, 13, END]]] * 3)
    given = given_to("llama", [[8], [9], [10]])
    assert can_share(causal_log_probs, inner, given, scored, 1e-3)
    leaking = Leaking(inner)
    leaking.row = 2
    assert not can_share(causal_log_probs, leaking, given, scored, 1e-3)


def hide_the_decoder(model):
    model.get_decoder = lambda: torch.nn.Identity()  # so that nothing is repeated


def call_the_decoder_without_names(model):
    def without_names(_module, args, kwargs):
        return (
            tuple(
                kwargs.pop(name, None)
                for name in ("input_ids", "attention_mask", "encoder_hidden_states")
            ),
            kwargs,
        )

    model.get_decoder().register_forward_pre_hook(without_names, with_kwargs=True)


@pytest.mark.parametrize("change", [hide_the_decoder, call_the_decoder_without_names])
def test_a_decoder_that_does_not_take_its_source_by_name_is_given_repeated_ones(
    change, tmp_path, caplog
):
    model = tiny("bart")
    wanted, right = step(trainer_for(model, tmp_path, **OWN), ROWS)
    trainer = trainer_for(model, tmp_path, **OWN)
    change(model)
    with caplog.at_level(logging.WARNING, "softq"):
        loss, found = step(trainer, ROWS)
    assert "candidates are scored one by one" in caplog.text
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert_same_gradients(found, right, 1e-5)
