"""Taggers of words on encoders of Transformers: subwords, labels, losses, training and predictions."""

import copy
import itertools
import json
import math
import sys

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import softq
from softq.errors import (
    DataError,
    DependencyError,
    IntractableError,
    ModelError,
    OutputError,
    RecipeError,
    TemperatureError,
)
from softq.formats.tags import faults
from softq.integrations.transformers import (
    TokenClassificationModel,
    TokenClassificationTrainer,
    WordTagger,
)
from softq.integrations.transformers.token_classification import TokenClassificationCollator
from softq.integrations.transformers.token_classification.labels import LabelReader
from softq.integrations.transformers.words.rows import TARGETS
from softq.integrations.transformers.words.subwords import (
    NOWHERE,
    WordTokenizer,
    with_prefix_space,
)
from softq.linear.tagging import entity_reward
from softq.metrics import SpanScores, span_statistics
from tiny_models import assert_same_gradients, use_bfloat16
from tiny_taggers import (
    ENCODERS,
    LABELS,
    SENTENCES,
    ZERO_WIDTH,
    arguments,
    encoder,
    loss_and_gradients,
    tagger,
    tokenizer,
    trainer_for,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # DeBERTa's module, where it is imported
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

CROWD = [
    {"tokens": row["tokens"], "annotations": [row["ner_tags"], None, [0] * len(row["tokens"])]}
    for row in SENTENCES
]


# --- subwords ---------------------------------------------------------------------------------------


def test_words_are_read_where_their_subwords_are():
    words = ["Ann", ZERO_WIDTH, "internationalisation", "", "met"]
    (found,) = WordTokenizer(tokenizer())([words])
    pieces = tokenizer().convert_ids_to_tokens(found.windows[0])
    assert pieces[0] == "[CLS]"
    assert pieces[-1] == "[SEP]"
    spelled = [
        "".join(pieces[first:end]).replace("##", "") if window == 0 else None
        for window, first, end in found.words
    ]
    assert spelled == ["Ann", None, "internationalisation", None, "met"]
    assert found.words[1] == found.words[3] == NOWHERE


def test_long_sentences_are_read_in_windows_and_no_word_is_lost():
    words = ["Ann", "Lee", ZERO_WIDTH, "met", "Bob", "internationalisation"] * 8
    whole = WordTokenizer(tokenizer())([words])[0]
    cut = WordTokenizer(tokenizer(), max_length=20, stride=8)([words, [], words[:2]])
    assert [len(one.windows) for one in cut] == [len(cut[0].windows), 1, 1]
    assert len(cut[0].windows) > 3
    assert max(map(len, cut[0].windows)) <= 20
    assert cut[1].words == []
    for (window, first, end), (_, start, stop) in zip(cut[0].words, whole.words, strict=True):
        if window >= 0:  # the same subwords
            assert cut[0].windows[window][first:end] == whole.windows[0][start:stop]
    assert [place == NOWHERE for place in cut[0].words] == [word == ZERO_WIDTH for word in words]


def test_a_word_is_read_where_it_has_most_context():
    words = ["Ann"] * 12  # one subword each; six in a window, of which two are shared
    (found,) = WordTokenizer(tokenizer(), max_length=8, stride=2)([words])
    assert [window for window, _, _ in found.words] == [0] * 5 + [1] * 4 + [2] * 3
    assert [first for _, first, _ in found.words] == [1, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4]


def test_byte_level_tokenizers_get_a_space_in_front_of_words():
    plain = tokenizer("roberta")
    spaced = with_prefix_space(plain)
    assert spaced is not plain
    assert with_prefix_space(spaced) is spaced
    assert with_prefix_space(tokenizer("bert")) is tokenizer("bert")
    text = "met Bob in Paris"
    (found,) = WordTokenizer(plain)([["He", *text.split()]])
    assert plain.decode(found.windows[0], skip_special_tokens=True) == f" He {text}"
    inside = plain(f"He {text}", add_special_tokens=False)["input_ids"]
    assert found.windows[0][-1 - 5 : -1] == inside[-5:]  # as in running text
    sequence = copy.deepcopy(plain)
    sequence.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(), tokenizers.pre_tokenizers.ByteLevel(False)]
    )
    assert WordTokenizer(sequence)([["He", *text.split()]]) == [found]


def test_tokenizers_that_will_not_do():
    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match="expected a fast tokenizer"):
        WordTokenizer(Slow())
    with pytest.raises(DataError, match="stride must be less than the 6 subwords"):
        WordTokenizer(tokenizer(), max_length=8, stride=6)
    with pytest.raises(DataError, match="max_length less the special tokens"):
        WordTokenizer(tokenizer(), max_length=2)
    unpadded = copy.deepcopy(tokenizer())
    unpadded.pad_token = None
    with pytest.raises(ModelError, match="no padding token"):
        TokenClassificationCollator(unpadded, LABELS)


# --- labels ------------------------------------------------------------------------------------------


def test_labels_are_read_by_id_and_by_name():
    read = LabelReader(LABELS)
    assert read({"ner_tags": [0, "B-PER", np.int64(2)]}, 3).references == [[0, 1, 2]]
    assert read({"ner_tags": torch.tensor([0, -100])}, 2).references == [[0, -100]]
    assert read({"ner_tags": [None, "?", 1]}, 3).references == [[-100, -100, 1]]
    assert read({"ner_tags": ["O|B-PER", {"O", 3}, None]}, 3).allowed == [
        [0, 1],
        [0, 3],
        [*range(5)],
    ]
    soft = read({"ner_tags": ["O=0.25|B-PER=0.75", [0.0, 0.5, 0.0, 0.5, 0.0], None, 2]}, 4)
    assert soft.probabilities == [
        [0.25, 0.75, 0, 0, 0],
        [0, 0.5, 0, 0.5, 0],
        [0] * 5,
        [0, 0, 1, 0, 0],
    ]
    assert read({"tokens": ["a"]}, 1) is None
    assert read({"ner_tags": []}, 0).references == [[]]


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({"ner_tags": [0]}, DataError, "a label for each of the 2 words, got 1"),
        ({"ner_tags": [0, 5]}, OutputError, r"an id in 0\.\.4, got 5"),
        ({"ner_tags": [0, "B-ORG"]}, OutputError, "expected one of the labels O, .*'B-ORG'"),
        ({"ner_tags": [0, True]}, DataError, "expected a label as an id or a name"),
        ({"ner_tags": [0, []]}, DataError, "one label or more of which one is right"),
        ({"ner_tags": [0, [0.5, 0.5]]}, DataError, "probabilities of 5 labels, got 2"),
        ({"ner_tags": [0, {"O": 0.4}]}, DataError, "must sum to 1, got 0.4"),
        ({"ner_tags": [0, {"O": 1.4}]}, DataError, "probability from 0 to 1, got 1.4"),
        ({"ner_tags": [["O", 1], {"O": 1.0}]}, DataError, "write the lists as probabilities"),
        ({"ner_tags": [0, 0], "annotations": []}, DataError, "got both"),
        ({"annotations": "O"}, DataError, "must be a list of label sequences"),
        ({"annotations": [None]}, DataError, "labels of one annotator or more"),
        ({"annotations": [[0, 0]], "weights": [-1]}, DataError, "'weights' must have a number"),
        ({"annotations": [[0, [0, 1]]]}, DataError, "labels of annotators are certain"),
    ],
)
def test_labels_that_cannot_be_read(row, kind, message):
    with pytest.raises(kind, match=message):
        LabelReader(LABELS)(row, 2)


def test_what_a_batch_holds():
    collator = TokenClassificationCollator(tokenizer(), LABELS)
    rows = [
        {"tokens": ["Ann", "ran", "."], "annotations": [[1, 0, None], [1, 3, None], [0, 3, None]]},
        {"tokens": ["Lee"], "ner_tags": [{"O": 0.25, "B-PER": 0.75}]},
        {"tokens": ["Lee", "met"], "ner_tags": [["O", 1], None]},
        {"tokens": [], "ner_tags": []},
    ]
    batch = collator(rows)
    assert next(iter(batch)) == "lengths"  # by which Trainer counts rows
    assert batch["lengths"].tolist() == [3, 1, 2, 0]
    assert batch["labels"].tolist() == [
        [1, 3, -100],
        [1, -100, -100],
        [0, -100, -100],
        [-100, -100, -100],
    ]
    gold = batch[TARGETS]["gold"]
    assert gold.tolist() == [[1, 3, -100], [1, -100, -100], [-100] * 3, [-100] * 3]
    assert set(collator([{"tokens": ["Ann"]}])) == {
        "lengths",
        "words",
        "input_ids",
        "attention_mask",
    }
    with pytest.raises(DataError, match="labels in all rows of a batch or in none, got 1 of 2"):
        collator([{"tokens": ["Ann"]}, {"tokens": ["Ann"], "ner_tags": [1]}])
    with pytest.raises(DataError, match="a row needs 'tokens'"):
        collator([{"words": ["Ann"]}])
    with pytest.raises(DataError, match="'tokens' of a row must be a list of words, got 'Ann'"):
        collator([{"tokens": "Ann"}])
    with pytest.raises(DataError, match="expected one row or more"):
        collator([])


def tokenised(row, **more):
    """A row as people's own code makes it: labels of first subwords, -100 on all others."""
    found = tokenizer()(row["tokens"], is_split_into_words=True, **more)
    words = found.word_ids()
    tags = [LABELS.index(tag) if isinstance(tag, str) else tag for tag in row["ner_tags"]]
    labels = [
        -100 if word is None or word in words[:place] else tags[word]
        for place, word in enumerate(words)
    ]
    made = {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}
    return {**made, "labels": labels}, words


def test_rows_that_were_tokenised_before_give_the_same_loss(tmp_path):
    trainer = trainer_for(tagger(), tmp_path)
    expected = loss_and_gradients(trainer, SENTENCES)
    rows = [tokenised(row)[0] for row in SENTENCES]
    loss, gradients = loss_and_gradients(trainer, rows)
    assert loss == pytest.approx(expected[0], abs=1e-6)
    assert_same_gradients(gradients, expected[1], 1e-5)
    padded = [tokenised(row, padding="max_length", max_length=24)[0] for row in SENTENCES]
    assert loss_and_gradients(trainer, padded)[0] == pytest.approx(expected[0], abs=1e-6)


def test_rows_that_were_tokenised_before_need_word_ids_for_other_poolings(tmp_path):
    trainer = trainer_for(tagger(pooling="mean"), tmp_path)
    rows, words = zip(*map(tokenised, SENTENCES), strict=True)
    with pytest.raises(DataError, match="does not say where its words begin: give 'tokens'"):
        trainer.data_collator(rows)
    known = [{**row, "word_ids": ids} for row, ids in zip(rows, words, strict=True)]
    loss = loss_and_gradients(trainer, known)[0]
    assert loss == pytest.approx(loss_and_gradients(trainer, SENTENCES)[0], abs=1e-6)
    # with word_ids a word may have no label
    known[2]["labels"] = [-100] * len(known[2]["labels"])
    assert trainer.data_collator(known)["lengths"].tolist() == [7, 3, 2, 1]
    unlabelled = [{name: row[name] for name in ("input_ids", "word_ids")} for row in known]
    assert "labels" not in trainer.data_collator(unlabelled)
    with pytest.raises(DataError, match="'labels' must have an entry for each of 9 input_ids"):
        trainer.data_collator([{**known[0], "labels": [0]}])
    with pytest.raises(DataError, match="a row has 40 input_ids, and the model reads 32"):
        trainer.data_collator([{"input_ids": [5] * 40, "labels": [0] * 40, "word_ids": [0] * 40}])


# --- losses ------------------------------------------------------------------------------------------


def word_scores(model, words, pooling, kind):
    """Scores of the labels of one sentence, by hand: the encoder on it alone."""
    found = with_prefix_space(tokenizer(kind))(
        words, is_split_into_words=True, return_tensors="pt", return_token_type_ids=False
    )
    hidden = model.encoder(**found).last_hidden_state[0]
    rows = []
    for number in range(len(words)):
        places = [p for p, word in enumerate(found.word_ids()) if word == number]
        vectors = hidden[places]
        if not places:
            rows.append(torch.zeros(hidden.shape[1]))
        else:
            rows.append(
                {"first": vectors[0], "mean": vectors.mean(0), "last": vectors[-1]}[pooling]
            )
    return model.classifier(torch.stack(rows))


def sequence_scores(model, scores):
    """Of every label sequence, by enumeration."""
    sequences = list(itertools.product(range(len(LABELS)), repeat=len(scores)))
    totals = []
    for labels in sequences:
        total = sum(scores[place, label] for place, label in enumerate(labels))
        if model.crf is not None:
            total = total + model.crf.start_transitions[labels[0]]
            total = total + model.crf.end_transitions[labels[-1]]
            for before, after in itertools.pairwise(labels):
                total = total + model.crf.transitions[before, after]
        totals.append(total)
    return sequences, torch.stack(totals)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize(
    ("head", "pooling"), [("chain", "first"), ("independent", "mean"), ("chain", "last")]
)
def test_gradients_are_those_of_single_sentences(kind, head, pooling, tmp_path):
    model = tagger(kind, head=head, pooling=pooling)
    rows = [
        {"tokens": ["Ann", ZERO_WIDTH, "internationalisation"], "ner_tags": [1, 0, 3]},
        {"tokens": ["Bob"], "ner_tags": [1]},
        {"tokens": ["Lee", "met", "Ann", "in"], "ner_tags": [1, 0, 1, 0]},
    ]
    trainer = trainer_for(model, tmp_path, kind=kind)
    loss, gradients = loss_and_gradients(trainer, rows)
    model.zero_grad()
    total = 0.0
    for row in rows:
        sequences, scores = sequence_scores(model, word_scores(model, row["tokens"], pooling, kind))
        total = total - scores.log_softmax(0)[sequences.index(tuple(row["ner_tags"]))]
    (total / 8).backward()
    assert loss == pytest.approx(float(total.detach()) / 8, abs=1e-5)
    by_hand = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_same_gradients(gradients, by_hand, 1e-5)


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_targets_are_those_of_enumeration(objective, tmp_path):
    model, tau = tagger(), 0.7
    annotations, weights = [[1, 0, 3], [1, 2, 0], [0, 0, 0]], [1.0, 2.0, 0.0]
    row = {"tokens": ["Ann", "met", "Lee"], "annotations": annotations, "weights": weights}
    trainer = trainer_for(model, tmp_path, objective=objective, tau=tau, entity_weight=2.0)
    sequences, scores = sequence_scores(model, word_scores(model, row["tokens"], "first", "bert"))
    scores = scores.detach()
    table = entity_reward(LABELS, 2.0).table
    rewards = torch.tensor(
        [
            [sum(float(table[a, b]) for a, b in zip(y, gold, strict=True)) for y in sequences]
            for gold in annotations
        ]
    )
    mix = torch.tensor(weights) / sum(weights)
    if objective == "raml":
        target = mix @ (rewards / tau).softmax(1)
    else:
        target = (mix @ rewards / tau).softmax(0)
    expected = -(target * scores.log_softmax(0)).sum() / 3
    assert loss_and_gradients(trainer, [row])[0] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("head", ["chain", "independent"])
def test_labels_that_are_allowed_soft_or_missing_by_enumeration(head, tmp_path):
    model = tagger(head=head)
    trainer = trainer_for(model, tmp_path)
    words = ["Ann", "met", "Lee"]
    sequences, scores = sequence_scores(model, word_scores(model, words, "first", "bert"))
    law = scores.detach().softmax(0)
    for tags, count in (([["B-PER", 3], None, 0], 2), ([1, None, 0], 2)):
        right = [[tags[0]] if tags[0] == 1 else [1, 3], [*range(5)], [0]]
        mass = sum(
            law[place]
            for place, y in enumerate(sequences)
            if all(label in some for label, some in zip(y, right, strict=True))
        )
        found = loss_and_gradients(trainer, [{"tokens": words, "ner_tags": tags}])[0]
        assert found == pytest.approx(-math.log(float(mass)) / count, abs=1e-5)
    soft = [[0.5, 0.5, 0, 0, 0], [1.0, 0, 0, 0, 0], [0, 0, 0, 0.25, 0.75]]
    shares = torch.tensor([math.prod(soft[t][y] for t, y in enumerate(one)) for one in sequences])
    found = loss_and_gradients(trainer, [{"tokens": words, "ner_tags": soft}])[0]
    assert found == pytest.approx(-float((shares * law.log()).sum()) / 3, abs=1e-5)
    half = [{"tokens": words, "ner_tags": [soft[0], None, 0]}]
    if head == "chain":
        with pytest.raises(IntractableError, match="use sqdml, where the model decides"):
            loss_and_gradients(trainer, half)
    else:
        assert math.isfinite(loss_and_gradients(trainer, half)[0])


def test_words_that_one_annotator_left_out_are_as_for_the_others(tmp_path):
    words = ["Ann", "met", "Lee"]
    part = {"tokens": words, "annotations": [[1, 0, None], [3, None, 1], [1, None, None]]}
    for objective, whole in (
        ("ml", [[1, 0, 1], [3, 0, 1], [1, 0, 1]]),
        ("sqdml", [[1, 0, 1], [3, 0, 1], [1, 0, 1]]),
    ):
        settings = {"objective": objective, "tau": None if objective == "ml" else 0.5}
        trainer = trainer_for(tagger(), tmp_path, **settings)
        filled = loss_and_gradients(trainer, [{"tokens": words, "annotations": whole}])[0]
        assert loss_and_gradients(trainer, [part])[0] == pytest.approx(filled, abs=1e-6)


def test_the_model_decides_words_that_nobody_labelled(tmp_path):
    trainer = trainer_for(tagger(), tmp_path, objective="raml", tau=0.5)
    rows = [{"tokens": ["Ann", "met", "Lee"], "ner_tags": [1, None, 0]}, SENTENCES[3]]
    loss = loss_and_gradients(trainer, rows)[0]
    batch = trainer.data_collator(rows)
    with torch.no_grad():
        output = trainer.model(**{k: v for k, v in batch.items() if k not in ("labels", TARGETS)})
    expected = 0.0
    for row, refs, prior in ((0, [1, -100, 0], True), (1, [1], False)):
        count = len(refs)
        p = trainer.model.distribution(
            output.logits[row : row + 1, :count], output.lengths[row : row + 1]
        )
        target = softq.raml(p, torch.tensor([refs]), 0.5, prior=p if prior else None)
        expected += float(softq.cross_entropy(target, p).detach())
    assert loss == pytest.approx(expected / 3, abs=1e-6)


@pytest.mark.parametrize("constraints", ["none", "decode", "target", "model"])
@pytest.mark.parametrize("head", ["chain", "independent"])
def test_constraints(constraints, head, tmp_path):
    model = tagger(head=head, constraints=constraints)
    trainer = trainer_for(model, tmp_path, objective="raml", tau=2.0)
    row = {"tokens": ["Ann", "met", "Lee"], "ner_tags": [1, 0, 3]}
    base = tagger(head=head)
    sequences, scores = sequence_scores(base, word_scores(base, row["tokens"], "first", "bert"))
    scores = scores.detach()
    sound = torch.tensor([not faults([LABELS[k] for k in y], "bio") for y in sequences])
    reward = torch.tensor(
        [sum(a == b for a, b in zip(y, row["ner_tags"], strict=True)) / 2.0 for y in sequences]
    )
    if constraints in ("target", "model"):
        reward = reward.masked_fill(~sound, -math.inf)
    fitted = scores.masked_fill(~sound, -math.inf) if constraints == "model" else scores
    terms = reward.softmax(0) * fitted.log_softmax(0)
    expected = -terms[reward > -math.inf].sum() / 3
    assert loss_and_gradients(trainer, [row])[0] == pytest.approx(float(expected), abs=1e-5)
    allowed = scores if constraints == "none" else scores.masked_fill(~sound, -math.inf)
    tagged = WordTagger(model, tokenizer()).predict([row["tokens"]])[0]
    assert tuple(map(LABELS.index, tagged.labels)) == sequences[int(allowed.argmax())]


def test_labels_that_break_the_scheme_cannot_be_fitted_where_it_is_part_of_the_model(tmp_path):
    trainer = trainer_for(tagger(constraints="model"), tmp_path)
    with pytest.raises(OutputError, match=r"sentence 1 of the batch .* break the tag scheme bio"):
        loss_and_gradients(trainer, [SENTENCES[2], {"tokens": ["Ann"], "ner_tags": [2]}])
    trainer = trainer_for(tagger(), tmp_path, objective="raml", tau=0.5)
    with pytest.raises(IntractableError, match="go with objective 'ml', got 'raml'"):
        loss_and_gradients(trainer, [{"tokens": ["Ann"], "ner_tags": [[0, 1]]}])


@pytest.mark.parametrize("kind", ENCODERS)
def test_padding_and_windows_change_nothing_else(kind, tmp_path):
    long = {"tokens": ["Ann", "met", "Lee", "."] * 9, "ner_tags": [1, 0, 1, 0] * 9}
    rows = [
        *SENTENCES,
        long,
        {"tokens": [], "ner_tags": []},
        {"tokens": ["", "Bob"], "ner_tags": [0, 1]},
    ]
    model = tagger(kind)
    collator = trainer_for(model, tmp_path, kind=kind).data_collator
    trainer = trainer_for(model, tmp_path, kind=kind, objective="sqdml", tau=0.5)

    def losses(some):
        batch = collator(some)
        criterion = trainer.criterion(batch[TARGETS], model)
        inputs = {name: batch[name] for name in batch if name not in ("labels", TARGETS)}
        with torch.no_grad():
            return model.eval()(**inputs, criterion=criterion).loss

    together = losses(rows)
    alone = torch.cat([losses([row]) for row in rows])
    assert together[-2] == 0
    assert together[4] > 1
    assert together.tolist() == pytest.approx(alone.tolist(), abs=2e-5)
    batch = collator(rows)
    assert len(batch["input_ids"]) > len(rows)
    assert losses([{"tokens": [], "ner_tags": []}]).tolist() == [0]


# --- training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_tagger_learns_is_saved_and_predicts_the_same(kind, tmp_path):
    model = tagger(kind, constraints="decode")
    trainer = trainer_for(model, tmp_path, kind=kind, evaluate=SENTENCES, num_train_epochs=20)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_f1"] > before["eval_f1"]
    assert after["eval_token_accuracy"] > 0.9
    trainer.save_model(str(tmp_path / "saved"))
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    ours = WordTagger(model, trainer.processing_class).predict([row["tokens"] for row in SENTENCES])
    loaded = WordTagger.from_pretrained(tmp_path / "saved", batch_size=3)
    assert loaded.core.config.constraints == "decode"
    assert loaded.core.config.labels == LABELS
    assert loaded.predict([row["tokens"] for row in SENTENCES]) == ours
    assert (
        json.loads((tmp_path / "saved" / "config.json").read_text())["encoder"]["model_type"]
        == kind
    )


def test_evaluation_is_that_of_conlleval(tmp_path):
    rows = [*SENTENCES, {"tokens": ["Ann", "met", "Bob"], "ner_tags": ["B-PER", None, ["O", 1]]}]
    model = tagger()
    trainer = trainer_for(model, tmp_path, evaluate=rows)
    scores = trainer.evaluate()
    found = [
        one.labels for one in WordTagger(model, tokenizer()).predict([r["tokens"] for r in rows])
    ]
    gold = [[LABELS[k] if isinstance(k, int) else k for k in row["ner_tags"]] for row in SENTENCES]
    expected = SpanScores.of(
        span_statistics([*gold, ["B-PER"]], [*found[:-1], found[-1][:1]], "bio")
    )
    for name in ("precision", "recall", "f1", "token_accuracy", "exact_match"):
        assert scores[f"eval_{name}"] == pytest.approx(getattr(expected, name))
    output = trainer.predict([{"tokens": row["tokens"]} for row in rows])
    assert output.label_ids is None
    width = output.predictions.shape[1]
    assert output.predictions.tolist() == [
        [LABELS.index(label) for label in labels] + [-100] * (width - len(labels))
        for labels in found
    ]
    assert trainer.predict(rows).metrics["test_f1"] == pytest.approx(expected.f1)


def test_rows_may_be_read_in_workers_and_only_the_loss_be_wanted(tmp_path):
    rows = [tokenised(row)[0] for row in SENTENCES]
    crowd = [
        {**row, "word_ids": tokenised(one)[1]} for row, one in zip(rows, SENTENCES, strict=True)
    ]
    runs = [
        trainer_for(
            tagger(),
            tmp_path,
            crowd,
            evaluate=rows,
            annotators="dawid-skene",
            max_steps=2,
            dataloader_num_workers=workers,
            prediction_loss_only=True,
        )
        for workers in (0, 1)
    ]
    losses = [(trainer.train(), trainer.evaluate()["eval_loss"])[1] for trainer in runs]
    assert losses[0] == losses[1]
    assert "eval_f1" not in runs[0].evaluate()


def test_labels_that_are_no_tags_of_entities(tmp_path):
    model = TokenClassificationModel.from_encoder(encoder(), ["DET", "NOUN"])
    assert model.config.scheme is None
    rows = [{"tokens": ["Ann", "met"], "ner_tags": ["DET", "NOUN"]}]
    scores = trainer_for(model, tmp_path, rows, evaluate=rows).evaluate()
    assert {"eval_token_accuracy", "eval_exact_match"} <= scores.keys()
    assert "eval_f1" not in scores
    assert WordTagger(model, tokenizer()).predict([["Ann", "met"]])[0].entities == []


def test_the_best_model_is_that_of_highest_f1(tmp_path):
    trainer = trainer_for(
        tagger(),
        tmp_path,
        evaluate=SENTENCES,
        num_train_epochs=3,
        save_strategy="epoch",
        eval_strategy="epoch",
        metric_for_best_model="f1",
        load_best_model_at_end=True,
        save_total_limit=1,
    )
    trainer.train()
    scores = [row["eval_f1"] for row in trainer.state.log_history if "eval_f1" in row]
    assert trainer.state.best_metric == max(scores)
    assert trainer.evaluate()["eval_f1"] == pytest.approx(max(scores))


def test_head_and_encoder_have_learning_rates_of_their_own(tmp_path):
    trainer = trainer_for(
        tagger(), tmp_path, learning_rate=1e-5, head_learning_rate=1e-2, weight_decay=0.1
    )
    groups = trainer.create_optimizer().param_groups
    names = {id(weight): name for name, weight in trainer.model.named_parameters()}
    rates = {names[id(w)]: group["lr"] for group in groups for w in group["params"]}
    assert len(rates) == len(names)
    assert {name for name, rate in rates.items() if rate == 1e-2} == {
        name for name in rates if name.startswith(("classifier.", "crf."))
    }
    assert {rate for name, rate in rates.items() if name.startswith("encoder.")} == {1e-5}
    one = trainer_for(tagger(), tmp_path, learning_rate=1e-5, head_learning_rate=None)
    assert {group["lr"] for group in one.create_optimizer().param_groups} == {1e-5}
    own = torch.optim.SGD(trainer.model.parameters(), lr=3.0)
    given = TokenClassificationTrainer(
        trainer.model, arguments(tmp_path), processing_class=tokenizer(), optimizers=(own, None)
    )
    assert given.create_optimizer() is own
    assert {group["lr"] for group in own.param_groups} == {3.0}


def test_accumulated_steps_are_one_large_batch(tmp_path):
    runs = []
    for batch, steps in ((4, 1), (1, 4)):
        trainer = trainer_for(
            tagger(),
            tmp_path,
            per_device_train_batch_size=batch,
            optim="sgd",
            seed=3,
            gradient_accumulation_steps=steps,
            num_train_epochs=2,
        )
        trainer.train()
        runs.append({name: weight.detach() for name, weight in trainer.model.named_parameters()})
    for name, weight in runs[0].items():
        assert torch.allclose(weight, runs[1][name], atol=1e-5), name


def test_bfloat16_and_gradient_checkpointing(tmp_path, monkeypatch):
    use_bfloat16(monkeypatch)
    plain = loss_and_gradients(trainer_for(tagger(), tmp_path), SENTENCES)
    low = trainer_for(tagger(), tmp_path, bf16=True, max_steps=2)
    low.train()
    seen = []

    def criterion(model, logits, lengths):
        seen.append(model.distribution(logits, lengths).log_partition.dtype)
        return logits.sum((1, 2))

    batch = low.data_collator(SENTENCES)
    inputs = {name: batch[name] for name in batch if name not in ("labels", TARGETS)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low.model(**inputs, criterion=criterion)
    tagger().to(torch.bfloat16)(**inputs, criterion=criterion)
    half = TokenClassificationModel.from_encoder(encoder().to(torch.bfloat16), LABELS)
    assert half.classifier.weight.dtype == torch.bfloat16
    half(**inputs, criterion=criterion)
    assert seen == [torch.float32] * 3
    checked = trainer_for(tagger(), tmp_path)
    checked.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert checked.model.is_gradient_checkpointing
    loss, gradients = loss_and_gradients(checked, SENTENCES)
    assert loss == pytest.approx(plain[0], abs=1e-6)
    assert_same_gradients(gradients, plain[1], 1e-5)
    checked.model.gradient_checkpointing_disable()
    assert not checked.model.is_gradient_checkpointing


@pytest.mark.parametrize("whole", [False, True])
def test_low_rank_adapters(whole, tmp_path):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    if whole:
        settings.modules_to_save = ["classifier", "crf"]
        model = peft.get_peft_model(tagger(), settings)
    else:
        made = peft.get_peft_model(encoder(), settings)
        model = TokenClassificationModel.from_encoder(made, LABELS, dropout=0.0)
    frozen = {n: w.detach().clone() for n, w in model.named_parameters() if not w.requires_grad}
    assert frozen
    trainer = trainer_for(
        model,
        tmp_path,
        evaluate=SENTENCES,
        num_train_epochs=6,
        save_strategy="epoch",
        learning_rate=3e-2,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    for name, weight in model.named_parameters():
        assert name not in frozen or torch.equal(weight, frozen[name]), name
    rates = {group["lr"] for group in trainer.optimizer.param_groups}
    assert len(trainer.optimizer.param_groups) > 1
    assert rates == {0.0}  # at the end of the schedule
    found = WordTagger(model, tokenizer()).predict([row["tokens"] for row in SENTENCES])
    if whole:
        model.save_pretrained(tmp_path / "saved")
        loaded = peft.PeftModel.from_pretrained(tagger(), tmp_path / "saved")
    else:
        model.save_pretrained(tmp_path / "saved")
        loaded = TokenClassificationModel.from_pretrained(tmp_path / "saved")
        assert type(loaded.encoder).__name__ == type(model.encoder).__name__
    again = WordTagger(loaded, tokenizer()).predict([row["tokens"] for row in SENTENCES])
    assert again == found


def test_adapters_that_cannot_be(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    made = peft.get_peft_model(encoder(), peft.LoraConfig(r=2, target_modules=["query"]))
    TokenClassificationModel.from_encoder(made, LABELS).save_pretrained(tmp_path)
    made.add_adapter("other", peft.LoraConfig(r=2, target_modules=["value"]))
    with pytest.raises(ModelError, match="one adapter, got 2: default, other"):
        TokenClassificationModel.from_encoder(made, LABELS)
    config = TokenClassificationModel.config_class.from_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(DependencyError, match="pip install peft"):
        TokenClassificationModel(config)


# --- annotators --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "objective"), [("sequential", "ml"), ("dawid-skene", "sqdml")])
def test_a_model_of_annotators_is_learnt_with_the_tagger(name, objective, tmp_path):
    # the first and the second annotator are right, the third says O
    rows = [
        {
            "tokens": row["tokens"],
            "annotations": [row["ner_tags"], row["ner_tags"], [0] * len(row["tokens"])],
        }
        for row in SENTENCES * 3
    ]
    rows[0]["annotations"][1] = None
    settings = {
        "annotators": name,
        "objective": objective,
        "tau": None if objective == "ml" else 1.0,
    }
    trainer = trainer_for(
        tagger(constraints="target"),
        tmp_path,
        rows,
        evaluate=SENTENCES,
        num_train_epochs=6,
        **settings,
    )
    before = trainer.truth.tables.confusions.copy()
    trainer.train()
    after = trainer.truth.tables.confusions
    # toward the evidence alone the tagger does not take part
    assert (np.abs(after - before).max() > 1e-6) == (objective == "ml")
    person = LABELS.index("B-PER")
    assert after[0, person, person] > 0.5 > after[2, person, person]
    gold = [[LABELS[k] if isinstance(k, int) else k for k in row["ner_tags"]] for row in SENTENCES]
    assert trainer.truth.labels()[:4] == gold
    assert trainer.evaluate()["eval_f1"] > 0.8


def test_a_step_with_a_model_of_annotators_is_the_target_of_its_tables(tmp_path):
    trainer = trainer_for(tagger(), tmp_path, CROWD, annotators="dawid-skene", temper=0.6)
    rows = [trainer.train_dataset[place] for place in (2, 0)]
    loss = loss_and_gradients(trainer, rows)[0]
    batch = trainer.data_collator(rows)
    inputs = {name: batch[name] for name in batch if name not in ("labels", TARGETS)}
    with torch.no_grad():
        output = trainer.model(**inputs)
    p = trainer.model.distribution(output.logits, output.lengths)
    target = trainer.truth.tables.target(p, [2, 0], temper=0.6)
    assert loss == pytest.approx(float(softq.cross_entropy(target, p).detach().sum()) / 9, abs=1e-6)
    tables = copy.deepcopy(trainer.truth.tables)
    posterior = trainer.truth.posterior.copy()
    posterior[10:12] = target.marginals[0, :2]
    posterior[:7] = target.marginals[1]
    tables.update(posterior)
    trainer.truth.update(trainer.accelerator)
    assert np.allclose(trainer.truth.tables.confusions, tables.confusions, atol=1e-6)


def test_sqdml_with_a_model_of_annotators_is_the_softmax_of_their_log_probabilities(tmp_path):
    settings = {"annotators": "sequential", "objective": "sqdml", "tau": 2.0}
    trainer = trainer_for(tagger(head="independent"), tmp_path, CROWD, **settings)
    loss = loss_and_gradients(trainer, [trainer.train_dataset[2]])[0]
    scores = word_scores(trainer.model, CROWD[2]["tokens"], "first", "bert").detach()
    evidence = torch.from_numpy(trainer.truth.tables.evidence()[10:12])
    expected = -((evidence / 2.0).softmax(1) * scores.log_softmax(1)).sum() / 2
    assert loss == pytest.approx(float(expected), abs=1e-5)


def test_a_resumed_run_knows_its_annotators(tmp_path):
    def run(folder, stop=None, resume=None):
        trainer = trainer_for(
            tagger(),
            folder,
            CROWD,
            annotators="sequential",
            num_train_epochs=2,
            save_strategy="steps",
            save_steps=1,
        )
        if stop:

            class Stop(transformers.TrainerCallback):
                def on_step_end(self, args, state, control, **more):
                    control.should_training_stop = state.global_step >= stop

            trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(tmp_path / "whole")
    run(tmp_path / "part", stop=1)
    resumed = run(tmp_path / "part", resume=str(tmp_path / "part" / "checkpoint-1"))
    assert np.allclose(resumed.truth.posterior, whole.truth.posterior, atol=1e-6)
    for name, weight in whole.model.named_parameters():
        assert torch.allclose(weight, resumed.model.get_parameter(name), atol=1e-6), name


def test_models_of_annotators_need_labels_of_annotators(tmp_path):
    soft = [{"tokens": ["Ann"], "ner_tags": [{"O": 1.0}]}]
    with pytest.raises(DataError, match="wants labels of annotators"):
        trainer_for(tagger(), tmp_path, soft, annotators="sequential")
    with pytest.raises(DataError, match="'annotations' in all rows of train_dataset"):
        trainer_for(tagger(), tmp_path, [{"tokens": ["Ann"]}], annotators="sequential")
    with pytest.raises(DataError, match="a train_dataset with a length, got generator"):
        trainer_for(tagger(), tmp_path, (row for row in CROWD), annotators="sequential")


# --- predictions ---------------------------------------------------------------------------------------


def test_predictions_have_offsets_entities_and_confidences():
    for head in ("chain", "independent"):
        model = tagger(head=head, seed=5)
        text = "Ann Lee met Bob."
        (tagged,) = WordTagger(model, tokenizer()).predict([text])
        assert tagged.words == ["Ann", "Lee", "met", "Bob", "."]
        assert [text[start:end] for start, end in tagged.offsets] == tagged.words
        sequences, scores = sequence_scores(
            model, word_scores(model, tagged.words, "first", "bert")
        )
        law = scores.detach().softmax(0)
        best = sequences[int(law.argmax())]
        assert tuple(map(LABELS.index, tagged.labels)) == best
        for place, confidence in enumerate(tagged.confidences):
            mass = sum(p for y, p in zip(sequences, law, strict=True) if y[place] == best[place])
            assert confidence == pytest.approx(float(mass), abs=1e-5)
        assert tagged.entities
        for entity in tagged.entities:
            part = slice(entity.start, entity.end)
            mass = sum(p for y, p in zip(sequences, law, strict=True) if y[part] == best[part])
            assert entity.confidence == pytest.approx(float(mass), abs=1e-5)
            assert entity.text.split() == tagged.words[part] or entity.text == "Bob."


def test_predictions_do_not_depend_on_batches():
    model = tagger(limit=16)
    sentences = [["Ann", "met", "Lee"] * 7, "", "Bob ran", [], ["Rome"], ["He", ZERO_WIDTH]]
    one = WordTagger(model, tokenizer(), batch_size=1, stride=3).predict(sentences)
    all_ = WordTagger(model, tokenizer(), stride=3).predict(sentences)
    assert [len(tagged.labels) for tagged in one] == [21, 0, 2, 0, 1, 2]
    for left, right in zip(one, all_, strict=True):
        assert left.labels == right.labels
        assert left.confidences == pytest.approx(right.confidences, abs=1e-5)
    assert WordTagger(model, tokenizer()).predict([]) == []
    with pytest.raises(DataError, match="got one text"):
        WordTagger(model, tokenizer()).predict("Ann ran")


# --- what cannot be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"objective": "mml"}, RecipeError, "objective must be one of ml, raml, sqdml"),
        ({"annotators": "mace"}, RecipeError, "annotators must be one of None, dawid-skene"),
        ({"objective": "raml"}, TemperatureError, "raml needs a temperature: give tau"),
        ({"tau": 0.5}, RecipeError, "ml has no temperature, got tau=0.5"),
        ({"objective": "raml", "tau": -1.0}, TemperatureError, "tau must be positive"),
        ({"entity_weight": 2.0}, RecipeError, "which ml has not"),
        ({"objective": "raml", "tau": 1.0, "entity_weight": 0.0}, RecipeError, "must be positive"),
        ({"objective": "raml", "tau": 1.0, "annotators": "sequential"}, RecipeError, "got raml"),
        ({"temper": 2.0}, RecipeError, "temper must lie in 0..1, got 2.0"),
        ({"head_learning_rate": 0.0}, RecipeError, "head_learning_rate must be positive"),
        ({"remove_unused_columns": True}, RecipeError, "must stay False"),
        ({"label_smoothing_factor": 0.1}, RecipeError, "must stay 0"),
        ({"max_length": 0}, RecipeError, "max_length must be a whole number from 1"),
        ({"accelerator_config": {"dispatch_batches": True}}, RecipeError, "leave dispatch_batches"),
    ],
)
def test_arguments_that_do_not_go_together(settings, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        arguments(tmp_path, **settings)


def test_trainers_that_cannot_be(tmp_path, monkeypatch):
    args, words = arguments(tmp_path), tokenizer()
    make = TokenClassificationTrainer
    with pytest.raises(
        RecipeError, match="args must be TokenClassificationArguments, got NoneType"
    ):
        make(tagger())
    with pytest.raises(RecipeError, match="give the tokenizer as processing_class"):
        make(tagger(), args)
    with pytest.raises(RecipeError, match="leave out data_collator"):
        make(tagger(), args, processing_class=words, data_collator=list)
    with pytest.raises(ModelError, match="expected a TokenClassificationModel, got BertModel"):
        make(encoder(), args, processing_class=words)
    reward = entity_reward(LABELS, 2.0)
    with pytest.raises(RecipeError, match="a reward is for raml and sqdml"):
        make(tagger(), args, processing_class=words, reward=reward)
    both = arguments(tmp_path, objective="raml", tau=1.0, entity_weight=2.0)
    with pytest.raises(RecipeError, match="leave out one of them"):
        make(tagger(), both, processing_class=words, reward=reward)
    trainer = make(model_init=lambda: tagger(), args=args, processing_class=words)
    with pytest.raises(DataError, match="rows without labels"):
        trainer.compute_loss(trainer.model, trainer.data_collator([{"tokens": ["Ann"]}]))
    monkeypatch.setattr(type(args), "n_gpu", 2)
    with pytest.raises(ModelError, match="2 GPUs in one process"):
        make(tagger(), args, processing_class=words)


def test_models_that_cannot_be(tmp_path):
    make = TokenClassificationModel.from_encoder
    with pytest.raises(DataError, match="one label or more, all different"):
        make(encoder(), ["O", "O"])
    with pytest.raises(ModelError, match="there is no folder"):
        make(tmp_path / "none" / "here", LABELS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="Transformers cannot load"):
        make(tmp_path / "empty", LABELS)
    with pytest.raises(ModelError, match=r"expected an encoder of Transformers, .* got int"):
        make(7, LABELS)
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    with pytest.raises(ModelError, match="which has a decoder"):
        make(transformers.T5Model(transformers.T5Config(**sizes)), LABELS)
    with pytest.raises(ModelError, match="head must be one of chain, independent, got 'crf'"):
        make(encoder(), LABELS, head="crf")
    with pytest.raises(ModelError, match="need a tag scheme"):
        make(encoder(), ["DET", "NOUN"], constraints="decode")
    assert make(encoder(), ["O", "S-X", "B-X", "I-X", "E-X"]).config.scheme == "bioes"
    assert make(encoder(), ["O", "I-X", "B-X"], scheme="iob1").config.scheme == "iob1"


def test_an_encoder_is_loaded_from_a_folder(tmp_path):
    encoder("roberta").save_pretrained(tmp_path)
    model = TokenClassificationModel.from_encoder(tmp_path, LABELS)
    assert model.max_subwords == 32  # two positions are for padding
    assert model.get_input_embeddings() is model.encoder.get_input_embeddings()
    # that layer would have no gradient, which DDP does not allow
    assert not any("pooler" in name for name, _ in model.named_parameters())
    for name, weight in encoder("roberta").named_parameters():
        assert "pooler" in name or torch.equal(model.encoder.get_parameter(name), weight)
    model.set_input_embeddings(torch.nn.Embedding(7, 16))
    assert model.encoder.get_input_embeddings().num_embeddings == 7
    sizes = {"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8, "vocab_size": 9}
    unlimited = transformers.XLNetModel(transformers.XLNetConfig(**sizes))
    assert TokenClassificationModel.from_encoder(unlimited, LABELS).max_subwords is None
