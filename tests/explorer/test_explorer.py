"""The numbers of `softq explore` against the targets, curves and theory of the library.

What it refuses, and in which words.
"""

import contextlib
import itertools
import math
import random
from typing import get_args

import pytest
import torch

import oracle
import softq
from softq import theory
from softq.cli.kinds.sentences import MBR_REWARDS
from softq.errors import DataError, SoftqError
from softq.explorer import charts, classes, sentences
from softq.explorer.classes import ClassStudy, ClassTable, parse_probabilities, parse_table
from softq.explorer.sentences import SentenceStudy, SettingError, parse_references
from softq.neural import recipe
from softq.rewards import SentenceBLEU, named_reward
from softq.rewards.names import REWARDS, SHORT_NAMES, RewardName
from softq.sentences import Sentences
from softq.temperature import CandidateCurve

pytestmark = pytest.mark.usefixtures("one_thread")

DOGS = parse_references(sentences.EXAMPLE)
SAMPLERS = ["ngram", "hamming", "edit", "recombined"]


def study_of(examples=DOGS, **changes):
    return SentenceStudy(examples, **({"size": 40} | changes))


# --- sentences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("reward", ["bleu", "edit", "accuracy"])
def test_weights_are_those_of_the_targets(sampler, reward):
    study = study_of(sampler=sampler, reward=reward)
    anew = named_reward(reward, study.words)  # computes each reward again
    for tau, example in itertools.product((0.1, 1.5), range(len(DOGS))):
        rows = study.rows(example, tau)
        for name in ("raml", "sqdml"):
            target = getattr(softq, name)(study.candidates, study.references, tau, anew)
            expected = [float(target.weights[example, row.number]) for row in rows]
            assert [getattr(row, name) for row in rows] == pytest.approx(expected, rel=1e-12)
            assert math.fsum(expected) == pytest.approx(1.0)
        references = [" ".join(row.words) for row in rows if row.is_reference]
        assert sorted(references) == sorted(map(" ".join, DOGS[example]))  # each once
        assert len({tuple(row.words) for row in rows}) == len(rows)


@pytest.mark.parametrize("example", [0, 1])
def test_weights_are_those_of_the_equations(example):
    """Against plain Python, with the mean reward.

    The second input has fewer references and candidates than there is room for.
    """
    study = study_of()
    there, count = study.counted[example].nonzero().flatten(), len(DOGS[example])
    rewards = SentenceBLEU()(*study.candidates.sentences, *study.references)[example]
    table = rewards[there, :count].T.tolist()
    weights = [1 / count] * count
    expected = {name: getattr(oracle, name)(table, weights, 0.3) for name in ("raml", "sqdml")}
    place = {number: i for i, number in enumerate(there.tolist())}
    rows = study.rows(example, 0.3, sort="reward")
    assert len(rows) == len(place) == 40
    for row in rows:
        i = place[row.number]
        assert row.reward == pytest.approx(math.fsum(one[i] for one in table) / count)
        assert (row.raml, row.sqdml) == pytest.approx((expected["raml"][i], expected["sqdml"][i]))
    assert [row.reward for row in rows] == sorted((row.reward for row in rows), reverse=True)


@pytest.mark.parametrize("sort", ["raml", "sqdml"])
def test_the_heaviest_come_first(sort):
    study = study_of()
    weights = [getattr(row, sort) for row in study.rows(0, 0.2, sort)]
    assert weights == sorted(weights, reverse=True)
    assert study.rows(0, 0.2, sort, most=5) == study.rows(0, 0.2, sort)[:5]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_curves_are_those_of_the_library(sampler):
    study = study_of(sampler=sampler)
    for name in ("raml", "sqdml"):
        curve = CandidateCurve(study.candidates, study.references, SentenceBLEU(), objective=name)
        for step in (0, 30, 80):
            assert study.curves[name][step] == pytest.approx(curve.at(sentences.TAUS[step]))
        assert study.at(0.7)[name] == pytest.approx(curve.at(0.7))
        suggested = study.suggest(0.4)[name]
        assert suggested == pytest.approx(curve.suggest(0.4))
        assert study.at(suggested)[name].reference_mass == pytest.approx(0.4, rel=1e-6)


def test_one_reference_makes_them_one():
    study = study_of(parse_references("a small dog runs across the wet sand"))
    for row in study.rows(0, 0.2):
        assert row.raml == pytest.approx(row.sqdml)
    assert study.suggest(0.5)["raml"] == pytest.approx(study.suggest(0.5)["sqdml"])


def test_a_mass_that_no_temperature_leaves():
    study = study_of(reward="exact")
    assert "no temperature leaves a mass of 0.01" in study.suggest(0.01)["raml"]


def test_seeds_and_words():
    same, other = study_of(seed=3), study_of(seed=4)
    assert torch.equal(same.candidates.tokens, study_of(seed=3).candidates.tokens)
    assert not torch.equal(same.candidates.tokens, other.candidates.tokens)
    for more in ([], ["zebra"]):
        rows = study_of(more_words=more, size=300).rows(0, 1.0)
        assert ("zebra" in {word for row in rows for word in row.words}) == bool(more)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_marks_rebuild_both_sentences(sampler):
    """Without what is new, the pieces are the closest reference.

    Without what is gone, the candidate.
    """
    study = study_of(sampler=sampler)
    for row in study.rows(0, 1.0):
        pieces = study.pieces(0, row)
        assert [word for word, mark in pieces if mark != "-"] == row.words
        reference = [word for word, mark in pieces if mark != "+"]
        closest = min(oracle.edit_distance(one, row.words) for one in DOGS[0])
        assert oracle.edit_distance(reference, row.words) == closest
        assert reference in DOGS[0]
        assert row.is_reference == all(mark == " " for _, mark in pieces)


def test_the_same_rewards_everywhere():
    assert list(RewardName) == list(REWARDS)
    assert {*get_args(recipe.RewardName)} < {*REWARDS}
    assert {SHORT_NAMES.get(name, name) for name in MBR_REWARDS} < {*REWARDS}


def test_rewards_by_name():
    scored = Sentences.pack([[[0, 1, 2]]]), Sentences.pack([[[0, 1, 3]]])
    words = ["a", "b", "c", "d"]
    values = {name: float(named_reward(name, words)(*scored[0], *scored[1])) for name in RewardName}
    assert values["edit"] == values["hamming"] == -1.0
    assert values["exact"] == 0.0
    assert values["accuracy"] == 2.0
    assert values["rouge-l"] == pytest.approx(2 / 3)
    assert 0.0 < values["chrf"] < 1.0
    assert 0.0 < values["bleu"] < 1.0


@pytest.mark.parametrize(
    ("changes", "setting", "text"),
    [
        ({"size": 3}, "size", "at least 4, for the 3 references"),
        ({"size": 10_001}, "size", "at most 10000 each for 2 inputs, got 10001"),
        ({"sampler": "recombined", "examples": [[["a", "dog"]]]}, "sampler", "several references"),
        ({"examples": [[["dog", "dog"]]]}, "more_words", "two different words"),
    ],
)
def test_settings_that_cannot_be(changes, setting, text):
    with pytest.raises(SettingError, match=text) as caught:
        study_of(**changes)
    assert caught.value.setting == setting


@pytest.mark.parametrize("text", ["", " \n\t\n  "])
def test_no_references(text):
    with pytest.raises(DataError, match="at least one sentence, got none"):
        parse_references(text)


def test_references_as_text_and_as_files(tmp_path):
    examples = parse_references("a b\tc d\n\n\n e  f \n")
    assert examples == [[["a", "b"], ["c", "d"]], [["e", "f"]]]
    assert parse_references(sentences.write_references(examples)) == examples
    path = tmp_path / "refs.tsv"
    path.write_text("a b\tc d\ne f\n")
    assert sentences.load_references(path) == examples
    path.write_text("one two\n" * 250)
    assert len(sentences.load_references(path)) == sentences.MOST_INPUTS
    path.write_text("w " * 101)
    with pytest.raises(
        DataError, match=r"refs.tsv, line 1: expected at most 100 words in a sentence, got 101"
    ):
        sentences.load_references(path)
    with pytest.raises(
        DataError, match="line 2: expected at most 100 words in a sentence, got 101"
    ):
        parse_references("a\n" + "w " * 101)


def test_words_are_text_in_the_table():
    study = study_of(parse_references("<b>bold</b> & <script>alert(1)</script> x"), size=5)
    view = {"example": 0, "tau": 0.1, "sort": "raml"}
    html = charts.render("candidates", study=study, **view)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "more" not in html
    assert "and 15 more" in charts.render("candidates", study=study_of(), **view)


# --- classes --------------------------------------------------------------------------------------------

TABLE = [[0.0, -2.0, -30.0], [-1.0, 0.0, -12.0], [-6.0, -5.0, 0.0]]
COSTS = "0 2 30\n1 0 12\n6 5 0"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (COSTS, ("0", "1", "2")),
        (COSTS.replace(" ", "\t"), ("0", "1", "2")),
        (COSTS.replace(" ", " , "), ("0", "1", "2")),
        ("a b c\n" + COSTS, ("a", "b", "c")),
        ("a 0 2 30\n\nb 1 0 12\nc 6 5 0\n", ("a", "b", "c")),
        (" a b c\na 0 2 30\nb 1 0 12\nc 6 5 0", ("a", "b", "c")),
        ("cost,well,a flu,c\nwell,0,2,30\na flu,1,0,12\nc,6,5,0,", ("well", "a flu", "c")),
    ],
)
def test_tables(text, labels):
    table = parse_table(text, "costs")
    assert table.labels == labels
    assert table.rewards.tolist() == TABLE
    assert parse_table(text).rewards.tolist() == [[0.0 - value for value in row] for row in TABLE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got none; paste a table"),
        ("a b c", "a row of numbers for each class, got none"),
        ("1 2\n3 nan", "line 2, column 2: expected a number of at most 1e\\+12, got 'nan'"),
        ("1 2\n1e999 4", "line 2, column 1: expected a number of at most"),
        ("1 2\n3 x", "line 2, column 2: expected a number .*, got 'x'"),
        ("1 2\n3", "line 2: expected 2 numbers, one for each of the 2 rows, got 1"),
        ("1 2 3\n4 5 6", "line 1: expected 2 numbers"),
        ("1", "2 to 20 classes, got 1"),
        ("\n".join(["0 " * 21] * 21), "2 to 20 classes, got 21"),
        ("a b c\n1 2\n3 4", None),
        ("a\n1 2\n3 4", "2 names above the 2 columns, got 1"),
        ("a b\nc 1 2\nd 3 4", "the same names above and in front, got a, b and c, d"),
        ("a a\n1 2\n3 4", "2 different names, got a, a"),
    ],
)
def test_bad_tables(text, message):
    if message is None:  # a corner over nothing
        assert parse_table(text).labels == ("b", "c")
        return
    with pytest.raises(DataError, match=message):
        parse_table(text)


def test_fractions_in_tables():
    assert parse_table("1/4 0\n0 -1/2").rewards.tolist() == [[0.25, 0.0], [0.0, -0.5]]
    with pytest.raises(DataError, match=r"line 1, column 1: .*, got '1/0'"):
        parse_table("1/0 0\n0 1")


def test_probabilities():
    assert parse_probabilities("1/3, 1/3 1/3", 3).tolist() == pytest.approx([1 / 3] * 3)
    for text, message in {
        "0.5 0.4": "sum to one, got a sum of 0.9",
        "1": "expected 2 probabilities, one for each class, got 1",
        "": "expected 2 probabilities, one for each class, got 0",
        "nan 1": "got 'nan'",
        "-0.5 1.5": "from 0 to 1, such as 0.25 or 1/4, got '-0.5'",
        "x 1": "such as 0.25 or 1/4, got 'x'",
        "1/0 1": "got '1/0'",
    }.items():
        with pytest.raises(DataError, match=message):
            parse_probabilities(text, 2)


def random_study(size, seed, **changes):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(size, size, generator=generator, dtype=torch.float64)
    p = torch.rand(size, generator=generator, dtype=torch.float64)
    table = ClassTable(tuple(map(str, range(size))), rewards + 2 * torch.eye(size).double())
    return ClassStudy(table, p / p.sum(), **changes)


@pytest.mark.parametrize("tau", [0.2, 1.0, 30.0])
def test_points_are_those_of_the_theory(tau):
    study = random_study(4, 0)
    point = study.at(tau)
    p, rewards = study.p, study.table.rewards
    assert torch.equal(point.q, theory.softmax_q(p, rewards, tau))
    assert torch.equal(point.q_prime, theory.q_prime(p, rewards, tau))
    moved = rewards - rewards.min()
    table = theory.theory_table(theory.Problem(p[None], p[None], moved), [tau])
    assert point.row.kl == pytest.approx(float(theory.kl_q_qprime(p, rewards, tau)))
    assert point.row[:6] == pytest.approx(table.rows[0][:6])
    assert study.bounds([tau]) == [point.row]
    assert point.expected.tolist() == pytest.approx((rewards @ p).tolist())
    for rule, scores in {"ml": p, "raml": point.q_prime, "bayes": point.expected}.items():
        assert point.decisions[rule] == str(int(scores.argmax()))
    names = ("kl", "mean_kl", "hoeffding", "closed_form", "theorem1")
    bounds = [getattr(point.row, name) for name in names]
    assert all(less <= more + 1e-12 for less, more in itertools.pairwise(bounds))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("rule", ["ml", "raml", "bayes"])
def test_regions_hold_what_is_decided_so(size, rule):
    """Every point lies in the region of its decision, and regions fill the whole."""
    study, tau = random_study(size, 1), 0.6
    regions = study.regions(rule, tau)
    corners = len(study.chosen)
    draw = random.Random(0)
    for region in regions:
        for _ in range(20):
            weights = [draw.random() + 1e-3 for _ in region.corners]
            places = torch.tensor(region.corners, dtype=torch.float64)
            shares = torch.tensor(weights, dtype=torch.float64) @ places / sum(weights)
            p = study.p.clone()
            p[:corners] = study.mass * shares
            scores = {
                "ml": p,
                "raml": theory.q_prime(p, study.table.rewards, tau),
                "bayes": study.table.rewards @ p,
            }[rule]
            assert int(scores.argmax()) == region.decision
    assert math.fsum(region.size for region in regions) == pytest.approx(1.0)


def between(study, count, seed=0):
    """Inputs between the classes that are drawn, uniformly."""
    shares = torch.distributions.Dirichlet(torch.ones(len(study.chosen)).double())
    torch.manual_seed(seed)
    p = study.p.expand(count, -1).clone()
    p[:, list(study.chosen)] = study.mass * shares.sample((count,))
    return p


@pytest.mark.parametrize("size", [2, 3, 5])
def test_means_over_regions_are_those_of_the_theory(size):
    """Exact values against 200,000 inputs at random, whose means miss by more than 5 deviations less than once in a million."""
    study, tau, count = random_study(size, 2), 0.8, 200_000
    p, rewards = between(study, count), study.table.rewards
    table = theory.theory_table(theory.Problem(p, p, rewards), [tau])
    spread = 5 * float(rewards.max() - rewards.min()) / math.sqrt(count)
    assert study.mean_reward("raml", tau) == pytest.approx(table.rows[0].reward_raml, abs=spread)
    assert study.mean_reward("bayes", tau) == pytest.approx(table.reward_bayes, abs=spread)
    assert study.mean_reward("ml", tau) == pytest.approx(table.reward_ml, abs=spread)
    same = theory.q_prime(p, rewards, tau).argmax(-1) == theory.bayes_rule(p, rewards)
    same = same.double().mean()
    assert study.agreement("raml", tau) == pytest.approx(float(same), abs=2.5 / math.sqrt(count))
    assert study.agreement("bayes", tau) == pytest.approx(1.0)


def test_limits_of_the_temperature():
    """RAML decides as likelihood in the cold, where each class is best for itself, and as the Bayes rule in the heat."""
    p = parse_probabilities(classes.EXAMPLE_PROBABILITIES, 3)
    study = ClassStudy(parse_table(classes.EXAMPLE, "costs"), p)
    assert study.mean_reward("raml", 0.02) == pytest.approx(study.mean_reward("ml", 1.0))
    assert study.agreement("raml", 1e6) == pytest.approx(1.0, abs=1e-4)
    assert study.at(0.02).row.kl == pytest.approx(study.limit, rel=1e-6)
    assert study.agreement("raml", 1e8) == pytest.approx(1.0, abs=1e-3)  # the hottest
    assert study.mean_reward("raml", 1e8) <= study.mean_reward("bayes", 1.0) + 1e-9


def test_decisions_that_are_the_same_count_once():
    study = ClassStudy(parse_table("1 0\n1 0"), parse_probabilities("0.5 0.5", 2))
    assert [region.decision for region in study.regions("bayes", 1.0)] == [0]
    assert study.mean_reward("bayes", 1.0) == pytest.approx(0.5)
    assert study.agreement("raml", 1.0) == pytest.approx(1.0)
    flat = parse_table("2 2\n2 2")
    assert flat.range == 1.0
    assert ClassStudy(flat, parse_probabilities("1 0", 2)).at(1.0).row.kl == 0.0


def test_a_turn_is_where_costs_say():
    """A missed fraud costs ten times a false alarm, so fraud is the decision from 1/11 on."""
    p = parse_probabilities("0.9 0.1", 2)
    study = ClassStudy(parse_table("fair fraud\n0 10\n1 0", "costs"), p)
    fair, fraud = study.regions("bayes", 1.0)
    assert max(share for _, share in fair.corners) == pytest.approx(1 / 11)
    assert min(share for _, share in fraud.corners) == pytest.approx(1 / 11)
    assert ">0.091<" in html_of(study)


@pytest.mark.parametrize("chosen", [(0,), (0, 1, 2, 3), (1, 1, 2)])
def test_classes_to_draw(chosen):
    with pytest.raises(SettingError, match="two or three different classes"):
        random_study(5, 0, chosen=chosen)


def test_nothing_to_draw():
    with pytest.raises(SettingError, match="some probability between them"):
        ClassStudy(parse_table(COSTS), parse_probabilities("1 0 0", 3), (1, 2))
    assert ClassStudy(parse_table(COSTS), parse_probabilities("1 0 0", 3), (0, 2)).mass == 1.0


def test_theorem2():
    """The example of docs/math.md, where the sharp bound is met.

    And each assumption that can fail.
    """
    p = parse_probabilities("0.9 0.05 0.05", 3)
    rewards = 0.5 + 0.5 * torch.eye(3, dtype=torch.float64)
    assert theory.theorem2_constants(p, rewards) == pytest.approx((-math.log(0.1), 0.5))
    study = ClassStudy(ClassTable(("a", "b", "c"), rewards), p)
    assert study.theorem2 == pytest.approx(theory.theorem2_bounds(-math.log(0.1), 0.5))
    assert study.theorem2.printed < study.limit == pytest.approx(study.theorem2.sharp)
    assert 'data-fact="sharp">0.1054<' in html_of(study)
    heavy = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]])
    for text, table, reason in [
        ("0.5 0.5 0", torch.ones(3, 3), "reward gap"),
        ("0.6 0.4 0", torch.diag(torch.tensor([1.0, 0.5, 0.5])), "falls by all of R"),
        ("1 0 0", rewards, "neither certain nor impossible"),
        ("0.5 0.3 0.2", heavy, "tail is too heavy"),
    ]:
        table = ClassTable(("a", "b", "c"), table.double())
        study = ClassStudy(table, parse_probabilities(text, 3))
        assert reason in study.theorem2
        assert "promises nothing" in html_of(study)


def html_of(study, tau=1.0):
    """The templates of classes, as the page fills them in."""
    return "".join(charts.render(name, study=study, tau=tau) for name in ("classes", "bounds"))


@pytest.mark.parametrize("table", ["<b>,&\n0,1\n1,0", "<b>,&,c\n0,1,1\n1,0,1\n1,1,0"])
def test_names_are_text_in_pictures(table):
    table = parse_table(table)
    p = torch.full((len(table.labels),), 1 / len(table.labels), dtype=torch.float64)
    html = html_of(ClassStudy(table, p))
    assert html.count("<figure>") == 3
    assert "<b>," not in html
    assert "<b></" not in html
    assert "&lt;b&gt;" in html


def test_charts_leave_out_what_a_logarithm_cannot_show():
    lines = [charts.Line("a", "--raml", [(0.1, 0.0), (1.0, 2.0), (10.0, math.inf)], mark=3.0)]
    (logarithmic,) = charts.chart("t", lines, 1.0, logarithmic=True)["series"]
    (plain,) = charts.chart("t", lines, 1.0)["series"]
    assert logarithmic["data"] == [[1.0, 2.0]]
    assert plain["data"] == [[0.1, 0.0], [1.0, 2.0]]
    assert [mark["xAxis"] for mark in plain["markLine"]["data"]] == [3.0, 1.0]


def test_every_refusal_is_softqs_own():
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choice("01 .,\t\n-eEanix/") for _ in range(draw.randrange(30)))
        for parse in (parse_table, parse_references, lambda one: parse_probabilities(one, 2)):
            with contextlib.suppress(SoftqError):
                parse(text)
