"""Neural parsers in runs: what they learn toward, how they resume, how they are scored and used."""

import json

import numpy as np
import pytest
import torch
from test_crashes import broken_off_at_every_write

import softq
from ner_commands import evaluated, refused, well
from ner_commands import softq as command
from parsing_runs import TASK, make_files, parts
from small_runs import CPU, contents
from softq.errors import DataError, RecipeError
from softq.formats.conllu import read_conllu
from softq.lab.recipe import build, parse_flags
from softq.lab.run import RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.base import best_models
from softq.lab.tasks.parsing import learnable
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.metrics import attachment_statistics, las, uas
from softq.neural import BiaffineParser
from softq.targets import target_of

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    *["--model", "neural", "--word-size", "12", "--tag-size", "8", "--character-size", "4"],
    *["--filters", "4", "--hidden", "16", "--layers", "1", "--arc-size", "16"],
    *["--relation-size", "8", "--dropout", "0.1", "--input-dropout", "0.1"],
    *["--learning-rate", "0.02", "--batch-size", "8"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def recipe(*flags):
    return build(ParsingRecipe, parse_flags(ParsingRecipe, [*TINY, *map(str, flags)]))


def run(out, *flags, **options):
    return train_cells(TASK, [recipe(*flags)], out, workers=CPU, **options)["cells"][0]


@pytest.mark.parametrize(
    "flags", [["ml"], ["raml", "--tau", 0.3], ["sqdml", "--tau", 0.3, "--spanning"]]
)
def test_a_run_learns_and_its_scores_are_those_of_its_trees(tmp_path, files, flags):
    row = run(
        tmp_path, *parts(files, "train", "dev", "test"), "--epochs", 10, "--objective", *flags
    )
    parser = BiaffineParser.from_tensors(best_models(RunFolder(tmp_path)))
    assert parser.spanning is ("--spanning" in flags)
    for part in ("dev", "test"):
        gold = read_conllu(files[part])
        found = parser.parse(gold)
        sums = attachment_statistics(
            gold, [one.heads for one in found], [one.relations for one in found]
        ).sum(0)
        assert row[part] == row[f"{part}_uas"] == float(uas(sums))
        assert row[f"{part}_las"] == float(las(sums))
    assert row["dev"] > 0.4
    assert row["dev_las"] > 0.3
    assert (row["lifted"] > 0) is ("--spanning" not in flags)
    kls = [line["kl"] for line in RunFolder(tmp_path).lines("metrics.jsonl")]
    assert kls[-1] < kls[0] * 0.7


@pytest.mark.parametrize("objective", [["ml"], ["raml", "--tau", 0.4], ["sqdml", "--tau", 0.4]])
def test_the_loss_of_a_batch_is_that_of_its_sentences(files, objective):
    flags = ["--dropout", 0, "--input-dropout", 0, "--objective", *objective]
    wanted = recipe(*parts(files, "train"), "--references", files["other"], *flags)
    learner = TASK.learner([wanted], CPU)
    parser, losses = learner.parser.train(), learner._losses
    parser.encoder.rare.fill_(False)
    generator = torch.Generator().manual_seed(0)
    for biaffine in (parser.biaffine.arc, parser.biaffine.relation):
        torch.nn.init.normal_(biaffine.weight, std=0.3, generator=generator)
    known, names = learnable(wanted.data, False), parser.vocabulary.relations
    for number in (0, 4):
        total = 0.0
        for i in losses.sentences[number].tolist():
            tree, views = parser([known.sentences[i]])
            both = known.possible.heads[i]
            refs = torch.zeros(1, 2, tree.scores.shape[1] - 1, dtype=torch.int64)
            refs[0, :, : both.shape[1]] = torch.from_numpy(both)
            target = target_of(wanted.objective.name, tree, refs, wanted.objective.tau)
            total += float(softq.cross_entropy(target, tree).sum().detach())
            for r in range(2):
                scores = parser.relation_scores(views, refs[:, r])[0].log_softmax(-1).detach()
                for word, (head, was) in enumerate(
                    zip(both[r], known.trees.heads[i][r], strict=True)
                ):
                    if head == was:
                        name = known.trees.relations[i][r][word]
                        total -= 0.5 * float(scores[word, names.index(name)])
        assert float(losses(number).detach()) == pytest.approx(total, rel=1e-4)


def test_steps_take_about_so_many_words_and_their_gradient_is_the_mean_of_words(files):
    wanted = recipe(*parts(files, "train"), "--batch-size", 0, "--batch-words", 60)
    learner, known = TASK.learner([wanted], CPU), learnable(wanted.data, False)
    lengths = [len(one.forms) for one in known.sentences]
    sizes = [sum(lengths[i] for i in batch.tolist()) for batch in learner._losses.sentences]
    assert sum(sizes) == sum(lengths)
    assert all(abs(size - 60) <= max(lengths) for size in sizes)
    parser, losses = learner.parser.train(), learner._losses
    parser.zero_grad()
    torch.manual_seed(0)
    (losses(2) / sizes[2]).backward()
    wanted = {name: p.grad.clone() for name, p in parser.named_parameters()}
    parser.zero_grad()
    torch.manual_seed(0)
    learner._sweep(2)
    for name, parameter in parser.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], msg=name)


@pytest.mark.usefixtures("no_events")
def test_a_run_that_is_broken_off_ends_the_same(tmp_path, files):
    flags = ["--epochs", 2, "--batch-size", 20, "--checkpoint-every", 2, "--objective", "raml"]
    flags += [*parts(files, "train", "dev"), "--tau", 0.3]

    def job(out):
        run(out, *flags, resume=True)

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 8


def test_commands_take_a_neural_parser_as_any_other(tmp_path, files):
    words = sorted({word.lower() for one in read_conllu(files["train"]) for word in one.forms})
    random = np.random.default_rng(0)
    np.save(tmp_path / "v.npy", random.normal(size=(len(words), 10)).astype(np.float16))
    (tmp_path / "v.words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    flags = [*TINY, "--word-size", 0, "--vectors", tmp_path / "v.npy", "--epochs", 2]
    out, data = tmp_path / "run", parts(files, "train", "dev", "test")
    done = command("train", "parsing", *flags, *data, "--decoding", "mbr", "--out", out, "--json")
    (cell,) = json.loads(done.stdout)["cells"]
    assert evaluated(out, files["test"])["uas"] == pytest.approx(cell["test"], abs=1e-9)
    parser = BiaffineParser.load(out)
    assert parser.settings.word_size == 10
    (tmp_path / "parsed.conllu").write_text(well(command("predict", out, files["test"])), "utf-8")
    found = read_conllu(tmp_path / "parsed.conllu")
    parses = parser.parse(read_conllu(files["test"]))
    assert [(one.heads, one.relations) for one in found] == [
        (one.heads, one.relations) for one in parses
    ]
    assert "p=0." in well(command("predict", out, files["test"], "--probabilities"))
    bare = tmp_path / "bare.txt"
    bare.write_text("so it goes\n", encoding="utf-8")
    refused(command("predict", out, bare), "needs parts of speech (UPOS or XPOS)")


def test_files_to_be_judged_by_have_the_tags_of_the_training_file(tmp_path, files):
    bare = []
    for line in files["dev"].read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        if len(columns) == 10:
            columns[3] = columns[4] = "_"
        bare.append("\t".join(columns))
    path = tmp_path / "bare.conllu"
    path.write_text("\n".join([*bare, ""]), encoding="utf-8")
    with pytest.raises(DataError, match="expected words with UPOS or XPOS"):
        TASK.learner([recipe(*parts(files, "train"), "--dev", path)], CPU)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "linear"], "vectors, hidden, dropout and the other keys of network"),
        (["--c2", 2], "method, relation_learning_rate, c2, iterations, tolerance and memory"),
        (["--batch-words", 100], "batch_words is of a neural parser, in the place of batch_size"),
        (["--bits", 12], "templates and the other keys of features are of linear parsers"),
    ],
)
def test_keys_that_do_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


def test_what_depends_on_the_model_is_filled_in():
    neural, linear = recipe("--learning-rate", 0), ParsingRecipe()
    assert (neural.optimizer.learning_rate, neural.training.epochs) == (0.002, 40)
    assert (linear.optimizer.learning_rate, linear.training.epochs) == (0.1, 6)
    assert (neural.training.batch_size, neural.training.batch_words) == (8, 0)
    assert (linear.training.batch_size, linear.training.batch_words) == (32, 0)
    by_words = recipe("--batch-size", 0).training
    assert (by_words.batch_size, by_words.batch_words) == (0, 4000)
    assert (neural.decoding, linear.decoding) == ("mbr", "mode")
    assert recipe("--decoding", "mode").decoding == "mode"
