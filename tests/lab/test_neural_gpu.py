"""Neural taggers and parsers on a GPU: recorded, eager and CPU steps agree, interrupted runs end alike."""

from __future__ import annotations

import pytest
import torch
from test_ner_neural import TINY as TINY_TAGGER
from test_parsing_neural import TINY as TINY_PARSER

import ner_runs
import parsing_runs
from small_runs import CPU
from softq.lab.loop import NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.recipe import build, parse_flags

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
GPU = Workers(torch.device("cuda"))
KINDS = {
    "tagger": (ner_runs, TINY_TAGGER, ["--objective", "raml", "--tau", "0.3"]),
    "tagger without neighbours": (ner_runs, TINY_TAGGER, ["--no-crf"]),
    "tagger that forbids": (ner_runs, TINY_TAGGER, ["--constraints", "model"]),
    "parser": (parsing_runs, TINY_PARSER, ["--objective", "sqdml", "--tau", "0.3"]),
    "spanning parser": (parsing_runs, TINY_PARSER, ["--spanning"]),
    "parser by words": (parsing_runs, TINY_PARSER, ["--batch-size", "0", "--batch-words", "90"]),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return {
        module: module.make_files(tmp_path_factory.mktemp(module.__name__))
        for module in (ner_runs, parsing_runs)
    }


def begin(files, kind, workers=GPU, *flags):
    module, tiny, own = KINDS[kind]
    recipe = module.TASK.recipe_type
    given = [*tiny, "--epochs", 4, *own, *module.parts(files[module], "train", "dev"), *flags]
    return module.TASK.learner([build(recipe, parse_flags(recipe, [*map(str, given)]))], workers)


def telling(learner):
    """It scores trees from the first step on, and takes no known word for an unknown one."""
    learner._module.encoder.rare.fill_(False)
    generator = torch.Generator().manual_seed(0)
    for name, weight in learner._module.named_parameters():
        if name in ("biaffine.arc.weight", "biaffine.relation.weight"):
            with torch.no_grad():
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return learner


def losses(learner, epochs=3):
    found = []
    for epoch in range(epochs):
        learner.train(epoch, 0, learner.steps, [True])
        found += learner.end_epoch([True])["loss"]
        assert 0 <= learner.evaluate([True])[0] <= 1
    return torch.tensor(found)


@kinds
def test_recorded_eager_and_cpu_steps_agree(files, kind):
    quiet = ["--dropout", 0] + (["--input-dropout", 0] if "parser" in kind else [])
    expected = losses(telling(begin(files, kind, CPU, *quiet)))
    for flags in ([], ["--no-graphs"]):
        learner = telling(begin(files, kind, GPU, *quiet, *flags))
        assert learner._descent.graphs == (not flags)
        # products on a GPU are in tf32
        torch.testing.assert_close(losses(learner), expected, rtol=2e-2, atol=0)


@kinds
def test_recorded_dropout_is_that_of_eager_steps_and_differs_between_them(files, kind):
    recorded, eager = (losses(begin(files, kind, GPU, *flags)) for flags in ([], ["--no-graphs"]))
    torch.testing.assert_close(recorded, eager, rtol=1e-2, atol=0)
    learner = telling(begin(files, kind))
    learner._highest = [0.0]
    seen = losses(learner)
    assert len(set(seen.tolist())) == len(seen)  # the same parameters, other dropout


@kinds
def test_an_interrupted_run_ends_alike(files, kind):
    whole, broken = (begin(files, kind) for _ in range(2))
    for epoch in range(2):
        whole.train(epoch, 0, whole.steps, [True])
    broken.train(0, 0, broken.steps, [True])
    broken.train(1, 0, 2, [True])
    state = {name: value.cpu().clone() for name, value in broken.state().items()}
    broken = begin(files, kind)
    broken.load_state(state)
    broken.train(1, 2, broken.steps, [True])
    found = broken.state()
    for name, value in whole.state().items():
        assert torch.equal(value.cpu(), found[name].cpu()), name


def test_a_state_may_be_loaded_when_steps_were_recorded(files):
    learner, other = (begin(files, "tagger") for _ in range(2))
    learner.train(0, 0, 3, [True])
    state = {name: value.cpu().clone() for name, value in learner.state().items()}
    other.train(0, 0, 5, [True])
    other.load_state(state)
    for each in (learner, other):
        each.train(0, 3, each.steps, [True])
    found = other.state()
    for name, value in learner.state().items():
        assert torch.equal(value.cpu(), found[name].cpu()), name


@pytest.mark.parametrize("flags", [[], ["--no-graphs"]], ids=["recorded", "eager"])
def test_nothing_is_learnt_from_a_bad_batch_or_after_it(files, flags):
    poisoned, until_then = (begin(files, "tagger", GPU, *flags) for _ in range(2))
    number = int(poisoned._order(0)[3])
    expected = poisoned._losses._expected[number]
    poisoned._losses._expected[number] = expected._replace(labels=expected.labels * torch.inf)
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 3 the loss is") as raised:
        poisoned.train(0, 0, poisoned.steps, [True])
    assert torch.equal(raised.value.batch["sentences"], poisoned._losses.sentences[number])
    until_then.train(0, 0, 3, [True])
    for mine, other in zip(
        poisoned._module.parameters(), until_then._module.parameters(), strict=True
    ):
        assert torch.equal(mine, other)


def test_sentences_beyond_the_kernel_of_spanning_trees_are_not_recorded(files, tmp_path):
    text = files[parsing_runs]["train"].read_text(encoding="utf-8")
    words = [f"{i}\tword\t_\tNOUN\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, 81)]
    path = tmp_path / "long.conllu"
    path.write_text(text + "".join([*words, "\n"]), encoding="utf-8")
    learner = begin(files, "spanning parser", GPU, "--train", path, "--batch-size", 4)
    assert learner._eager == {0}  # batches come from the longest on
    assert bool(losses(learner).isfinite().all())
    assert set(learner._descent._sweeps) == set(range(1, learner.steps))


@kinds
def test_predictions_are_those_of_the_cpu(files, kind):
    """In float64, whose rounding decides between no two labels or trees."""
    learner = begin(files, kind)
    losses(learner, 1)
    model = learner._module.double()
    found = learner._evaluate_split("dev")
    model.cpu()
    expected = learner._evaluate_split("dev")
    assert found.outputs == expected.outputs
