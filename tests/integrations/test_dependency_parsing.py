"""Parsers on encoders of Transformers: rows, losses, training and predictions."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
import transformers

import oracle
import softq
from softq.errors import DataError, ModelError, OutputError, RecipeError, TemperatureError
from softq.formats import read_conllu
from softq.integrations.transformers import DependencyModel, DependencyTrainer, TreePredictor
from softq.integrations.transformers.dependency_parsing import DependencyCollator
from softq.integrations.transformers.dependency_parsing.trees import TreeReader
from softq.integrations.transformers.words.rows import TARGETS
from softq.integrations.transformers.words.subwords import with_prefix_space
from softq.linear.parser import NonprojectiveWarning
from softq.metrics import ATTACHMENT_METRICS, attachment_statistics
from tiny_models import assert_same_gradients, use_bfloat16
from tiny_parsers import RELATIONS, TREES, parser, trainer_for
from tiny_taggers import ENCODERS, ZERO_WIDTH, encoder, loss_and_gradients, tokenizer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # DeBERTa's module, where it is imported
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

CROSSING = {  # 4 -> 2 passes over 3, the root
    "tokens": ["Ann", "met", "Bob", "Lee"],
    "heads": [3, 4, 0, 3],
    "deprels": ["nsubj", "obj", "root", "flat"],
}
CONLLU = "1\tLee\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tran\t_\t_\t_\t_\t0\troot\t_\t_\n\n"


# --- rows ---------------------------------------------------------------------------------------------


def test_trees_are_read_by_number_and_by_name():
    read = TreeReader(["root", "nsubj", "nmod:poss"], spanning=False)
    (tree,) = read({"heads": torch.tensor([2, 0]), "deprels": np.array(["nsubj", "root"])}, 2).trees
    assert tree == ([2, 0], [1, 0], [2, 0])
    (tree,) = read({"heads": ["2", "0", None], "deprels": [1, "_", None]}, 3).trees
    assert tree == ([2, 0, -100], [1, -100, -100], [2, 0, -100])
    assert read({"tokens": ["a"]}, 1) is None
    assert read({"heads": []}, 0).trees == [([], [], [])]
    several = read({"annotations": [[2, 0], None, {"heads": [0, 1]}], "weights": [1, 3, 2]}, 2)
    assert several.weights == [1.0, 2.0]
    assert [tree.heads for tree in several.trees] == [[2, 0], [0, 1]]
    assert not several.partial


def test_relations_that_are_not_known_keep_what_scores_look_at():
    read = TreeReader(["root", "nmod:poss"], spanning=False)
    (tree,) = read({"heads": [0, 1, 1], "deprels": ["root:x", "nmod:of", "strange"]}, 3).trees
    assert [read.names[number] for number in tree.relations] == ["root:?", "nmod:?", "?"]
    (tree,) = TreeReader([], spanning=False)({"heads": [0], "deprels": ["root"]}, 1).trees
    assert tree.relations == [-100]


def test_crossing_arcs_are_lifted_for_projective_models():
    row = TreeReader(RELATIONS, spanning=False)(CROSSING, 4)
    assert row.lifted
    assert row.trees[0].heads == [3, 4, 0, 3]
    assert row.trees[0].possible == [3, 3, 0, 3]
    assert not TreeReader(RELATIONS, spanning=True)(CROSSING, 4).lifted
    # an arc over words of which nothing is known crosses none
    assert not TreeReader(RELATIONS, spanning=False)({"heads": [4, None, None, 0]}, 4).lifted


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({"heads": [0]}, DataError, "'heads' must have an entry for each of the 2 words, got 1"),
        ({"heads": "20"}, DataError, "entry for each of the 2 words, got str"),
        ({"heads": [2, 0], "deprels": ["root"]}, DataError, "'deprels' must have an entry"),
        ({"heads": [2, 0.5]}, DataError, "expected a head as the number of a word.* got 0.5"),
        ({"heads": [2, True]}, DataError, "expected a head as the number of a word.* got True"),
        ({"heads": [3, 0]}, OutputError, r"word 1 \(from 1\): expected a head in 0\.\.2, got 3"),
        ({"heads": [2, 1]}, OutputError, "expected a root"),
        ({"heads": [0, 0]}, OutputError, "expected one root, got a second one"),
        ({"heads": [None, 2]}, OutputError, "got the word itself"),
        ({"heads": [2, 0], "deprels": ["root", 9]}, OutputError, r"an id in 0\.\.6, got 9"),
        ({"heads": [2, 0], "annotations": [[2, 0]]}, DataError, "got both"),
        ({"annotations": 3}, DataError, "must be a list of heads, or of dicts .* got int"),
        ({"annotations": [None]}, DataError, "expected trees of one annotator or more"),
        ({"annotations": [{"deprels": ["root", "obj"]}]}, DataError, "entry for each of the 2"),
    ],
)
def test_trees_that_cannot_be_read(row, kind, message):
    with pytest.raises(kind, match=message):
        TreeReader(RELATIONS, spanning=False)(row, 2)


def test_partial_trees_that_no_tree_agrees_with():
    read = TreeReader(RELATIONS, spanning=False)
    with pytest.raises(OutputError, match=r"word 3 .* expected one root, got a second one"):
        read({"heads": [0, None, 0]}, 3)
    with pytest.raises(OutputError, match=r"expected no crossing arcs, .* or take spanning=True"):
        read({"heads": [3, 4, None, None]}, 4)
    assert TreeReader(RELATIONS, spanning=True)({"heads": [3, 4, None, None]}, 4).partial


def test_what_a_batch_holds():
    collator = DependencyCollator(tokenizer(), RELATIONS)
    rows = [
        {
            "tokens": ["Ann", "ran", "."],
            "annotations": [
                {"heads": [2, 0, 1], "deprels": ["nsubj", "root", "punct"]},
                {"heads": [2, 0, None], "deprels": ["obj", "root", "punct"]},
                {"heads": [0, 1, 2], "deprels": ["root", "obj", "punct"]},
            ],
            "weights": [1, 2, 1.5],
        },
        CROSSING,
        *read_conllu(CONLLU),
        {"tokens": [], "heads": []},
    ]
    batch = collator(rows)
    assert next(iter(batch)) == "lengths"  # by which Trainer counts rows
    assert batch["lengths"].tolist() == [3, 4, 2, 0]
    gold = [[2, 0, 2, -100], [3, 4, 0, 3], [2, 0, -100, -100], [-100] * 4]
    assert batch["labels"].tolist() == gold
    heads, relations = batch[TARGETS]["gold"]
    assert heads.tolist() == gold
    assert relations.tolist() == [
        [2, 0, 5, -100],  # by those who have the head
        [1, 2, 0, 6],
        [1, 0, -100, -100],
        [-100] * 4,
    ]
    assert batch[TARGETS]["partial"]["rows"].tolist() == [0]
    whole = batch[TARGETS]["references"]
    assert whole["heads"][0, 0].tolist() == [3, 3, 0, 3]
    assert whole["relations"][0, 0].tolist() == [1, -100, 0, 6]  # a lifted word has none
    assert set(collator([{"tokens": ["Ann"]}])) == {
        *("lengths", "words", "input_ids", "attention_mask")
    }
    with pytest.raises(DataError, match="labels in all rows of a batch or in none, got 1 of 2"):
        collator([{"tokens": ["Ann"]}, TREES[3]])
    with pytest.raises(DataError, match="a row needs 'tokens', a list of words, and 'heads' or"):
        collator([{"words": ["Ann"], "heads": [0]}])


# --- losses ------------------------------------------------------------------------------------------


def word_vectors(model, words, pooling, kind):
    """Vectors of the root and the words of one sentence, by hand: the encoder on it alone."""
    found = with_prefix_space(tokenizer(kind))(
        words, is_split_into_words=True, return_tensors="pt", return_token_type_ids=False
    )
    hidden = model.encoder(**found).last_hidden_state[0]
    rows = [model.root.weight[0]]
    for number in range(len(words)):
        places = [p for p, word in enumerate(found.word_ids()) if word == number]
        vectors = hidden[places]
        if not places:
            rows.append(torch.zeros(hidden.shape[1]))
        else:
            rows.append(
                {"first": vectors[0], "mean": vectors.mean(0), "last": vectors[-1]}[pooling]
            )
    return torch.stack(rows)


def scores_by_hand(model, words, pooling="first", kind="bert"):
    """Scores of arcs ``[head][word]``, and of the relations of each arc, one at a time."""
    biaffine, (arc, _, size, _) = model.biaffine, model.biaffine.sizes
    seen = torch.nn.functional.leaky_relu(
        word_vectors(model, words, pooling, kind) @ biaffine.views.weight.T + biaffine.views.bias,
        0.1,
    )
    nodes = range(len(words) + 1)

    def arcs(head, word):
        moved = biaffine.arc.weight @ seen[word, arc : 2 * arc] + biaffine.arc.bias
        return seen[head, :arc] @ moved

    def relations(head, word):
        own, other = seen[head, 2 * arc : 2 * arc + size], seen[word, 2 * arc + size :]
        rows = (biaffine.relation.weight @ other + biaffine.relation.bias).view(-1, size + 1)
        return rows[:, :size] @ own + rows[:, size]

    return [[arcs(head, word) for word in nodes] for head in nodes], relations


def law(model, words, **how):
    """All trees of a sentence and their log-probabilities, by enumeration; and its relations."""
    arcs, relations = scores_by_hand(model, words, **how)
    trees = oracle.trees(len(words), multiroot=False, projective=not model.config.spanning)
    scores = torch.stack([torch.as_tensor(oracle.tree_score(arcs, tree)) for tree in trees])
    return trees, scores.log_softmax(0), relations


def relation_loss(relations, heads, names):
    return -sum(
        relations(head, word).log_softmax(0)[RELATIONS.index(name)]
        for word, (head, name) in enumerate(zip(heads, names, strict=True), start=1)
        if name is not None
    )


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize(
    ("spanning", "pooling"), [(False, "first"), (True, "mean"), (False, "last")]
)
def test_gradients_are_those_of_single_sentences(kind, spanning, pooling, tmp_path):
    model = parser(kind, spanning=spanning, pooling=pooling)
    rows = [
        {
            "tokens": ["Ann", ZERO_WIDTH, "internationalisation"],
            "heads": [3, 3, 0],
            "deprels": ["nsubj", "punct", "root"],
        },
        TREES[3],
        {**CROSSING, "heads": [2, 0, 4, 2]},
    ]
    trainer = trainer_for(model, tmp_path, kind=kind)
    loss, gradients = loss_and_gradients(trainer, rows)
    model.zero_grad()
    total = 0.0
    for row in rows:
        trees, logs, relations = law(model, row["tokens"], pooling=pooling, kind=kind)
        total = total - logs[trees.index(tuple(row["heads"]))]
        total = total + relation_loss(relations, row["heads"], row["deprels"])
    (total / 8).backward()
    assert loss == pytest.approx(float(total.detach()) / 8, abs=1e-5)
    by_hand = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_same_gradients(gradients, by_hand, 1e-5)


@pytest.mark.parametrize("spanning", [False, True])
@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
def test_targets_are_those_of_enumeration(objective, spanning, tmp_path):
    model, tau = parser(spanning=spanning), 0.7
    annotations = [(2, 0, 2), (3, 3, 0), (0, 1, 2)]
    names = [("nsubj", "root", "obj"), (None, "case", "root"), ("root", "obj", "nmod")]
    weights = [1.0, 2.0, 0.0]
    row = {
        "tokens": ["Ann", "met", "Lee"],
        "annotations": [
            {"heads": list(heads), "deprels": list(some)}
            for heads, some in zip(annotations, names, strict=True)
        ],
        "weights": weights,
    }
    settings = {"objective": objective, "tau": None if objective == "ml" else tau}
    trainer = trainer_for(model, tmp_path, **settings)
    trees, logs, relations = law(model, row["tokens"])
    mix = [weight / sum(weights) for weight in weights]
    rewards = [[oracle.matches(tree, gold) for tree in trees] for gold in annotations]
    if objective == "ml":
        target = [
            sum(w for w, gold in zip(mix, annotations, strict=True) if gold == y) for y in trees
        ]
    else:
        target = getattr(oracle, objective)(rewards, mix, tau)
    expected = -float((torch.tensor(target) * logs.detach()).sum())
    for weight, heads, some in zip(mix, annotations, names, strict=True):
        expected += weight * float(relation_loss(relations, heads, some).detach())
    assert loss_and_gradients(trainer, [row])[0] == pytest.approx(expected / 3, abs=1e-5)


@pytest.mark.parametrize("spanning", [False, True])
def test_a_likelihood_sums_over_heads_that_are_not_known(spanning, tmp_path):
    model = parser(spanning=spanning)
    rows = [
        {"tokens": ["Ann", "met", "Bob", "."], "heads": [2, None, None, -100]},
        {"tokens": ["Lee", "ran"], "annotations": [[2, None], [None, 1]], "weights": [3, 1]},
    ]
    total = 0.0
    for row, references in zip(
        rows, ([(1.0, {0: 2})], [(0.75, {0: 2}), (0.25, {1: 1})]), strict=True
    ):
        trees, logs, _ = law(model, row["tokens"])
        for weight, known in references:
            agree = [all(tree[t] == head for t, head in known.items()) for tree in trees]
            total -= weight * logs[torch.tensor(agree)].logsumexp(0)
    found, gradients = loss_and_gradients(trainer_for(model, tmp_path), rows)
    assert found == pytest.approx(float(total.detach()) / 3, abs=1e-5)  # words whose head is known
    model.zero_grad()
    (total / 3).backward()
    by_hand = {name: weight.grad for name, weight in model.named_parameters()}
    relations = [name for name in by_hand if "relation" in name]
    assert all(not gradients.pop(name).any() and by_hand.pop(name) is None for name in relations)
    assert_same_gradients(gradients, by_hand, 1e-5)


def test_heads_that_one_annotator_left_out_are_as_for_the_others(tmp_path):
    part = {"tokens": ["Ann", "met", "Lee"], "annotations": [[2, 0, None], [3, None, 0]]}
    trainer = trainer_for(parser(relations=()), tmp_path, objective="sqdml", tau=0.5)
    table = torch.zeros(1, 2, 4, 4)
    for reference, heads in enumerate(([2, 0, 0], [3, 0, 0])):
        for word, head in enumerate(heads, start=1):
            table[0, reference, head, word] = 1.0
    with torch.no_grad():
        batch = trainer.data_collator([{"tokens": part["tokens"]}])
        output = trainer.model(**batch)
        p = trainer.model.distribution(output.scores, output.lengths)
        expected = softq.cross_entropy(softq.sqdml(p, table, 0.5), p)
    assert loss_and_gradients(trainer, [part])[0] == pytest.approx(float(expected) / 3, abs=1e-6)


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_the_model_decides_heads_that_nobody_knows(objective, tmp_path):
    model, tau = parser(relations=()), 0.5
    trainer = trainer_for(model, tmp_path, objective=objective, tau=tau)
    rows = [{"tokens": ["Ann", "met", "Lee"], "heads": [2, None, 2]}, TREES[2]]
    total = 0.0
    for row, prior in zip(rows, (1.0, 0.0), strict=True):
        trees, logs, _ = law(model, row["tokens"])
        reward = torch.tensor([oracle.matches(tree, row["heads"]) / tau for tree in trees])
        target = (reward + prior * logs).softmax(0).detach()
        total -= float((target * logs.detach()).sum())
    assert loss_and_gradients(trainer, rows)[0] == pytest.approx(total / 4, abs=1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_padding_and_windows_change_nothing_else(kind, tmp_path):
    words = ["Ann", "met", "Lee", "."] * 9
    heads = [0, *range(1, len(words))]
    rows = [
        {"tokens": ["Ann", "ran", "."], "heads": [2, None, None]},
        *TREES,
        {"tokens": words, "heads": heads, "deprels": ["obj"] * len(words)},
        {"tokens": [], "heads": []},
        {"tokens": ["", "Bob"], "heads": [2, 0], "deprels": ["punct", "root"]},
    ]
    model = parser(kind).eval()
    trainer = trainer_for(model, tmp_path, kind=kind, objective="sqdml", tau=0.5)

    def losses(some):
        batch = trainer.data_collator(some)
        criterion = trainer.criterion(batch[TARGETS], model)
        inputs = {name: batch[name] for name in batch if name not in ("labels", TARGETS)}
        with torch.no_grad():
            return model(**inputs, criterion=criterion).loss

    together = losses(rows)
    alone = torch.cat([losses([row]) for row in rows])
    assert together[6] == 0
    assert together[5] > 1
    assert together.tolist() == pytest.approx(alone.tolist(), rel=1e-5, abs=1e-4)
    assert len(trainer.data_collator(rows)["input_ids"]) > len(rows)
    assert losses([{"tokens": [], "heads": []}]).tolist() == [0]


def test_dropout_is_of_the_same_coordinates_for_all_words_of_a_sentence():
    model = parser(dropout=0.5)
    torch.manual_seed(0)
    dropped = model.train()._drop(torch.ones(3, 5, 16))
    assert (dropped == dropped[:, :1]).all()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not (dropped[0] == dropped[1]).all()
    assert (model.eval()._drop(torch.ones(3, 5, 16)) == 1).all()


# --- training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_parser_learns_is_saved_and_predicts_the_same(kind, tmp_path):
    model = parser(kind, spanning=kind == "roberta")
    trainer = trainer_for(model, tmp_path, kind=kind, evaluate=TREES, num_train_epochs=25)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_las"] > before["eval_las"]
    assert after["eval_uas"] > 0.9
    trainer.save_model(str(tmp_path / "saved"))
    assert {"config.json", "model.safetensors"} <= {
        path.name for path in (tmp_path / "saved").iterdir()
    }
    sentences = [row["tokens"] for row in TREES]
    ours = TreePredictor(model, trainer.processing_class).predict(sentences)
    loaded = TreePredictor.from_pretrained(tmp_path / "saved", batch_size=3)
    assert loaded.core.config.relations == RELATIONS
    assert loaded.core.config.spanning == (kind == "roberta")
    for left, right in zip(loaded.predict(sentences), ours, strict=True):
        assert (left.heads, left.relations) == (right.heads, right.relations)
        assert left.confidences == pytest.approx(right.confidences, abs=1e-5)


def test_evaluation_is_that_of_the_metrics(tmp_path):
    model = parser()
    trainer = trainer_for(model, tmp_path, evaluate=[*TREES, CROSSING])
    scores = trainer.evaluate()
    sentences = [row["tokens"] for row in (*TREES, CROSSING)]
    found = TreePredictor(model, tokenizer()).predict(sentences)
    text = "".join(
        "".join(
            f"{place}\t{word}\t_\t_\t_\t_\t{head}\t{name}\t_\t_\n"
            for place, (word, head, name) in enumerate(
                zip(row["tokens"], row["heads"], row["deprels"], strict=True), start=1
            )
        )
        + "\n"
        for row in (*TREES, CROSSING)
    )
    sums = attachment_statistics(
        read_conllu(text), [one.heads for one in found], [one.relations for one in found]
    ).sum(0)
    for name, metric in ATTACHMENT_METRICS.items():
        assert scores[f"eval_{name}"] == pytest.approx(float(metric(sums))), name
    output = trainer.predict([{"tokens": words} for words in sentences])
    assert output.label_ids is None
    heads, relations = output.predictions
    for row, one in enumerate(found):
        size = len(one.heads)
        assert heads[row].tolist() == one.heads + [-100] * (7 - size)
        assert [RELATIONS[k] for k in relations[row, :size]] == one.relations
    from_file = trainer.evaluate(read_conllu(text))
    assert from_file["eval_las"] == scores["eval_las"]


def test_words_whose_head_nobody_knows_do_not_count(tmp_path):
    model = parser()
    (one,) = TreePredictor(model, tokenizer()).predict([["Ann", "met", "Bob"]])
    wrong = next(head for head in range(4) if head not in (one.heads[2], 3))
    trainer = trainer_for(model, tmp_path)

    def scores(*trees):
        row = {"tokens": ["Ann", "met", "Bob"], "annotations": list(trees)}
        return trainer.evaluate([row])

    partial = scores([one.heads[0], None, None])
    assert (partial["eval_uas"], partial["eval_exact_match"]) == (1.0, 1.0)
    assert "eval_las" not in partial
    names = [one.relations[0], None, "strange"]
    most = scores(
        {"heads": [one.heads[0], None, wrong], "deprels": names},
        {"heads": [one.heads[0], None, wrong], "deprels": names},
        [None, None, one.heads[2]],
    )
    assert most["eval_uas"] == most["eval_las"] == 0.5
    assert most["eval_exact_match"] == 0.0


def test_a_gold_relation_that_the_model_does_not_know_is_wrong_but_by_its_universal_part(tmp_path):
    model = parser(relations=("nmod",))
    (one,) = TreePredictor(model, tokenizer()).predict([["Ann", "met"]])
    row = {"tokens": ["Ann", "met"], "heads": one.heads, "deprels": ["nmod:x", "other"]}
    known = [{"tokens": ["Ann"], "heads": [0], "deprels": ["nmod"]}]
    scores = trainer_for(model, tmp_path, known).evaluate([row])
    assert scores["eval_uas"] == 1.0
    assert (scores["eval_las"], scores["eval_las_subtypes"]) == (0.5, 0.0)


def test_crossing_arcs_are_counted_before_training(tmp_path):
    rows = [*TREES, CROSSING]
    with pytest.warns(NonprojectiveWarning, match="1 of 5 sentences have a tree with crossing"):
        trainer = trainer_for(parser(), tmp_path, rows)
    lifted = {**CROSSING, "heads": [3, 3, 0, 3], "deprels": ["nsubj", None, "root", "flat"]}
    assert loss_and_gradients(trainer, [CROSSING])[0] == loss_and_gradients(trainer, [lifted])[0]
    whole = trainer_for(parser(spanning=True), tmp_path, rows)
    assert loss_and_gradients(whole, [CROSSING])[0] != loss_and_gradients(whole, [lifted])[0]


def test_rows_to_train_on_are_checked_before_training(tmp_path):
    with pytest.raises(OutputError, match=r"row 1 of train_dataset \(from 0\): .* root"):
        trainer_for(parser(), tmp_path, [TREES[0], {"tokens": ["a", "b"], "heads": [2, 1]}])
    strange = {**TREES[2], "deprels": ["nsubj", "origin"]}
    with pytest.raises(OutputError, match=r"row 0 .* expected one of the relations root, nsubj"):
        trainer_for(parser(), tmp_path, [strange])
    with pytest.raises(OutputError, match="expected 'heads' or 'annotations', got none"):
        trainer_for(parser(), tmp_path, [{"tokens": ["a"]}])


def test_head_and_encoder_have_learning_rates_of_their_own(tmp_path):
    trainer = trainer_for(parser(), tmp_path, learning_rate=1e-5, head_learning_rate=1e-2)
    names = {id(weight): name for name, weight in trainer.model.named_parameters()}
    groups = trainer.create_optimizer().param_groups
    rates = {names[id(w)]: group["lr"] for group in groups for w in group["params"]}
    assert len(rates) == len(names)
    assert {name for name, rate in rates.items() if rate == 1e-2} == {
        name for name in rates if name.startswith(("root.", "biaffine."))
    }


def run(folder, rows=TREES, *, stop=None, resume=None, **settings):
    trainer = trainer_for(parser(dropout=0.3), folder, rows, **settings)
    if stop:

        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **more):
                control.should_training_stop = state.global_step >= stop

        trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model


def test_accumulated_steps_are_one_large_batch(tmp_path):
    models = []
    for batch, steps in ((4, 1), (1, 4)):
        trainer = trainer_for(
            parser(),
            tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            optim="sgd",
            seed=3,
            num_train_epochs=2,
            learning_rate=1e-3,
            head_learning_rate=1e-3,
        )
        trainer.train()
        models.append(trainer.model)
    for name, weight in models[0].named_parameters():
        assert torch.allclose(weight, models[1].get_parameter(name), atol=1e-5), name


def test_a_resumed_run_is_the_same(tmp_path):
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    whole = run(tmp_path / "whole", **settings)
    run(tmp_path / "part", stop=1, **settings)
    resumed = run(tmp_path / "part", resume=str(tmp_path / "part" / "checkpoint-1"), **settings)
    for name, weight in whole.named_parameters():
        assert torch.allclose(weight, resumed.get_parameter(name), atol=1e-6), name


def test_bfloat16_and_gradient_checkpointing(tmp_path, monkeypatch):
    use_bfloat16(monkeypatch)
    plain = loss_and_gradients(trainer_for(parser(), tmp_path), TREES)
    low = trainer_for(parser(), tmp_path, bf16=True, max_steps=2, evaluate=TREES)
    low.train()
    assert math.isfinite(low.evaluate()["eval_loss"])
    seen = []

    def criterion(model, scores, lengths):
        seen.append(model.distribution(scores, lengths).log_partition.dtype)
        return scores.arcs.sum((1, 2))

    batch = low.data_collator(TREES)
    inputs = {name: batch[name] for name in batch if name not in ("labels", TARGETS)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low.model(**inputs, criterion=criterion)
    half = parser().to(torch.bfloat16)
    half(**inputs, criterion=criterion)
    losses = half(**inputs, criterion=partial(low.losses, targets=batch[TARGETS])).loss
    assert float(losses.detach().sum()) / 13 == pytest.approx(plain[0], rel=0.1)
    made = DependencyModel.from_encoder(encoder().to(torch.bfloat16), RELATIONS)
    assert made.biaffine.arc.weight.dtype == made.root.weight.dtype == torch.bfloat16
    assert seen == [torch.float32] * 2
    checked = trainer_for(parser(), tmp_path)
    checked.model.gradient_checkpointing_enable({"use_reentrant": False})
    loss, gradients = loss_and_gradients(checked, TREES)
    assert loss == pytest.approx(plain[0], abs=1e-5)
    assert_same_gradients(gradients, plain[1], 1e-5)


@pytest.mark.parametrize("whole", [False, True])
def test_low_rank_adapters(whole, tmp_path):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    if whole:
        settings.modules_to_save = ["root", "biaffine"]
        model = peft.get_peft_model(parser(), settings)
    else:
        made = peft.get_peft_model(encoder(), settings)
        model = DependencyModel.from_encoder(made, RELATIONS, dropout=0.0, arc_size=8)
    frozen = {n: w.detach().clone() for n, w in model.named_parameters() if not w.requires_grad}
    assert frozen
    trainer = trainer_for(model, tmp_path, evaluate=TREES, num_train_epochs=6, learning_rate=3e-2)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    for name, weight in model.named_parameters():
        assert name not in frozen or torch.equal(weight, frozen[name]), name
    assert len(trainer.optimizer.param_groups) > 1
    sentences = [row["tokens"] for row in TREES]
    found = TreePredictor(model, tokenizer()).predict(sentences)
    model.save_pretrained(tmp_path / "saved")
    if whole:
        loaded = peft.PeftModel.from_pretrained(parser(), tmp_path / "saved")
    else:
        loaded = DependencyModel.from_pretrained(tmp_path / "saved")
        assert type(loaded.encoder).__name__ == type(model.encoder).__name__
    assert TreePredictor(loaded, tokenizer()).predict(sentences) == found


def test_rows_may_be_streamed_and_read_in_workers(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from [*TREES, CROSSING]

        def __len__(self):
            return 5

    trainer = trainer_for(parser(), tmp_path, Stream(), max_steps=2, dataloader_num_workers=1)
    assert math.isfinite(trainer.train().training_loss)


# --- predictions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spanning", [False, True])
def test_predictions_have_offsets_relations_and_confidences(spanning):
    model = parser(spanning=spanning, seed=5)
    with torch.no_grad():
        model.biaffine.arc.weight *= 0.1  # so that the two decodings differ
    text = "Ann Lee met."
    for decoding in ("mode", "mbr"):
        (parsed,) = TreePredictor(model, tokenizer()).predict([text], decoding)
        assert parsed.words == ["Ann", "Lee", "met", "."]
        assert [text[start:end] for start, end in parsed.offsets] == parsed.words
        trees, logs, relations = law(model, parsed.words)
        probabilities = logs.detach().exp()

        def marginal(word, head, trees=trees, probabilities=probabilities):
            return sum(p for y, p in zip(trees, probabilities, strict=True) if y[word] == head)

        def right(tree, marginal=marginal):
            return float(sum(marginal(word, head) for word, head in enumerate(tree)))

        mode = trees[int(logs.argmax())]
        best = max(trees, key=right)
        if decoding == "mode":
            assert tuple(parsed.heads) == mode
        else:
            assert right(parsed.heads) == pytest.approx(right(best), abs=1e-5)
        for word, (head, sure) in enumerate(zip(parsed.heads, parsed.confidences, strict=True)):
            assert sure == pytest.approx(float(marginal(word, head)), abs=1e-5)
            assert parsed.relations[word] == RELATIONS[int(relations(head, word + 1).argmax())]


def test_predictions_do_not_depend_on_batches():
    model = parser(limit=16)
    sentences = [["Ann", "met", "Lee"] * 7, "", "Bob ran", [], ["Rome"], ["He", ZERO_WIDTH]]
    one = TreePredictor(model, tokenizer(), batch_size=1, stride=3).predict(sentences)
    all_ = TreePredictor(model, tokenizer(), stride=3).predict(sentences)
    assert [len(parsed.heads) for parsed in one] == [21, 0, 2, 0, 1, 2]
    for left, right in zip(one, all_, strict=True):
        assert (left.heads, left.relations) == (right.heads, right.relations)
        assert left.confidences == pytest.approx(right.confidences, abs=1e-5)
    assert TreePredictor(parser(relations=()), tokenizer()).predict([["a"]])[0].relations == []
    with pytest.raises(DataError, match="got one text"):
        TreePredictor(model, tokenizer()).predict("Ann ran")


# --- what cannot be --------------------------------------------------------------------------------------


def test_what_cannot_be(tmp_path):
    with pytest.raises(RecipeError, match="args must be DependencyArguments, got NoneType"):
        DependencyTrainer(parser())
    trainer = trainer_for(parser(), tmp_path)
    with pytest.raises(ModelError, match="expected a DependencyModel, got BertModel"):
        DependencyTrainer(encoder(), trainer.args, processing_class=tokenizer())
    with pytest.raises(DataError, match="rows to train on need 'heads' or 'annotations'"):
        trainer.compute_loss(trainer.model, trainer.data_collator([{"tokens": ["Ann"]}]))
    with pytest.raises(TemperatureError, match="sqdml needs a temperature"):
        trainer_for(parser(), tmp_path, objective="sqdml")
    with pytest.raises(DataError, match="names of relations, all different"):
        DependencyModel.from_encoder(encoder(), ["root", "root"])
    with pytest.raises(ModelError, match="pooling must be one of first, mean, last"):
        DependencyModel.from_encoder(encoder(), RELATIONS, pooling="max")


def test_rows_are_not_changed(tmp_path):
    rows = [*TREES, CROSSING]
    before = copy.deepcopy(rows)
    parser().collator(tokenizer())(rows)
    assert rows == before
