"""From rows to the target of a step.

Special tokens, sources of candidates, rewards known and computed, estimators.
"""

import math
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from softq.errors import DataError, OutputError, RecipeError, RewardError
from softq.integrations.transformers import OnText
from softq.integrations.transformers.candidates import KnownRewards, StepTargets
from softq.integrations.transformers.rewards import (
    as_text_reward,
    unknown_never_matches,
    with_sources,
)
from softq.integrations.transformers.rows import RewardAugmentedCollator, as_row
from softq.integrations.transformers.step_target import add_ends
from softq.integrations.transformers.tokens import SpecialTokens, strip_specials
from softq.rewards import (
    ChrF,
    ExactMatch,
    MultiReferenceBLEU,
    NegativeEditDistance,
    NegativeHamming,
    RougeL,
    SentenceBLEU,
    TokenAccuracy,
)
from softq.sentences import Sentences
from tiny_models import (
    END,
    PAD,
    START,
    UNKNOWN,
    VOCAB,
    arguments,
    random_rows,
    step,
    text,
    tiny,
    tokenizer,
    trainer_for,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SPECIALS = {PAD, END, START}


def special(ids):
    return SpecialTokens(frozenset(ids), frozenset(ids), frozenset({END}), PAD)


def targets_of(folder, rows, *, reward=None, seed=0, drawn=(), **settings):
    """The target of rows, and for each row its texts with their weights, best first."""
    targets = StepTargets(
        arguments(folder, **settings), reward or NegativeEditDistance(), VOCAB, special(SPECIALS)
    )
    target = targets([as_row(row) for row in rows], torch.Generator().manual_seed(seed), *drawn)
    found = []
    for tokens, lengths, weights in zip(
        target.scored.tokens.tolist(),
        target.scored.lengths.tolist(),
        target.weights.tolist(),
        strict=True,
    ):
        found.append(
            {
                tuple(row[:length]): weight
                for row, length, weight in zip(tokens, lengths, weights, strict=True)
                if length >= 0
            }
        )
    return target, found


def softmax(scores, tau):
    scores = np.array(scores, dtype=np.float64) / tau
    return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()


ROW = {"input_ids": [5], "labels": [[START, 10, 11, 12, 13, END], [START, 10, 14, 13, END]]}


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
@pytest.mark.parametrize("kinds", ["ngram", "hamming", "edit", "recombined", "ngram+edit+hamming"])
def test_edits_keep_special_tokens_and_have_the_weights_of_the_paper(kinds, objective, tmp_path):
    _, (found,) = targets_of(
        tmp_path, [ROW], candidates=kinds, objective=objective, candidate_size=12, tau=2.0
    )
    assert {tuple(reference) for reference in ROW["labels"]} <= found.keys()
    assert len(found) > 2
    for words in found:
        assert words[0] == START
        assert words[-1] == END
        assert not SPECIALS & set(words[1:-1])
    contents = [list(words[1:-1]) for words in found]
    references = [reference[1:-1] for reference in ROW["labels"]]
    # [S, R]
    rewards = NegativeEditDistance()(*Sentences.pack([contents]), *Sentences.pack([references]))[
        0
    ].numpy()
    wanted = (
        softmax(rewards.mean(1), 2.0)
        if objective == "sqdml"
        else np.mean([softmax(column, 2.0) for column in rewards.T], 0)
    )
    assert list(found.values()) == pytest.approx(wanted.tolist(), rel=1e-5)


def test_special_tokens_within_a_text_are_never_touched(tmp_path):
    row = {"labels": [[10, 11, START, 12, 13, 14, END]]}
    for kinds in ("ngram", "hamming", "edit"):
        _, (found,) = targets_of(tmp_path, [row], candidates=kinds, candidate_size=40, tau=1.0)
        assert len(found) > 3
        for words in found:
            assert [word for word in words if word in SPECIALS] == [START, END]
    with pytest.raises(RecipeError, match="importance weights need references without special"):
        targets_of(tmp_path, [row], candidates="hamming", estimator="importance")


def test_ends_of_each_row(tmp_path):
    assert strip_specials([END, START], SPECIALS) == ([], ([END, START], []))
    texts = Sentences.pack([[[7, 8], [9]], [[6]]])
    made = add_ends(
        texts, [strip_specials([START, 5, 5, END], SPECIALS)[1], strip_specials([5], SPECIALS)[1]]
    )
    assert Sentences(made.tokens, made.lengths).unpack() == [
        [[START, 7, 8, END], [START, 9, END]],
        [[6]],
    ]
    rows = [{"labels": [START, 10, 11, END]}, {"labels": [20, 21, 22, END]}, {"labels": [30, 31]}]
    _, found = targets_of(tmp_path, rows)
    ends = [{(words[0] == START, words[-1] == END) for words in row} for row in found]
    assert ends == [{(True, True)}, {(False, True)}, {(False, False)}]


def test_an_unknown_word_at_an_end_is_text(tmp_path):
    """No sampler writes it or takes it away, but it belongs to its own reference alone."""
    targets = trainer_for(
        tiny("bart"), tmp_path, words=tokenizer(), candidates="ngram+edit", candidate_size=100
    ).targets
    known, unknown = [20, 21, 22, END], [10, 11, 12, UNKNOWN, END]
    for references, counts in (([known], {0}), ([unknown], {1}), ([unknown, known], {0, 1})):
        target = targets([as_row({"labels": references})], torch.Generator().manual_seed(0))
        (found,) = Sentences(*target.scored[:2]).unpack()
        assert len(found) > 20
        assert all(reference in found for reference in references)
        assert all(text[-1] == END for text in found)
        assert {text.count(UNKNOWN) for text in found} == counts


def test_an_empty_reference_is_refused_or_edited(tmp_path):
    rows = [{"labels": [END]}, {"labels": [10, 11, END]}]
    with pytest.raises(OutputError, match="reference 0 of example 0 is empty, which leaves"):
        targets_of(tmp_path, rows)
    assert (END,) in targets_of(tmp_path, rows, candidates="edit")[1][0]


OWN = {"labels": [[10, 11, END], [12, 13, END]], "candidates": [[10, 13, END], [14], [10, 11]]}


def test_candidates_of_the_dataset_are_scored_beside_the_references(tmp_path):
    _, (found,) = targets_of(tmp_path, [OWN], candidates="dataset", tau=1.0)
    # ends are those of the reference, repeats count once
    assert found.keys() == {(10, 11, END), (12, 13, END), (10, 13, END), (14, END)}
    rewards = [[0, -2], [-2, 0], [-1, -1], [-2, -2]]
    wanted = np.mean([softmax(column, 1.0) for column in zip(*rewards, strict=True)], 0)
    order = [(10, 11, END), (12, 13, END), (10, 13, END), (14, END)]
    assert [found[words] for words in order] == pytest.approx(wanted.tolist(), rel=1e-5)
    with pytest.raises(DataError, match="candidates 'dataset' needs the column 'candidates' with"):
        targets_of(tmp_path, [OWN, {"labels": [5, END]}], candidates="dataset")


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_rewards_of_the_dataset_are_used_as_they_are(objective, tmp_path):
    each = OWN | {"candidate_rewards": [[0.9, 0.1], [0.3, 0.2], [0.5, 0.7]]}
    mean = OWN | {"candidate_rewards": [0.5, 0.25, 0.6]}
    _, found = targets_of(
        tmp_path, [each, mean, OWN], candidates="dataset", objective=objective, tau=0.3
    )
    columns = [softmax(column, 0.3) for column in zip(*each["candidate_rewards"], strict=True)]
    wanted = np.mean(columns, 0) if objective == "raml" else softmax(mean["candidate_rewards"], 0.3)
    names = [(10, 13, END), (14, END), (10, 11, END)]
    # not even the reference that is not among them
    assert found[0].keys() == found[1].keys() == set(names)
    assert [found[0][name] for name in names] == pytest.approx(wanted.tolist(), rel=1e-5)
    assert [found[1][name] for name in names] == pytest.approx(
        softmax(mean["candidate_rewards"], 0.3).tolist(), rel=1e-5
    )
    assert found[2] == pytest.approx(
        targets_of(tmp_path, [OWN], candidates="dataset", objective=objective, tau=0.3)[1][0]
    )


def test_known_rewards_beside_computed_ones(tmp_path):
    row = OWN | {"candidate_rewards": [[5.0, 4.0], [-1.0, 0.0], [0.0, -2.0]]}
    target, (found,) = targets_of(
        tmp_path, [row], candidates="dataset+ngram", objective="sqdml", tau=1.0, candidate_size=3
    )
    assert (12, 13, END) in found
    # the reference: 0 and -2
    assert found[10, 13, END] / found[12, 13, END] == pytest.approx(
        math.exp(4.5 - (-1.0)), rel=1e-5
    )
    assert found[10, 11, END] / found[12, 13, END] == pytest.approx(1.0, rel=1e-5)
    assert "given+" in target.signature
    with pytest.raises(DataError, match="candidate_rewards must give one number, or one for each"):
        targets_of(
            tmp_path,
            [OWN | {"candidate_rewards": [[1.0, 2.0, 3.0], [1.0], [1.0]]}],
            candidates="dataset",
        )
    bleu = MultiReferenceBLEU()
    target, (found,) = targets_of(
        tmp_path, [row], candidates="dataset+ngram", reward=bleu, tau=1.0, candidate_size=3
    )
    assert target.signature.startswith("raml:tau=1:given+")
    assert sum(found.values()) == pytest.approx(1.0)
    assert KnownRewards(bleu, {}).bound == bleu.bound


def test_k_and_the_authors_estimator(tmp_path):
    row = OWN | {"candidates": [[word, word + 1, END] for word in range(20, 32)]}
    _, (whole,) = targets_of(tmp_path, [row], candidates="dataset", tau=2.0)
    for estimator in ("set", "paper"):
        _, rows = targets_of(
            tmp_path, [row] * 400, candidates="dataset", tau=2.0, k=5, estimator=estimator
        )
        for found in rows:
            assert len(found) == 5
            assert found.keys() >= {(10, 11, END), (12, 13, END)}
            if estimator == "paper":
                # as they are, not made to sum to one
                assert found == pytest.approx({words: whole[words] for words in found})
        if estimator == "set":
            # right on average: 3 of 12 stand for all, so the error of a mean is √3 / 20 of it; 1 in
            # 10,000 seeds would have 4.5 times that
            for words, weight in whole.items():
                assert sum(found.get(words, 0.0) for found in rows) / 400 == pytest.approx(
                    weight, rel=4.5 * 3**0.5 / 20
                )
    # more than there are
    assert len(targets_of(tmp_path, [OWN], candidates="dataset", k=50)[1][0]) == 4


def test_more_references_than_there_is_room_for(tmp_path):
    """A step takes some at random, so that others have room beside them."""
    references = [[word, word + 1, word + 2, END] for word in range(10, 15)]
    rows = [{"labels": references}] * 40
    names = set(map(tuple, references))
    for settings, count in (
        ({"objective": "ml", "candidate_size": 2}, 2),
        ({"candidate_size": 6}, 3),
        ({"candidates": "edit", "k": 4}, 2),
    ):
        _, found = targets_of(tmp_path, rows, **settings)
        taken = [names & row.keys() for row in found]
        assert {len(some) for some in taken} == {count}
        assert set.union(*taken) == names
    _, found = targets_of(tmp_path, rows[:3], objective="ml", candidate_size=2)
    assert all(list(row.values()) == [0.5, 0.5] for row in found)
    _, (found,) = targets_of(
        tmp_path, [{"labels": references, "candidates": [[30, END]]}], candidates="dataset", k=6
    )
    assert names < found.keys()  # rewards of the dataset may be given reference by reference


def test_importance_weights_of_draws(tmp_path):
    """The target over all 125 sentences of three out of five words is known.

    Specials are the others.
    """
    settings = arguments(
        tmp_path, candidates="hamming", estimator="importance", candidate_size=4000, tau=4.0
    )
    targets = StepTargets(settings, NegativeHamming(), 12, special(range(7)))
    target = targets([as_row({"labels": [[7, 8, 9, END]]})], torch.Generator().manual_seed(0))
    changed = (target.scored.tokens[0, :, :3] != torch.tensor([7, 8, 9])).sum(1)
    right = np.array([math.comb(3, n) * 4**n * math.exp(-n / 4.0) for n in range(4)])
    masses = [float(target.weights[0][changed == n].double().sum()) for n in range(4)]
    assert masses == pytest.approx((right / right.sum()).tolist(), abs=0.05)
    other = arguments(
        tmp_path, candidates="edit", estimator="importance", candidate_size=50, tau=4.0
    )
    target = StepTargets(other, NegativeEditDistance(), 12, special(range(7)))(
        [as_row({"labels": [[7, 8, 9, END]]})], torch.Generator()
    )
    assert float(target.weights.sum()) == pytest.approx(1.0)


def test_texts_of_the_model(tmp_path):
    rows = random_rows(3)
    for name in ("bart", "gpt2"):
        model = tiny(name)
        trainer = trainer_for(model, tmp_path, candidates="model", candidate_size=4, tau=1.0)
        torch.manual_seed(5)
        before = step(trainer, rows)[0]
        torch.manual_seed(5)
        assert step(trainer, rows)[0] == before
        torch.manual_seed(6)
        assert step(trainer, rows)[0] != before
        assert model.training


def made_by(trainer, row):
    """The model's texts and the target of one row."""
    seen, make = [], trainer.data_collator.make
    trainer.data_collator.make = lambda rows, drawn: (
        seen.append((drawn, make(rows, drawn))) or seen[-1][1]
    )
    torch.manual_seed(0)
    trainer.model.train()
    trainer.compute_loss(trainer.model, trainer.data_collator([row]))
    return seen[0]


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_importance_weights_of_the_models_own_texts(name, tmp_path):
    model = tiny(name, dropout=0.5)  # which is off for them
    row = {"input_ids": [8, 9], "labels": [[4, 5, END]]}
    settings = {
        "candidates": "model",
        "estimator": "importance",
        "candidate_size": 200,
        "tau": 1.0,
        "max_new_tokens": 5,
    }
    drawn, target = made_by(
        trainer_for(model, tmp_path, reward=NegativeEditDistance(), **settings), row
    )
    assert drawn.draws.tolist() == [200]
    model.eval()
    proposals = {}
    for tokens, length, log_proposal in zip(
        *(part[0].tolist() for part in (*drawn.sentences, drawn.log_proposal)), strict=True
    ):
        if length >= 0:
            # no end where there was no room for more: some models are made to end there
            assert 1 <= length <= 3
            proposals[tuple(tokens[:length])] = log_proposal
    assert len(proposals) > 2
    # the probability that Transformers' own loss gives
    for words, log_proposal in proposals.items():
        target_words = [*words, END]
        if name == "bart":
            loss = model(input_ids=torch.tensor([[8, 9]]), labels=torch.tensor([target_words])).loss
        else:
            loss = model(
                input_ids=torch.tensor([[8, 9, *target_words]]),
                labels=torch.tensor([[-100, -100, *target_words]]),
            ).loss
        assert log_proposal == pytest.approx(-float(loss.detach()) * len(target_words), abs=1e-4)
    # exp(r/τ), divided by how often a text is expected; the reference is certain
    contents = [
        words[: length - 1]
        for words, length in zip(*(part[0].tolist() for part in target.scored[:2]), strict=True)
    ]
    rewards = NegativeEditDistance()(*Sentences.pack([contents]), *Sentences.pack([[[4, 5]]]))[
        0, :, 0
    ].tolist()
    expected = [
        0.0 if words == [4, 5] else math.log(200) + proposals[tuple(words)] for words in contents
    ]
    payoffs = [reward - often for reward, often in zip(rewards, expected, strict=True)]
    assert target.weights[0].tolist() == pytest.approx(softmax(payoffs, 1.0).tolist(), rel=1e-3)


def test_where_no_text_of_the_model_is_finished_there_are_references(tmp_path):
    settings = {"candidates": "model", "estimator": "importance", "max_new_tokens": 1}
    drawn, target = made_by(
        trainer_for(tiny("t5"), tmp_path, **settings),
        {"input_ids": [8, 9], "labels": [[4, 5, END]]},
    )
    assert not drawn.present.any()
    assert target.scored.tokens.tolist() == [[[4, 5, END]]]
    assert target.weights.tolist() == [[1.0]]


# --- rewards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bleu", SentenceBLEU),
        ("rouge-l", RougeL),
        ("edit", NegativeEditDistance),
        ("hamming", NegativeHamming),
        ("accuracy", TokenAccuracy),
        ("exact", ExactMatch),
    ],
)
def test_rewards_by_name(name, kind):
    assert isinstance(as_text_reward(name, None), kind)
    made = as_text_reward(f"words:{name}", tokenizer())
    assert made.signature == f"words:{kind().signature}"
    assert made.bound == kind().bound
    assert made.pairwise == kind().pairwise


def test_rewards_of_ones_own():
    own = MultiReferenceBLEU()
    assert as_text_reward(own, None) is own
    assert not OnText(own, tokenizer()).pairwise
    for wrong, message in (
        ("blue", "reward must be one of bleu, chrf, rouge-l, edit, .* before it, got 'blue'"),
        ("words:bleu", "'words:bleu' needs a tokenizer to make text: give the trainer"),
        (7, "a name, one of softq.rewards or a function of two lists of strings, got 7"),
        (RougeL, r"got the class RougeL: give RougeL\(\)"),
    ):
        with pytest.raises(RewardError, match=message):
            as_text_reward(wrong, None)


def test_rewards_on_text_are_those_of_its_words_and_characters():
    """Against the reward on words and characters that are numbered here."""
    sacrebleu = pytest.importorskip("sacrebleu")
    words = tokenizer()
    candidates = Sentences.pack([[[10, 11, 12, END], [10, 11], []], [[20, 21, 22, 23, END]]])
    references = Sentences.pack([[[10, 11, 12]], [[20, 21, 22, 24], [20, 21]]])
    plain = [[[[4, 5, 6], [4, 5], []], [[7, 8, 9, 10]]], [[[4, 5, 6]], [[7, 8, 9, 11], [7, 8]]]]
    bleu = as_text_reward("words:bleu", words)(*candidates, *references)
    assert torch.equal(bleu, SentenceBLEU()(*Sentences.pack(plain[0]), *Sentences.pack(plain[1])))
    chrf = as_text_reward("chrf", words)(*candidates, *references)
    for b, s, r in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)]:
        said, right = (
            text(part[b][s]) for part, s in ((candidates.unpack(), s), (references.unpack(), r))
        )
        assert float(chrf[b, s, r]) == pytest.approx(
            sacrebleu.CHRF(eps_smoothing=False).sentence_score(said, [right]).score / 100, abs=1e-9
        )
    assert OnText(ChrF(), words, "characters").signature.startswith("characters:chrf")
    assert as_text_reward("words:exact", words)(*candidates, *references)[:, 0, 0].tolist() == [
        1.0,
        0.0,
    ]


def test_a_function_of_strings_sees_each_pair_once_in_a_call(tmp_path):
    calls = []

    def overlap(candidates, references):
        calls.append(list(zip(candidates, references, strict=True)))
        return [len(set(a.split()) & set(b.split())) / len(b.split()) for a, b in calls[-1]]

    rows = [
        {
            "input_ids": [5],
            "labels": [[10, 11, END], [12, 13, END]],
            "candidates": [[10, 13], [14, END]],
        }
    ]
    trainer = trainer_for(
        tiny("t5"),
        tmp_path,
        reward=overlap,
        words=tokenizer(),
        candidates="dataset",
        objective="sqdml",
        tau=0.5,
    )
    target = trainer.data_collator.make([as_row(row) for row in rows])
    assert len(calls) == 1
    wanted = {
        (text(a), text(b))
        for a in ([10, 11], [12, 13], [10, 13], [14])
        for b in ([10, 11], [12, 13])
    }
    assert set(calls[0]) == wanted
    assert target.weights[0].tolist() == pytest.approx(
        softmax([0.5, 0.5, 0.5, 0.0], 0.5).tolist(), rel=1e-5
    )


def by_name(candidates, references, *, sources=()): ...


@pytest.mark.parametrize(
    "wrong",
    [
        lambda candidates, references, *, sources: [],
        lambda candidates, references, src: [],
        lambda sources, references: [],
        lambda sources, candidates, references: [],
        lambda candidates, references, weight=1, sources=None: [],
    ],
)
def test_a_function_of_other_arguments_is_refused_at_once(wrong):
    with pytest.raises(RewardError, match="if asked for by this name, sources, in this order, got"):
        as_text_reward(wrong, tokenizer())


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [],
        lambda a, b, more=1: [],
        lambda *both: [],
        lambda a, b, **more: [],
        by_name,
        max,
    ],
)
def test_functions_of_two_lists_are_given_no_sources(function):
    reward = as_text_reward(function, tokenizer())
    assert reward.function is function
    assert with_sources(reward, [[5]]) is reward


def test_a_text_that_is_judged_twice_has_the_mean(tmp_path):
    row = {
        "labels": [9, END],
        "candidates": [[5, 6, END], [5, 6], [7, 8, END]],
        "candidate_rewards": [1.0, 0.0, 0.5],
    }
    _, (found,) = targets_of(tmp_path, [row], candidates="dataset", tau=1.0)
    assert found == {(5, 6, END): pytest.approx(0.5), (7, 8, END): pytest.approx(0.5)}
    with pytest.raises(DataError, match="must be equally many each time"):
        targets_of(
            tmp_path,
            [row | {"labels": [[9], [8]], "candidate_rewards": [[1.0], [0.0, 1.0], [0.5]]}],
            candidates="dataset",
        )


def test_a_function_that_takes_sources_is_given_them(tmp_path):
    calls = []

    def faithful(candidates, references, sources):
        calls.append(set(zip(candidates, references, sources, strict=True)))
        return [
            len(set(a.split()) & set(c.split()))
            for a, _, c in zip(candidates, references, sources, strict=True)
        ]

    rows = [
        {
            "input_ids": [10, 11, END],
            "labels": [[20, END], [21, END]],
            "candidates": [[10, 20], [11, 10]],
        },
        {"input_ids": [12, END], "labels": [[20, END]], "candidates": [[12]]},
    ]
    trainer = trainer_for(
        tiny("t5"),
        tmp_path,
        reward=faithful,
        words=tokenizer(),
        candidates="dataset",
        objective="sqdml",
        tau=0.5,
        evaluate=rows,
    )
    target = trainer.data_collator.make([as_row(row) for row in rows])
    (seen,) = calls
    assert {
        (text(a), text(b), text([10, 11]))
        for a in ([10, 20], [11, 10], [20], [21])
        for b in ([20], [21])
    } < seen
    assert {(text(a), text([20]), text([12])) for a in ([12], [20])} < seen
    assert sorted(target.weights[0].tolist()) == pytest.approx(
        sorted(softmax([1.0, 2.0, 0.0, 0.0], 0.5).tolist()), rel=1e-5
    )
    trainer.evaluate()
    assert {source for _, _, source in calls[-1]} == {text([10, 11]), text([12])}
    assert (
        trainer.reward.signature
        == "callable:test_a_function_that_takes_sources_is_given_them.<locals>.faithful"
    )
    with pytest.raises(RewardError, match="takes sources, which must be text: expected rows with"):
        trainer.data_collator.make([as_row({"labels": [20, END], "candidates": [[12]]})])


def same_length(candidates, references):
    return [float(len(a) == len(b)) for a, b in zip(candidates, references, strict=True)]


def test_a_collator_can_be_sent_to_a_worker(tmp_path):
    trainer = trainer_for(tiny("t5"), tmp_path, reward=same_length, words=tokenizer())
    rows = random_rows(2)
    trainer.data_collator(rows)["softq_target"].result()  # a thread that is not sent along
    trainer.data_collator.epoch = 3
    sent = ForkingPickler.loads(bytes(ForkingPickler.dumps(trainer.data_collator)))
    assert isinstance(sent, RewardAugmentedCollator)
    assert sent.epoch == 3
    mine, theirs = (
        each.make([as_row(row) for row in rows]) for each in (trainer.data_collator, sent)
    )
    assert torch.equal(mine.scored.tokens, theirs.scored.tokens)
    trainer.data_collator.epoch = 4
    assert sent.epoch == 4  # it goes on


def test_unknown_tokens_match_none(tmp_path):
    """On token ids as on text; rewards on decoded text and of the user's own stay as they are."""
    trainer = trainer_for(
        tiny("t5"), tmp_path, rows=random_rows(2), words=tokenizer(), objective="raml", tau=0.5
    )
    sentence = Sentences.pack([[[10, UNKNOWN, 11, 12, 13]]])
    assert float(trainer.reward(*sentence, *sentence)) < 0.9
    assert float(SentenceBLEU()(*sentence, *sentence)) == pytest.approx(1.0)
    assert trainer.reward.signature == SentenceBLEU().signature
    words = tokenizer()
    on_text = as_text_reward("words:bleu", words)
    assert unknown_never_matches(on_text, words, {PAD, END}) is on_text
    plain = SentenceBLEU()
    assert unknown_never_matches(plain, None, {PAD}) is plain
    assert unknown_never_matches(plain, words, {PAD, words.unk_token_id}) is plain
