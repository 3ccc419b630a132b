"""Dependency parsing from files: crossing arcs, several annotators, and what is refused."""

import dataclasses
import json

import pytest
import torch

from parsing_runs import TASK, crosses, make_files, recipe, right_heads, run, write
from small_runs import CPU
from softq.errors import DataError, RecipeError
from softq.formats.conllu import read_conllu
from softq.lab.run import RESULT
from softq.lab.tasks.parsing import prepare, read_corpora
from softq.linear import DependencyParser
from softq.linear.parser_training import ParserObjective
from softq.linear.parsing import Trees
from softq.metrics import ATTACHMENT_METRICS

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


# --- crossing arcs and several annotators -----------------------------------------------------------------


def test_crossing_trees_are_lifted_or_skipped_and_counted(tmp_path, files):
    sentences = read_conllu(files["train"])
    others = read_conllu(files["other"])
    crossing = [crosses(sentence.heads) for sentence in sentences]
    either = [crosses(a.heads) or crosses(b.heads) for a, b in zip(sentences, others, strict=True)]
    trees = sum(crossing) + sum(crosses(sentence.heads) for sentence in others)
    assert 0 < sum(crossing) < sum(either) < min(60, trees + 1)
    one, two = (
        ["--train", files["train"]],
        ["--train", files["train"], "--references", files["other"]],
    )
    for flags, lifted, skipped in [
        (one, sum(crossing), 0),
        (two, trees, 0),
        ([*one, "--nonprojective", "skip"], 0, sum(crossing)),
        ([*two, "--nonprojective", "skip"], 0, sum(either)),
        ([*two, "--spanning"], 0, 0),
        ([*two, "--spanning", "--nonprojective", "skip"], 0, 0),
    ]:
        prepared = prepare(recipe(*flags))
        assert (prepared.lifted, prepared.skipped, len(prepared.treebank)) == (
            lifted,
            skipped,
            60 - skipped,
        )
        assert prepared.words == sum(len(sentence.forms) for sentence in prepared.dev.sentences)
        if "--spanning" not in flags:
            assert not prepared.treebank.possible.crossing().any()
    kept = [
        sentence for sentence, crosses_ in zip(sentences, crossing, strict=True) if not crosses_
    ]
    left = prepare(recipe(*one, "--nonprojective", "skip"))
    assert list(left.dev.sentences) == kept
    assert [tuple(heads[0]) for heads in left.treebank.trees.heads] == [
        sentence.heads for sentence in kept
    ]
    row = run(tmp_path, *one, "--nonprojective", "skip")
    assert (row["skipped"], row["lifted"], row["sentences"]) == (sum(crossing), 0, len(kept))
    only = write(
        tmp_path / "only.conllu",
        [sentence for sentence, c in zip(sentences, crossing, strict=True) if c],
    )
    with pytest.raises(
        DataError,
        match=(
            r"only.conllu: expected a training sentence without crossing arcs, got none among \d+;"
            r" choose nonpr"
        ),
    ):
        run(tmp_path / "none", "--train", only, "--nonprojective", "skip")


def test_references_are_trees_of_the_same_sentences(tmp_path, files):
    sentences, others = read_conllu(files["train"]), read_conllu(files["other"])
    trees = read_corpora(
        recipe("--train", files["train"], "--references", f"{files['other']},{files['train']}").data
    ).trees
    for a, b, heads, relations, weights in zip(sentences, others, *trees, strict=True):
        assert heads.tolist() == [list(a.heads), list(b.heads), list(a.heads)]
        assert relations == [a.relations, b.relations, a.relations]
        assert weights.tolist() == [1, 1, 1]
    short = write(tmp_path / "short.conllu", others[:-1])
    with pytest.raises(
        DataError, match=r"short.conllu: expected the 60 sentences of .*train.conllu, got 59"
    ):
        prepare(recipe("--train", files["train"], "--references", short))
    swapped = write(tmp_path / "swapped.conllu", [others[0], others[2], others[1], *others[3:]])
    line = 2 + len(others[0].forms) + 1
    with pytest.raises(
        DataError,
        match=(
            rf"swapped.conllu, line {line} \(sentence 3\): expected the sentence of .*train.conllu,"
            rf" line {line} \(sentence 2\)"
        ),
    ):
        prepare(recipe("--train", files["train"], "--references", swapped))


def test_a_relation_or_tag_that_training_does_not_have_is_fine(tmp_path, files):
    text = "1\tZork\tzork\tX\t_\t_\t0\troot\t_\t_\n2\tqux\tqux\tX\t_\t_\t1\tdep:odd\t_\t_\n\n"
    (tmp_path / "dev.conllu").write_text(text)
    row = run(tmp_path / "run", "--train", files["train"], "--dev", tmp_path / "dev.conllu")
    sentences = read_conllu(tmp_path / "dev.conllu")
    parser = DependencyParser.load(tmp_path / "run").parser_
    (parse,) = parses = parser.parse(sentences, "mode")
    assert row["dev"] == right_heads(sentences, parses)
    assert set(parse.relations) <= {
        name for sentence in read_conllu(files["train"]) for name in sentence.relations
    }
    assert row["dev_las"] == (
        0.5 if parse == ((0, 1), ("root", parse.relations[1])) else 0
    )  # "dep" cannot be right


def test_relations_of_another_scheme_have_no_clas(tmp_path, files):
    """JSON has no NaN: what is not known is left out of the row."""
    shouted = {}
    for name in ("train", "dev"):
        sentences = read_conllu(files[name])[:10]
        trees = [
            (sentence.heads, tuple(map(str.upper, sentence.relations))) for sentence in sentences
        ]
        shouted[name] = write(tmp_path / f"{name}.conllu", sentences, trees)
    row = run(tmp_path / "run", "--train", shouted["train"], "--dev", shouted["dev"])
    assert json.loads((tmp_path / "run" / RESULT).read_text())["cells"] == [row]
    left_out = {
        f"{part}_{name}" for part in ("dev", "test") for name in ATTACHMENT_METRICS
    } - row.keys()
    assert left_out == {"dev_clas", "test_clas"}
    assert row["dev_las"] > 0


def test_the_kl_of_raml_is_the_mean_of_its_components(files):
    raml = ["--objective", "raml", "--tau", 0.5]
    made = recipe("--train", files["train"], "--references", files["other"], *raml)
    bank, learner = prepare(made).treebank, TASK.learner([made], CPU)
    weights = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0))

    def kl(possible):
        objective = ParserObjective(
            dataclasses.replace(bank, possible=possible), learner._estimator.settings()
        )
        objective(weights)
        return objective.kl

    alone = [
        Trees.single(
            [heads[who] for heads in bank.possible.heads],
            [names[who] for names in bank.possible.relations],
        )
        for who in (0, 1)
    ]
    assert kl(bank.possible) == pytest.approx(sum(map(kl, alone)) / 2, rel=1e-5)
    assert abs(kl(alone[0]) - kl(alone[1])) > 1  # two numbers, of which the mean is neither


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["dev", "test"])
def test_files_without_the_columns_of_training_are_named(tmp_path, files, part):
    bare = [
        dataclasses.replace(sentence, upos=("_",) * len(sentence.upos), lines=())
        for sentence in read_conllu(files[part])
    ]
    paths = {**files, part: write(tmp_path / "bare.conllu", bare)}
    flags = [text for name in ("train", "dev", "test") for text in (f"--{name}", paths[name])]
    with pytest.raises(
        DataError,
        match=(
            r"bare.conllu: expected words with UPOS or XPOS, as in .*train.conllu, got _ for every"
            r" word"
        ),
    ):
        run(tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"bare.conllu: expected words with UPOS or XPOS"):
        prepare(recipe("--train", files["train"], "--dev", paths[part], "--halve-dev"))
    words = ["--templates", "head.word,dep.word", "--relation-templates", "dep.word"]
    assert len(prepare(recipe(*flags, *words)).dev.sentences) == len(read_conllu(files["dev"]))
    one = write(
        tmp_path / "one.conllu", [*bare, read_conllu(files[part])[0]]
    )  # a single tag is enough to be of the kind
    for halved in ([], ["--halve-dev"]):
        prepare(recipe("--train", files["train"], "--dev", one, *halved))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t.conllu: .*no sentences"),
        ("1\tHi\thi\tINTJ\t_\t_\t2\troot\t_\t_\n\n", r"t.conllu, line 1.*: expected"),
        ("1\tHi\thi\tINTJ\t_\t_\t_\t_\t_\t_\n\n", r"t.conllu, line 1.*: expected a tree"),
    ],
)
def test_broken_files_are_named_and_leave_nothing_behind(tmp_path, files, text, message):
    (tmp_path / "t.conllu").write_text(text)
    for flags in (
        ["--train", tmp_path / "t.conllu"],
        ["--train", files["train"], "--dev", tmp_path / "t.conllu"],
    ):
        with pytest.raises(DataError, match=message):
            run(tmp_path / "out", *flags)
        assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"cannot read .*none"):
        run(tmp_path / "out", "--train", tmp_path / "none.conllu")
    one = write(tmp_path / "one.conllu", read_conllu(files["dev"])[:1])
    with pytest.raises(
        DataError, match=r"one.conllu: expected two sentences or more to halve, got 1"
    ):
        prepare(recipe("--train", files["train"], "--dev", one, "--halve-dev"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--halve-dev"], "halve_dev takes the test part from dev"),
        (["--dev", "b"], "name the training file as well"),
        (["--references", "b"], "references are of files"),
        (["--nonprojective", "drop"], "'lift', 'skip', got 'drop'"),
        (["--decoding", "viterbi"], "'mode', 'mbr', got 'viterbi'"),
        (["--c2", "inf"], "c2 must be at least 0 and finite, got inf"),
        (["--c2", -1], "c2 must be at least 0"),
        (
            ["--method", "lbfgs", "--patience", 2],
            "lbfgs goes on until it has converged: leave patience = 0",
        ),
        (
            ["--objective", "raml", "--tau", 1, "--temperature-scaled"],
            "parsing has no temperature_scaled",
        ),
        (["--objective", "raml"], "tau"),
    ],
)
def test_recipes_that_do_not_fit_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


def test_templates_are_checked_before_anything_is_written(tmp_path, files):
    with pytest.raises(RecipeError, match=r"head\.wrod"):
        run(tmp_path / "out", "--train", files["train"], "--templates", "head.wrod")
    assert not (tmp_path / "out").exists()


def test_one_process_trains():
    class Two:
        size = 2

    with pytest.raises(
        RecipeError, match="parsing trains in one process with several threads, got 2 processes"
    ):
        TASK.learner([recipe()], Two())


def test_a_file_that_changes_is_read_again(tmp_path, files):
    paths = {name: tmp_path / f"{name}.conllu" for name in ("train", "other")}
    for path in paths.values():
        write(path, read_conllu(files["train"])[:5])
    made = recipe("--train", paths["train"], "--references", paths["other"])
    first = prepare(made)
    assert prepare(made) is first
    write(
        paths["other"],
        read_conllu(files["other"])[:5],
        [(s.heads, ("dep",) * len(s.heads)) for s in read_conllu(files["other"])[:5]],
    )
    assert "dep" in prepare(made).treebank.relations
    assert "dep" not in first.treebank.relations
