"""From rows of text to rows of token numbers, and from these to batches."""

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, processors

from softq.errors import DataError, ModelError
from softq.integrations.transformers import RowEncoder
from softq.integrations.transformers.rows import as_row
from softq.integrations.transformers.tokens import special_tokens
from tiny_models import END, PAD, START, UNKNOWN, WORDS, tiny, tokenizer, trainer_for

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rows_of_text():
    causal = RowEncoder(tokenizer(end=False), causal=True, max_source=3, max_target=4)
    row = {
        "source": "ba be bi bo da",
        "references": "de di do fa fe",
        "candidates": ["de", "di do"],
        "candidate_rewards": [0.5, 0.25],
    }
    made = causal(row)
    assert made == {
        "input_ids": [6, 7, 8],
        "labels": [[9, 10, 11, END]],
        "candidates": [[9, END], [10, 11, END]],
        "candidate_rewards": [0.5, 0.25],
    }
    assert RowEncoder(tokenizer(), causal=True)({"source": "ba", "references": ["be", "bi"]}) == {
        "input_ids": [4],
        "labels": [[5, END], [6, END]],
    }
    both = RowEncoder(tokenizer(), causal=False, max_source=3, max_target=3)(row)
    assert (both["input_ids"], both["labels"], both["candidates"]) == (
        [4, 5, END],
        [[9, 10, END]],
        [[9, END], [10, 11, END]],
    )
    for missing in ("source", "references"):
        with pytest.raises(DataError, match=f"a row needs '{missing}', got "):
            causal(row | {missing: ""})


def started(words):
    """A tokenizer that puts a start mark before every text, as those of Llama do."""
    made = tokenizer(end=False)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", START)]
    )
    assert made(words[0])["input_ids"] == [START, 4]
    return made


@pytest.mark.parametrize("most", [1, 3, 6, 7])
def test_a_long_prompt_keeps_its_marks_and_its_end(most):
    """What a prompt ends with says what is to be done."""
    encode = RowEncoder(started(WORDS), causal=True, max_source=most)
    whole = [START, *range(4, 10)]
    assert encode.sources([" ".join(WORDS[:6])]) == [
        whole if most == 7 else [START, *whole[len(whole) - most + 1 :]]
    ]


def test_what_was_cut_is_told(caplog):
    rows = [
        {"source": " ".join(WORDS[:length]), "references": [WORDS[5], " ".join(WORDS[:length])]}
        for length in (2, 3, 4)
    ]
    for causal in (True, False):
        encode = RowEncoder(tokenizer(end=not causal), causal=causal, max_source=3, max_target=3)
        with caplog.at_level(logging.WARNING, "softq"):
            encode.all(rows[:1])
            assert not caplog.records
            encode.all(rows)
        sources = 1 if causal else 2  # an encoder's have an end mark
        assert caplog.messages == [
            f"cut off: {sources} of 3 sources, which are longer than 3 tokens, and 2 of 6"
            " references and candidates, longer than 3"
        ]
        caplog.clear()


def test_a_causal_model_needs_an_end():
    words = tokenizer()
    words.eos_token = None
    with pytest.raises(ModelError, match="the tokenizer has no eos_token, and a text must end:"):
        RowEncoder(words, causal=True)
    assert RowEncoder(words, causal=False).sources(["ba"]) == [[4, END]]


def test_chats(monkeypatch):
    words = tokenizer(end=False)
    words.chat_template = (
        "{% for m in messages %}<s> {{ m.content }} </s> {% endfor %}{% if add_generation_prompt"
        " %}<s>{% endif %}"
    )
    chat = [{"role": "system", "content": "ba"}, {"role": "user", "content": "be bi"}]
    numbers = [START, 4, END, START, 5, 6, END, START]
    rows = [{"source": chat, "references": "bo"}, {"source": "da", "references": "bo"}]
    encode = RowEncoder(words, causal=True)
    assert [row["input_ids"] for row in encode.all(rows)] == [numbers, [8]]
    assert RowEncoder(words, causal=True, max_source=4)(rows[0])["input_ids"] == [
        START,
        6,
        END,
        START,
    ]
    plain = type(words).apply_chat_template  # older versions return a list
    monkeypatch.setattr(
        type(words),
        "apply_chat_template",
        lambda *given, **how: plain(*given, **how, return_dict=False),
    )
    assert encode.sources([chat]) == [numbers]
    with pytest.raises(DataError, match="a list of chat messages is for causal models: give"):
        RowEncoder(words, causal=False)(rows[0])


def test_what_a_row_may_be():
    assert as_row({"labels": torch.tensor([5, 6, -100])}).references == [[5, 6]]
    assert as_row({"labels": np.array([[5, 6], [7, 8]])}).references == [[5, 6], [7, 8]]
    full = as_row(
        {
            "labels": [[5], [8]],
            "candidates": np.array([[6], [7]]),
            "candidate_rewards": torch.tensor([[0.5, 1.0], [2.0, 3.0]]),
        }
    )
    assert (full.candidates, full.rewards) == ([[6], [7]], [[0.5, 1.0], [2.0, 3.0]])
    for row, message in [
        (
            {"labels": []},
            r"'labels' of a row must be the token ids of a reference or a list .* \[\];",
        ),
        ({"labels": [[]]}, r"'labels' of a row must be a list of one or more token ids, got \[\];"),
        ({"labels": ["de"]}, "'labels' of a row must be a list of one or more token ids"),
        ({"labels": [-100, -100]}, "'labels' of a row holds nothing but -100"),
        ({"labels": [5], "candidates": ["de"]}, "'candidates' of a row must be a list of one or"),
        (
            {"labels": [5], "candidates": [[5]], "candidate_rewards": [1.0, 2.0]},
            r"must have a value for each of 1 candidates, got \[1.0, 2.0\]",
        ),
        (
            {"labels": [5], "candidates": [[5]], "candidate_rewards": [math.nan]},
            "candidate_rewards must be finite numbers",
        ),
        (
            {"labels": [5], "candidates": [[5]], "candidate_rewards": ["good"]},
            r"candidate_rewards must be finite numbers, got \['good'\]",
        ),
        (
            {"labels": [5], "candidates": [[5]], "candidate_rewards": [None]},
            r"candidate_rewards must be finite numbers, got \[None\]",
        ),
        ({"labels": [5], "candidates": [[5]], "candidate_rewards": 0.5}, "must have a value for"),
    ]:
        with pytest.raises(DataError, match=message):
            as_row(row)


def test_batches(tmp_path):
    rows = [
        {"input_ids": [5, 6, 7], "labels": [8, END]},
        {"input_ids": [9], "labels": [[10, 11, END], [12, END]]},
    ]
    batch = trainer_for(tiny("gpt2"), tmp_path).data_collator(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, END], [9, 10, 11, END, PAD]]
    assert batch["labels"].tolist() == [[-100, -100, -100, 8, END], [-100, 10, 11, END, -100]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 1, 0]]
    assert batch["softq_prompts"]["input_ids"].tolist() == [[5, 6, 7], [PAD, PAD, 9]]
    assert batch["softq_prompts"]["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    batch = trainer_for(tiny("t5"), tmp_path).data_collator(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [9, PAD, PAD]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[8, END, -100], [10, 11, END]]
    with pytest.raises(DataError, match="'input_ids' of a row must be a list of one or more token"):
        trainer_for(tiny("t5"), tmp_path).data_collator([{"labels": [5]}])


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_padding_of_a_row_is_not_read(name, tmp_path):
    collate = trainer_for(tiny(name), tmp_path).data_collator
    plain = [{"input_ids": [5, 6, 7], "labels": [8, END]}, {"input_ids": [9], "labels": [10, END]}]
    padded = [
        {
            "input_ids": torch.tensor([PAD, 5, 6, 7]),
            "attention_mask": torch.tensor([0, 1, 1, 1]),
            "labels": [8, END],
        },
        {"input_ids": (9, PAD, PAD), "attention_mask": [1, 0, 0], "labels": ([10, END],)},
    ]
    found, right = collate(padded), collate(plain)
    assert all(
        torch.equal(found[key], right[key]) for key in ("input_ids", "attention_mask", "labels")
    )
    assert found["softq_rows"] == right["softq_rows"]
    for mask, message in (
        ([1], r"must have a number for each of its 2 input_ids, got \[1\]"),
        ([0, 0], "hides all of its input_ids"),
    ):
        with pytest.raises(DataError, match=message):
            collate([{"input_ids": [5, 6], "attention_mask": mask, "labels": [8]}])


def test_an_answer_in_the_prompt_is_refused(tmp_path):
    collate = trainer_for(tiny("gpt2"), tmp_path).data_collator
    with pytest.raises(DataError, match="must be the prompt alone and 'labels' the completion,"):
        collate([{"input_ids": [5, 6, 7, END], "labels": [-100, -100, 7, END]}])
    assert collate([{"input_ids": [5, 6, 7], "labels": [5, 6, END]}])["labels"].tolist() == [
        [-100] * 3 + [5, 6, END]
    ]


def test_texts_of_a_row_are_checked():
    encode = RowEncoder(tokenizer(), causal=False)
    row = {"source": "ba", "references": ["be"]}
    right = encode(row | {"candidates": ["bi", "bo"], "candidate_rewards": [0.5, 1.0]})
    arrays = {
        "references": np.array(["be"]),
        "candidates": np.array(["bi", "bo"]),
        "candidate_rewards": np.array([0.5, 1.0]),
    }
    assert encode(row | arrays) == right
    for change, message in [
        ({"candidates": "the dog"}, "'candidates' of a row must be a list of texts, got 'the dog'"),
        ({"candidates": [5]}, r"'candidates' of a row must be a list of texts, got \[5\]"),
        ({"references": 3}, "'references' of a row must be a list of texts, got 3"),
        ({"references": [None]}, "'references' of a row must be a list of texts"),
        ({"references": ["be", " "]}, "a reference is empty, which leaves nothing to generate:"),
    ]:
        with pytest.raises(DataError, match=message):
            encode(row | change)
    with pytest.raises(DataError, match="expected a list of rows, got columns"):
        encode.all({"source": ["ba"], "references": ["be"]})
    with pytest.raises(DataError, match="a row must be a mapping"):
        encode.all(["ba"])


@pytest.mark.parametrize(
    ("causal", "limits", "least"),
    [(True, {"max_target": 1}, 2), (False, {"max_source": 0}, 1), (True, {"max_source": 0.5}, 1)],
)
def test_limits_are_checked(causal, limits, least):
    with pytest.raises(DataError, match=f"must be a whole number from {least}"):
        RowEncoder(tokenizer(), causal=causal, **limits)


def test_special_numbers():
    model = tiny("bart")
    model.generation_config.eos_token_id = [END, 7]
    assert special_tokens(None, model).ids == {PAD, END, START, 7}
    found = special_tokens(tokenizer(), model)
    assert found.ids == {PAD, END, START, 7}
    assert found.unwritable == {PAD, END, START, 7, UNKNOWN}
    assert (found.ends, found.pad) == ({END, 7}, PAD)
    words = tokenizer()
    words.add_tokens([AddedToken("<sep>", special=True), AddedToken("plain", special=False)])
    added = words.convert_tokens_to_ids("<sep>")
    assert special_tokens(words, model).ids == {PAD, END, START, 7, added}
    words.unk_token = "</s>"  # noqa: S105  # as GPT-2 has it
    bare = SimpleNamespace(config=None, generation_config=None)
    assert special_tokens(words, bare).ids >= {PAD, END, START}
