"""Captioning from files and from the built-in world.

What is read, trained, judged, refused, and gone on with.
"""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from test_crashes import broken_off_at_every_write

from captioning_runs import (
    SIZE,
    SMALL,
    TASK,
    captions_of,
    features_of,
    make_files,
    parts,
    prepared,
    recipe,
    run,
    write,
    write_json,
)
from ner_commands import refused, softq, told, well
from small_runs import CPU, contents
from softq.errors import RecipeError, RunError
from softq.formats.captions import read_captions
from softq.formats.vocabulary import END
from softq.lab.run import BEST, METRICS, RESULT, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.base import measures
from softq.lab.tasks.captioning import read_captioned
from softq.lab.tasks.sequence_task import SequenceJudge
from softq.lab.worlds import Scene, SceneWorld
from softq.metrics import (
    CAPTION_METRICS,
    CAPTION_STATISTICS,
    average_reward,
    caption_statistics,
    reference_agreement,
)
from softq.neural.target_maker import target_signature
from softq.neural.text_generator import TextGenerator
from softq.rewards import SentenceBLEU
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")

WORLD = SceneWorld()
RAML, SQDML = (["--objective", name, "--tau", 0.3] for name in ("raml", "sqdml"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--label-smoothing", 0.1, "--layers", 2, "--encoder", "vgg16-fc7"],
        [*RAML, "--no-merge", "--sampler", "near+ngram", "--neighbours", 3],
        [
            *SQDML,
            "--tie",
            "--embedding",
            16,
            "--sampler",
            "model+recombined",
            "--refresh",
            "epoch",
            "--dev-beam",
            2,
        ],
        [*SQDML, "--sampler", "near", "--candidates.size", 8, "--k", 6, "--no-lowercase"],
    ],
    ids=["ml", "pairs", "recombined", "near"],
)
def test_from_end_to_end(tmp_path, files, flags):
    flags = [*parts(files, "train", "dev", "test"), *flags]
    row = run(tmp_path, *flags)
    captioner = TextGenerator.load(tmp_path / BEST)
    assert (captioner.decoding.beam, captioner.decoding.max_words, captioner.inputs) == (
        2,
        14,
        SIZE,
    )
    assert captioner.encoder == ("vgg16-fc7" if "vgg16-fc7" in flags else "")
    for part in ("dev", "test"):
        read = read_captions(files[part])
        found = captioner.generate(np.load(files[part].with_name(f"{part}.features.npy")))
        references = [
            [captioner.vocabulary.plain(caption) for caption in several]
            for several in read.captions
        ]
        sums = caption_statistics([said.words for said in found], references).sum(0)
        for name, metric in CAPTION_METRICS.items():
            assert row[f"{part}_{name}"] == pytest.approx(float(metric(sums))), name
    assert row["test_agreement"] == pytest.approx(reference_agreement(references))
    lines = RunFolder(tmp_path).lines(METRICS)
    assert len(lines) == 2
    assert row["dev"] == max(line["dev"] for line in lines)
    assert row["test"] == row["test_average_reward"]
    assert lines[-1]["dev_perplexity"] < len(captioner.vocabulary)
    assert row["examples"] == (
        sum(len(captions_of(number)) for number in range(36)) if "--no-merge" in flags else 36
    )
    assert row["parameters"] == sum(parameter.numel() for parameter in captioner.model.parameters())
    assert "test_expected_reward" not in row
    statistics = RunFolder(tmp_path).test_counts().model(0)
    assert statistics.shape == (7, len(CAPTION_STATISTICS))
    assert float(TASK.metrics[TASK.chosen_by](statistics.sum(0))) == pytest.approx(row["test"])
    assert len(RunFolder(tmp_path).outputs()) == 7
    result = json.loads((tmp_path / RESULT).read_text())
    assert (result["task"], result["metric"], result["cells"]) == (
        "captioning",
        "average reward",
        [row],
    )
    made = recipe(*flags)
    expected = (
        f"average of {SentenceBLEU().signature}; target"
        f" {target_signature(made.objective, made.candidates)}"
    )
    assert result["signature"] == TASK.signature(made) == expected


def test_the_expected_reward_of_the_world_is_exact_and_below_the_ceiling(tmp_path):
    row = run(tmp_path)
    part = read_captioned(recipe().data).test
    found = TextGenerator.load(tmp_path / BEST).generate(part.features)
    total = highest = 0.0
    for name, said in zip(part.inputs, found, strict=True):
        captions = WORLD.outputs(Scene.from_name(name))
        number = {
            word: place for place, word in enumerate({*said.words, *" ".join(captions).split()})
        }
        pair = (
            [[[number[word] for word in said.words]]],
            [[[number[word] for word in text.split()] for text in captions]],
        )
        rewards = SentenceBLEU()(
            *(tensor for sentences in pair for tensor in Sentences.pack(sentences))
        )[0, 0].double()
        total += float(rewards @ torch.tensor(list(captions.values()), dtype=torch.float64))
        highest += WORLD.bayes(Scene.from_name(name), SentenceBLEU()).reward
    assert row["test_expected_reward"] == pytest.approx(total / 8)
    assert row["test_ceiling"] == pytest.approx(highest / 8)
    assert 0 < row["test_expected_reward"] <= row["test_ceiling"]
    assert row["examples"] == 32
    assert TextGenerator.load(tmp_path / BEST).encoder == "scenes"


@pytest.mark.parametrize("flags", [[], [*SQDML, "--max-n", 2]], ids=["ml", "sqdml"])
def test_training_makes_captions_better(tmp_path, flags):
    longer = ["--epochs", 10, "--scenes", 96, "--patience", 0, "--hidden", 32, "--embedding", 24]
    row = run(tmp_path, *longer, *flags)
    made = recipe(*longer, *flags)
    judge = SequenceJudge.of(TASK, made)
    model = made.model.build(judge.data.inputs, len(judge.data.target))
    assert row["dev"] > judge.score(model) + 0.15
    expected = measures(TASK, judge.judge(model.eval()))[0]
    assert row["test_expected_reward"] > expected["test_expected_reward"] + 0.15
    assert row["test_perplexity"] < expected["test_perplexity"] / 3
    assert row["test_ceiling"] == expected["test_ceiling"]


def test_captions_that_are_consensus_reach_the_ceiling():
    judge = SequenceJudge.of(TASK, recipe())
    part = judge.data.test
    consensus = {
        name: WORLD.bayes(Scene.from_name(name), SentenceBLEU()).text for name in part.corpus.inputs
    }
    spoken = iter(consensus.values())

    class Oracle(SequenceJudge):
        def generate(self, model, split, beam=None):
            from softq.neural.generation import GeneratedText

            if split is self.data.dev:
                return [GeneratedText("", (), 0.0)] * len(split.references)
            return [GeneratedText(text, tuple(text.split()), 0.0) for text in spoken]

    model = recipe().model.build(judge.data.inputs, len(judge.data.target)).eval()
    found = measures(TASK, Oracle(TASK, judge.recipe, judge.data).judge(model))[0]
    assert found["test_expected_reward"] == pytest.approx(found["test_ceiling"])
    assert found["dev_average_reward"] == 0


def test_dev_scores_are_of_the_quick_search(files):
    made = recipe(*parts(files, "train", "dev"), "--beam", 5)
    judge = SequenceJudge.of(TASK, made)
    model = made.model.build(SIZE, len(judge.data.target), seed=1)
    with torch.no_grad():  # something to say, and other things for other methods
        for parameter in model.parameters():
            parameter.mul_(20)
        model.output.bias[END] -= 3
    features, scores = np.load(files["dev"].with_name("dev.features.npy")), {}
    for method in ("greedy", "beam"):
        words = [said.words for said in judge.generator(model).generate(features, method=method)]
        scores[method] = float(
            average_reward(caption_statistics(words, judge.data.dev.references).sum(0))
        )
    assert judge.score(model) == pytest.approx(scores["greedy"])
    assert abs(scores["greedy"] - scores["beam"]) > 1e-4
    assert model.training  # judging leaves it as it was


def test_perplexity_is_that_of_the_captions_one_by_one(tmp_path, files):
    row = run(tmp_path, *parts(files, "train", "dev"))
    captioner, read = TextGenerator.load(tmp_path / BEST), read_captions(files["dev"])
    surprise = words = 0
    with torch.no_grad():
        for vector, several in zip(
            features_of(range(100, 109)).astype(np.float32), read.captions, strict=True
        ):
            for caption in several:
                numbers = captioner.vocabulary.encode(caption)
                surprise -= float(
                    captioner.model.log_prob(
                        (torch.from_numpy(vector).unsqueeze(0),), Sentences.pack([[numbers]])
                    )
                )
                words += len(numbers) + 1
    assert row["test_perplexity"] == pytest.approx(math.exp(surprise / words), rel=1e-4)
    assert row["dev_perplexity"] == pytest.approx(
        row["test_perplexity"], rel=1e-4
    )  # there is no test part


def test_one_caption_of_each_image_agrees_with_none(tmp_path):
    train = write(
        tmp_path / "train.tsv",
        {f"{number}.jpg": captions_of(number)[:1] for number in range(9)},
        features_of(range(9)),
    )
    row = run(tmp_path / "run", "--train", train)
    assert "test_agreement" not in row
    assert row["test_average_reward"] == pytest.approx(row["test_max_reward"])


def test_without_dev_it_is_judged_by_what_it_learnt_from(tmp_path, files):
    row = run(tmp_path, "--train", files["train"], "--dev-beam", 2)
    assert row["dev"] == pytest.approx(row["test"], rel=1e-12)
    assert row["dev"] == pytest.approx(row["dev_average_reward"], rel=1e-12)


@pytest.mark.parametrize("there", [1000, 2500])
def test_without_dev_no_more_than_a_thousand_are_captioned(tmp_path, there):
    train = write(
        tmp_path / "train.tsv",
        {f"{number}.jpg": [f"n{number}"] for number in range(there)},
        np.arange(2.0 * there).reshape(-1, 2),
    )
    found = prepared("--train", train)
    assert len(found.train) == there
    chosen = [int(image.removesuffix(".jpg")) for image in found.dev.corpus.inputs]
    assert len(chosen) == len(found.dev.examples) == 1000
    assert {after - before for before, after in itertools.pairwise(chosen)} == (
        {2, 3} if there > 1000 else {1}
    )
    assert found.dev.corpus.features.tolist() == [[2 * number, 2 * number + 1] for number in chosen]
    assert found.test is found.dev


@pytest.mark.parametrize(("precision", "products"), [("float32", "highest"), ("bf16", "high")])
def test_outputs_are_of_the_precision_of_the_recipe(
    tmp_path, files, monkeypatch, precision, products
):
    flags = [*parts(files, "train", "dev"), "--epochs", 1, "--precision", precision]
    seen, generate = [], TextGenerator.generate

    def watched(self, *args, **options):
        seen.append(torch.get_float32_matmul_precision())
        return generate(self, *args, **options)

    monkeypatch.setattr(TextGenerator, "generate", watched)
    before = torch.get_float32_matmul_precision()
    run(tmp_path, *flags)
    assert set(seen) == {products}
    assert torch.get_float32_matmul_precision() == before


# --- broken off -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoint-every", 1, *SQDML, "--sampler", "model+near", "--refresh", "epoch"],
        [*RAML, "--no-merge", "--sampler", "model+ngram", "--refresh", "step"],
    ],
    ids=["epoch", "step"],
)
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, files, flags):
    train = write(
        tmp_path / "train.tsv",
        {f"{number}.jpg": captions_of(number)[:2] for number in range(18)},
        features_of(range(18)),
    )

    def job(out):
        train_cells(
            TASK,
            [recipe("--train", train, "--dev", files["test"], *flags)],
            out,
            resume=True,
            workers=CPU,
        )

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 6


def test_a_run_does_not_go_on_with_other_features(tmp_path, files):
    images = {f"{number}.jpg": captions_of(number) for number in range(18)}
    train = write(tmp_path / "train.tsv", images, features_of(range(18)))
    flags = ["--train", train, "--dev", files["test"]]
    run(tmp_path / "run", *flags)
    (tmp_path / "run" / RESULT).unlink()  # as if it were not finished
    write(train, images, features_of(range(1, 19)))
    with pytest.raises(
        RunError, match="cannot be resumed: the training data or the vocabulary of this run differs"
    ):
        train_cells(TASK, [recipe(*flags)], tmp_path / "run", resume=True, workers=CPU)


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dev", "a.tsv"], "name the training file as well"),
        (["--train", "a", "--halve-dev"], "halve_dev takes the test part from dev"),
        (
            ["--train-features", "b"],
            "train_features are of the images in train: name that file of captions as well",
        ),
        (["--train", "a", "--dev-features", "b"], "dev_features are of the images in dev"),
        (["--train", "a", "--test-features", "b"], "test_features are of the images in test"),
        (["--tie"], "tie needs embedding = hidden, got 12 and 16"),
        ([*SQDML, "--no-merge"], "merge = false"),
        (
            [*RAML, "--no-merge", "--sampler", "recombined"],
            "sampler = recombined takes n-grams of other references",
        ),
        ([*RAML, "--temperature-scaled"], "temperature_scaled"),
    ],
)
def test_what_does_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


# --- commands ---------------------------------------------------------------------------------------------


def test_train_command(tmp_path, files):
    flags = [*SMALL, *parts(files, "train", "dev", "test"), "--device", "cpu"]
    result = told(
        softq(
            "train",
            "captioning",
            *flags,
            *SQDML,
            "--sampler",
            "near",
            "--out",
            tmp_path / "run",
            "--json",
        )
    )
    (cell,) = result["cells"]
    assert (result["task"], result["run"], cell["objective"], cell["tau"]) == (
        "captioning",
        str(tmp_path / "run"),
        "sqdml",
        0.3,
    )
    assert cell["test"] == cell["test_average_reward"]
    assert "near:of=10:size=6" in result["signature"]
    again = told(softq("train", "--resume", "--out", tmp_path / "run", "--json"))
    assert again["cells"] == [cell]
    plain = well(
        softq("train", "captioning", *flags, "--max-length", 5, "--out", tmp_path / "plain")
    )
    assert "run: " in plain
    assert "near" in well(softq("train", "captioning", *SQDML, "--sampler", "near", "--dry-run"))
    facts = told(softq("evaluate", tmp_path / "run", files["test"], "--json"))
    assert facts["average_reward"] == pytest.approx(cell["test"])


def test_sweep_command(tmp_path):
    flags = [*SMALL, "--device", "cpu", "--epochs", 1]
    command = [
        "sweep",
        "captioning",
        *flags,
        "--objective",
        "ml,raml,sqdml",
        "--tau",
        "0.2,0.4",
        "--out",
        tmp_path / "sweep",
    ]
    result = told(softq(*command, "--json"))
    assert (result["task"], result["metric"], result["cells"]) == (
        "captioning",
        "average reward",
        5,
    )
    assert {choice["objective"] for choice in result["choices"]} == {"ml", "raml", "sqdml"}
    cells = [
        RunFolder(folder.parent).result()["cells"][0]
        for folder in (tmp_path / "sweep").rglob(RESULT)
    ]
    assert sorted((cell["objective"], cell["tau"]) for cell in cells if cell["tau"]) == [
        (name, tau) for name in ("raml", "sqdml") for tau in (0.2, 0.4)
    ]
    assert all(cell["test_expected_reward"] <= cell["test_ceiling"] for cell in cells)
    assert len({cell["test_ceiling"] for cell in cells}) == 1
    shown = well(softq(*command, "--resume"))
    assert "average reward" in shown


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--train", "{none}"], ["cannot read", "none.tsv"]),
        (
            ["--train", "{short}"],
            [
                "short.features.npy: expected 2 rows, one for each image, got 1, none for image"
                " '2.jpg'"
            ],
        ),
        (
            ["--train", "{broken}"],
            ["broken.tsv, line 2: expected the name of an image, a tab and one or more captions"],
        ),
        (
            ["--train", "{good}", "--dev", "{json}"],
            ["expected images of the split 'val', got 'train'"],
        ),
        (["--train", "{good}", "--start", "{good}"], ["good.tsv is not a captioner of softq"]),
        (
            ["--sampler", "nearest", *RAML],
            [
                "sampler must be one of ngram, hamming, model, near, recombined, or several joined"
                " by +"
            ],
        ),
        ([*SQDML, "--no-merge"], ["merge = false makes one of each"]),
        (["--features", "x.npy"], ["--features"]),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, texts):
    write(tmp_path / "short.tsv", {"1.jpg": ["a dog"], "2.jpg": ["a cat"]}, features_of([1]))
    write(tmp_path / "good.tsv", {"1.jpg": ["a dog"]}, features_of([1]))
    write(tmp_path / "broken.tsv", {"1.jpg": ["a dog"]}, features_of([1])).write_text(
        "1.jpg\ta dog\n2.jpg a cat\n"
    )
    write_json(tmp_path / "all.json", {"train": [1]})
    paths = {name: tmp_path / f"{name}.tsv" for name in ("none", "short", "broken", "good")} | {
        "json": tmp_path / "all.json"
    }
    given = [str(flag).format(**paths) for flag in flags]
    refused(softq("train", "captioning", *SMALL, *given, "--out", tmp_path / "run"), *texts)
    assert not (tmp_path / "run").exists()
