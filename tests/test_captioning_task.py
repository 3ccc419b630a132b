"""Captioning from files and from the built-in world: what is read, trained, judged, refused, and gone on with."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch

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
from softq.data.captions import read_captions, read_features
from softq.data.scene_grammar import Scene
from softq.data.scene_pictures import render, scene_features
from softq.data.scene_world import SceneWorld
from softq.data.vocabulary import END, SPECIALS, UNKNOWN
from softq.errors import DataError, RecipeError, RunError
from softq.evaluate import CAPTION_METRICS, CAPTION_STATISTICS, average_reward, caption_statistics, reference_agreement
from softq.generation.candidates import target_signature
from softq.generation.captioner import Captioner
from softq.rewards import SentenceBLEU
from softq.run import BEST, METRICS, RESULT, RunFolder
from softq.sentences import Sentences
from softq.tasks import train_cells
from softq.tasks.base import best_models, cell_recipe, describe_cell
from softq.tasks.captioning_data import read_parts
from softq.tasks.captioning_judge import CaptioningJudge
from test_crashes import broken_off_at_every_write

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
        [*SQDML, "--tie", "--embedding", 16, "--sampler", "model+recombined", "--refresh", "epoch", "--dev-beam", 2],
        [*SQDML, "--sampler", "near", "--candidates.size", 8, "--k", 6, "--no-lowercase"],
    ],
    ids=["ml", "pairs", "recombined", "near"],
)
def test_from_end_to_end(tmp_path, files, flags):
    flags = [*parts(files, "train", "dev", "test"), *flags]
    row = run(tmp_path, *flags)
    captioner = Captioner.load(tmp_path / BEST)
    assert (captioner.decoding.beam, captioner.decoding.max_words, captioner.features) == (2, 14, SIZE)
    assert captioner.encoder == ("vgg16-fc7" if "vgg16-fc7" in flags else "")
    for part in ("dev", "test"):
        read = read_captions(files[part])
        found = captioner.caption(np.load(files[part].with_name(f"{part}.features.npy")))
        references = [[captioner.vocabulary.plain(caption) for caption in several] for several in read.captions]
        sums = caption_statistics([said.words for said in found], references).sum(0)
        for name, metric in CAPTION_METRICS.items():
            assert row[f"{part}_{name}"] == pytest.approx(float(metric(sums))), name
    assert row["test_agreement"] == pytest.approx(reference_agreement(references))
    lines = RunFolder(tmp_path).lines(METRICS)
    assert len(lines) == 2
    assert row["dev"] == max(line["dev"] for line in lines)
    assert row["test"] == row["test_average_reward"]
    assert lines[-1]["dev_perplexity"] < len(captioner.vocabulary)
    assert row["examples"] == (sum(len(captions_of(number)) for number in range(36)) if "--no-merge" in flags else 36)
    assert row["parameters"] == sum(parameter.numel() for parameter in captioner.model.parameters())
    assert "test_expected_reward" not in row
    statistics = TASK.test_statistics([recipe(*flags)], best_models(RunFolder(tmp_path)), [0])
    assert statistics.shape == (1, 7, len(CAPTION_STATISTICS))
    assert float(TASK.metric_of(statistics.sum(1))) == pytest.approx(row["test"])
    result = json.loads((tmp_path / RESULT).read_text())
    assert (result["task"], result["metric"], result["cells"]) == ("captioning", "average reward", [row])
    made = recipe(*flags)
    expected = f"average of {SentenceBLEU().signature}; target {target_signature(made.objective, made.candidates)}"
    assert result["signature"] == TASK.signature(made) == expected


def test_the_expected_reward_of_the_world_is_exact_and_below_the_ceiling(tmp_path):
    row = run(tmp_path)
    part = read_parts(recipe().data).test
    found = Captioner.load(tmp_path / BEST).caption(part.features)
    total = highest = 0.0
    for name, said in zip(part.captions.images, found, strict=True):
        captions = WORLD.captions(Scene.from_name(name))
        number = {word: place for place, word in enumerate({*said.words, *" ".join(captions).split()})}
        pair = [[[number[word] for word in said.words]]], [[[number[word] for word in text.split()] for text in captions]]
        rewards = SentenceBLEU()(*(tensor for sentences in pair for tensor in Sentences.pack(sentences)))[0, 0].double()
        total += float(rewards @ torch.tensor(list(captions.values()), dtype=torch.float64))
        highest += WORLD.bayes(Scene.from_name(name), SentenceBLEU()).reward
    assert row["test_expected_reward"] == pytest.approx(total / 8)
    assert row["test_ceiling"] == pytest.approx(highest / 8)
    assert 0 < row["test_expected_reward"] <= row["test_ceiling"]
    assert row["examples"] == 32
    assert Captioner.load(tmp_path / BEST).encoder == "scenes"


@pytest.mark.parametrize("flags", [[], [*SQDML, "--max-n", 2]], ids=["ml", "sqdml"])
def test_training_makes_captions_better(tmp_path, flags):
    longer = ["--epochs", 10, "--scenes", 96, "--patience", 0, "--hidden", 32, "--embedding", 24]
    row = run(tmp_path, *longer, *flags)
    made = recipe(*longer, *flags)
    judge = CaptioningJudge.of(made)
    model = made.model.build(judge.prepared.features, len(judge.prepared.vocabulary))
    assert row["dev"] > judge.score(model) + 0.15
    expected = judge.measures(model.eval())
    assert row["test_expected_reward"] > expected["test_expected_reward"] + 0.15
    assert row["test_perplexity"] < expected["test_perplexity"] / 3
    assert row["test_ceiling"] == expected["test_ceiling"]


def test_captions_that_are_consensus_reach_the_ceiling():
    judge = CaptioningJudge.of(recipe())
    part = judge.prepared.test
    consensus = {name: WORLD.bayes(Scene.from_name(name), SentenceBLEU()).text for name in part.captioned.captions.images}
    spoken = iter(consensus.values())

    class Oracle(CaptioningJudge):
        def caption(self, model, part, beam=None):
            from softq.generation.search import Said

            if part is self.prepared.dev:
                return [Said("", (), 0.0)] * len(part.references)
            return [Said(text, tuple(text.split()), 0.0) for text in spoken]

    model = recipe().model.build(judge.prepared.features, len(judge.prepared.vocabulary)).eval()
    found = Oracle(judge.recipe, judge.prepared).measures(model)
    assert found["test_expected_reward"] == pytest.approx(found["test_ceiling"])
    assert found["dev_average_reward"] == 0


def test_dev_scores_are_of_the_quick_search(files):
    made = recipe(*parts(files, "train", "dev"), "--beam", 5)
    judge = CaptioningJudge.of(made)
    model = made.model.build(SIZE, len(judge.prepared.vocabulary), seed=1)
    with torch.no_grad():  # something to say, and other things for other methods
        for parameter in model.parameters():
            parameter.mul_(20)
        model.output.bias[END] -= 3
    features, scores = np.load(files["dev"].with_name("dev.features.npy")), {}
    for method in ("greedy", "beam"):
        words = [said.words for said in judge.captioner(model).caption(features, method=method)]
        scores[method] = float(average_reward(caption_statistics(words, judge.prepared.dev.references).sum(0)))
    assert judge.score(model) == pytest.approx(scores["greedy"])
    assert abs(scores["greedy"] - scores["beam"]) > 1e-4
    assert model.training  # judging leaves it as it was


def test_perplexity_is_that_of_the_captions_one_by_one(tmp_path, files):
    row = run(tmp_path, *parts(files, "train", "dev"))
    captioner, read = Captioner.load(tmp_path / BEST), read_captions(files["dev"])
    surprise = words = 0
    with torch.no_grad():
        for vector, several in zip(features_of(range(100, 109)).astype(np.float32), read.captions, strict=True):
            for caption in several:
                numbers = captioner.vocabulary.encode(caption)
                surprise -= float(captioner.model.log_prob((torch.from_numpy(vector).unsqueeze(0),), Sentences.pack([[numbers]])))
                words += len(numbers) + 1
    assert row["test_perplexity"] == pytest.approx(math.exp(surprise / words), rel=1e-4)
    assert row["dev_perplexity"] == pytest.approx(row["test_perplexity"], rel=1e-4)  # there is no test part


def test_one_caption_of_each_image_agrees_with_none(tmp_path):
    train = write(tmp_path / "train.tsv", {f"{number}.jpg": captions_of(number)[:1] for number in range(9)}, features_of(range(9)))
    row = run(tmp_path / "run", "--train", train)
    assert "test_agreement" not in row
    assert row["test_average_reward"] == pytest.approx(row["test_max_reward"])


def test_without_dev_it_is_judged_by_what_it_learnt_from(tmp_path, files):
    row = run(tmp_path, "--train", files["train"], "--dev-beam", 2)
    assert row["dev"] == row["test"] == row["dev_average_reward"]


@pytest.mark.parametrize("there", [1000, 2500])
def test_without_dev_no_more_than_a_thousand_are_captioned(tmp_path, there):
    train = write(
        tmp_path / "train.tsv", {f"{number}.jpg": [f"n{number}"] for number in range(there)}, np.arange(2.0 * there).reshape(-1, 2)
    )
    found = prepared("--train", train)
    assert len(found.train) == there
    chosen = [int(image.removesuffix(".jpg")) for image in found.dev.captioned.captions.images]
    assert len(chosen) == len(found.dev.examples) == 1000
    assert {after - before for before, after in itertools.pairwise(chosen)} == ({2, 3} if there > 1000 else {1})
    assert found.dev.captioned.features.tolist() == [[2 * number, 2 * number + 1] for number in chosen]
    assert found.test is found.dev


@pytest.mark.parametrize(("precision", "products"), [("float32", "highest"), ("bf16", "high")])
def test_statistics_are_of_the_precision_of_the_recipe(tmp_path, files, monkeypatch, precision, products):
    flags = [*parts(files, "train", "dev"), "--epochs", 1, "--precision", precision]
    run(tmp_path, *flags)
    seen, caption = [], Captioner.caption

    def watched(self, *args, **options):
        seen.append(torch.get_float32_matmul_precision())
        return caption(self, *args, **options)

    monkeypatch.setattr(Captioner, "caption", watched)
    before = torch.get_float32_matmul_precision()
    TASK.test_statistics([recipe(*flags)], best_models(RunFolder(tmp_path)), [0])
    assert seen == [products]
    assert torch.get_float32_matmul_precision() == before


# --- files ------------------------------------------------------------------------------------------------


def inputs_of(examples):
    return examples.take_inputs(torch.arange(len(examples)))[0].tolist()


def test_features_beside_captions_or_named(tmp_path, files):
    beside = read_parts(recipe("--train", files["train"]).data).train
    np.save(tmp_path / "mine.npy", features_of(range(36))[::-1])
    (tmp_path / "mine.names.txt").write_text("".join(f"folder/{number}.jpg\n" for number in reversed(range(36))))
    named = read_parts(recipe("--train", files["train"], "--train-features", tmp_path / "mine.npy").data).train
    assert beside.captions == named.captions
    assert np.array_equal(beside.features, named.features)
    assert np.array_equal(beside.features, features_of(range(36)))
    found = prepared("--train", files["train"], "--dev", files["dev"], "--dev-features", files["dev"].with_name("dev.features.npy"))
    assert inputs_of(found.train) == features_of(range(36)).astype(np.float32).tolist()
    assert found.dev.references[1] == ["a cat on the right .".split(), "the cat , right".split(), "there is a cat on the right".split()]
    assert found.features == SIZE


def test_splits_of_one_file(tmp_path):
    both = write_json(tmp_path / "all.json", {"train": range(8), "val": range(20, 24), "restval": range(30, 32), "test": range(40, 43)})
    found = read_parts(recipe("--train", both, "--dev", both, "--test", both).data)
    expected = ([*range(8), 30, 31], range(20, 24), range(40, 43))
    for part, numbers in zip(found, expected, strict=True):
        assert part.captions.images == [f"{number}.jpg" for number in numbers]
        assert np.array_equal(part.features, features_of(numbers))
        assert part.captions.captions == [captions_of(number) for number in numbers]
    assert read_parts(recipe("--train", both).data).dev is None
    assert run(tmp_path / "run", "--train", both, "--dev", both, "--halve-dev", "--epochs", 1)["examples"] == 10


def test_halves_of_dev(tmp_path, files):
    found = read_parts(recipe("--train", files["train"], "--dev", files["dev"], "--halve-dev").data)
    assert found.dev.captions.images == [f"{number}.jpg" for number in range(100, 109, 2)]
    assert found.test.captions.images == [f"{number}.jpg" for number in range(101, 109, 2)]
    assert np.array_equal(found.test.features, features_of(range(101, 109, 2)))
    one = write(tmp_path / "one.tsv", {"1.jpg": ["a dog"]}, features_of([1]))
    with pytest.raises(DataError, match=r"one.tsv: expected two .* to halve, got 1"):
        prepared("--train", files["train"], "--dev", one, "--halve-dev")


def test_pairs_share_the_features_of_their_image(tmp_path):
    train = write(
        tmp_path / "train.tsv", {"1.jpg": ["a dog", "dog"], "2.jpg": ["a cat"], "3.jpg": ["no", "cat", "no"]}, features_of([1, 2, 3])
    )
    merged, pairs = prepared("--train", train), prepared("--train", train, "--no-merge")
    assert merged.train is merged.images
    assert [len(several) for several in merged.train.take_references(torch.arange(3)).unpack()] == [2, 1, 3]
    assert (len(pairs.train), len(pairs.images)) == (6, 3)
    assert pairs.train.inputs.table is pairs.images.inputs.table  # not a copy for each caption
    assert pairs.train.inputs.rows.tolist() == [0, 0, 1, 2, 2, 2]
    vectors = features_of([1, 2, 3]).astype(np.float32).tolist()
    assert inputs_of(pairs.train) == [vectors[row] for row in (0, 0, 1, 2, 2, 2)]
    said = [pairs.vocabulary.decode(words) for (words,) in pairs.train.take_references(torch.arange(6)).unpack()]
    assert said == ["a dog", "dog", "a cat", "no", "cat", "no"]
    assert len(pairs.dev.examples) == 3  # judged by images in any case


def test_captions_that_are_too_long_are_left_out_of_training_alone(tmp_path):
    images = {"1.jpg": ["a", "a b c"], "2.jpg": ["d e f"], "3.jpg": ["f g"]}
    train, dev = (write(tmp_path / f"{name}.tsv", images, features_of([1, 2, 3])) for name in ("train", "dev"))
    flags = ["--train", train, "--dev", dev, "--max-length", 2]
    for more in ([], ["--no-merge"]):
        found = prepared(*flags, *more)
        assert found.left_out == 2
        assert inputs_of(found.train) == features_of([1, 3]).astype(np.float32).tolist()
        assert found.train.take_references(torch.arange(2)).lengths.tolist() == [[1], [2]]
        assert [len(several) for several in found.dev.references] == [2, 1, 1]
    assert run(tmp_path / "run", *flags)["left_out"] == 2
    with pytest.raises(DataError, match=r"train.tsv: expected a caption of at most max_length = 1 words, got none"):
        prepared("--train", write(train, {"1.jpg": ["a b"]}, features_of([1])), "--max-length", 1)
    with pytest.raises(DataError, match="the built-in world: expected a caption of at most max_length = 2 words"):
        prepared("--max-length", 2)


def test_words_are_of_the_training_captions(tmp_path):
    train = write(tmp_path / "train.tsv", {"1.jpg": ["A Dog, a dog", "a cat"]}, features_of([1]))
    dev = write(tmp_path / "dev.tsv", {"1.jpg": ["A horse"]}, features_of([1]))
    found = prepared("--train", train, "--dev", dev)
    assert len(found.vocabulary) == SPECIALS + 4  # a dog , cat
    assert found.dev.references == [[["a", "horse"]]]  # words of references stay what they are
    assert found.dev.examples.take_references(torch.arange(1)).unpack() == [[[found.vocabulary.encode("a")[0], UNKNOWN]]]
    assert len(prepared("--train", train, "--no-lowercase").vocabulary) == SPECIALS + 6
    assert len(prepared("--train", train, "--min-freq", 2).vocabulary) == SPECIALS + 2
    assert len(prepared("--train", train, "--tokenizer", "space").vocabulary) == SPECIALS + 4  # a dog, dog cat
    subwords = ["--vocabulary.kind", "subwords", "--vocabulary.size", 260, "--no-lowercase"]
    assert len(prepared("--train", train, *subwords).vocabulary) <= SPECIALS + 260
    with pytest.raises(RecipeError, match="of whole words.* min_freq = 1, tokenizer = unicode and lowercase = false with kind = subwords"):
        recipe("--vocabulary.kind", "subwords")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (features_of([1, 2]), r"expected 3 rows, one for each image, got 2, none for image '3.jpg'"),
        (features_of([1, 2, 3, 4]), "expected 3 rows, one for each image, got 4"),
        (features_of([1, 2, 3]) * np.array([[1], [np.nan], [1]], np.float16), r"features of image '2.jpg' .* are not finite"),
        (features_of([1, 2, 3]).astype(np.int64), "as float16, float32 or float64, got"),
        (features_of([1, 2, 3])[0], r"expected features \[images, size\]"),
    ],
)
def test_features_that_do_not_fit(tmp_path, features, message):
    train = write(tmp_path / "train.captions.tsv", {f"{number}.jpg": ["a dog"] for number in (1, 2, 3)}, features)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", "--train", train)
    assert not (tmp_path / "run").exists()


def test_features_of_one_size(tmp_path, files):
    dev = write(tmp_path / "dev.tsv", {"1.jpg": ["a dog"]}, features_of([1], size=4))
    with pytest.raises(DataError, match="expected features of one size for all images, got 4, 6: were they made alike"):
        prepared("--train", files["train"], "--dev", dev)


def test_files_that_are_not_there(tmp_path, files):
    with pytest.raises(DataError, match=r"cannot read .*none.tsv"):
        prepared("--train", tmp_path / "none.tsv")
    alone = write(tmp_path / "alone.tsv", {"1.jpg": ["a dog"]})
    with pytest.raises(DataError, match=r"cannot read .*alone.features.npy"):
        prepared("--train", alone)


def test_files_are_read_once_until_they_change(tmp_path):
    train = write(tmp_path / "train.captions.tsv", {"1.jpg": ["a dog"], "2.jpg": ["a cat"]}, features_of([1, 2]))
    first = prepared("--train", train)
    assert prepared("--train", train) is first
    np.save(tmp_path / "other.npy", features_of([3, 4]))
    (tmp_path / "other.npy").replace(tmp_path / "train.features.npy")
    assert inputs_of(prepared("--train", train).train) == features_of([3, 4]).astype(np.float32).tolist()


def test_the_built_in_world_is_drawn_anew_for_each_part():
    found = read_parts(recipe().data)
    names = [part.captions.images for part in found]
    assert [len(part) for part in names] == [32, 8, 8]
    assert names[1] != names[2]
    drawn = WORLD.draw(8, seed=2, captions=3)
    assert found.test.captions.captions == drawn.captions
    assert np.array_equal(found.test.features, scene_features(np.stack([render(scene) for scene in drawn.scenes])))
    assert read_parts(recipe("--data.seed", 1).data).train.captions.images != names[0]


# --- neighbours -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [[], ["--no-merge"]])
def test_near_images_lend_their_captions(tmp_path, merge):
    vectors = np.array([[1, 0], [9, 0.5], [0, 1], [0.1, 2]], np.float16)
    images = {f"{number}.jpg": [f"w{number}{way}" for way in "abc"[: 1 + number % 3]] for number in range(4)}
    found = prepared("--train", write(tmp_path / "train.tsv", images, vectors), *merge)
    near = found.near(1, torch.device("cpu"))
    numbers = torch.arange(len(found.train))
    lent = near(numbers, 5, torch.Generator().manual_seed(0)).sentences.unpack()
    own = found.train.take_references(numbers).unpack()
    partner = {0: 1, 1: 0, 2: 3, 3: 2}
    for theirs, mine in zip(lent, own, strict=True):
        image = int(found.vocabulary.decode(mine[0])[1])
        assert sorted(map(found.vocabulary.decode, theirs)) == images[f"{partner[image]}.jpg"]


def test_one_image_has_no_neighbours(tmp_path):
    train = write(tmp_path / "train.tsv", {"1.jpg": ["a dog", "the dog"]}, features_of([1]))
    for merge in ([], ["--no-merge"]):
        assert run(tmp_path / f"run{len(merge)}", "--train", train, *RAML, "--sampler", "near", *merge)["left_out"] == 0


def test_neighbours_are_looked_for_where_they_are_wanted(files, monkeypatch):
    asked = []
    monkeypatch.setattr(type(prepared(*parts(files, "train"))), "near", lambda self, *given: asked.append(given))
    for flags in (["--sampler", "near"], [*RAML, "--sampler", "model"], [*RAML, "--sampler", "near+model", "--neighbours", 4]):
        TASK.learner([recipe(*parts(files, "train"), *flags)], CPU)
    assert asked == [(4, torch.device("cpu"))]


# --- from another run -------------------------------------------------------------------------------------


def test_training_goes_on_from_another_run(tmp_path, files):
    flags = parts(files, "train", "dev", "test")
    run(tmp_path / "ml", *flags)
    other = write(tmp_path / "other.tsv", {"1.jpg": ["an unheard-of thing"]}, features_of([1]))
    begun = Captioner.load(tmp_path / "ml" / BEST)
    for start in (tmp_path / "ml", tmp_path / "ml" / BEST):
        made = recipe("--train", other, "--dev", files["dev"], "--start", start, "--seed", 5, "--dropout", 0.5, *RAML)
        learner = TASK.learner([made], CPU)
        model = learner._model
        assert all(torch.equal(value, begun.model.state_dict()[name]) for name, value in model.state_dict().items())
        assert UNKNOWN in CaptioningJudge.of(made).prepared.vocabulary.encode("unheard")
    learner.train(0, 0, 1, [True])  # which leaves the kept one as it was
    again = TASK.learner([made], CPU)._model
    assert all(torch.equal(value, begun.model.state_dict()[name]) for name, value in again.state_dict().items())
    row = run(tmp_path / "sqdml", *flags, "--start", tmp_path / "ml", *SQDML, "--sampler", "model", "--refresh", "epoch")
    assert row["objective"] == "sqdml"
    with pytest.raises(RunError, match=r"expected a model of the recipe's architecture, embedding 12, hidden 8, 1 layers, got .*hidden 16"):
        run(tmp_path / "no", *flags, "--start", tmp_path / "ml", "--hidden", 8)
    longer = write(tmp_path / "longer.tsv", {"1.jpg": ["a dog"]}, features_of([1], size=9))
    with pytest.raises(RunError, match="expected a model of features of 9 numbers, as the images have, got one of 6"):
        run(tmp_path / "no", "--train", longer, "--start", tmp_path / "ml")
    with pytest.raises(RunError, match=r"nowhere cannot be gone on from: there is no .*nowhere; expected a run folder of softq train capt"):
        run(tmp_path / "no", *flags, "--start", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"dev.captions.tsv is not a captioner of softq"):
        run(tmp_path / "no", *flags, "--start", files["dev"])
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocabulary.kind", "subwords", "--no-lowercase"], "kind = subwords, got kind = words;"),
        (["--no-lowercase"], "lowercase = False, got lowercase = True;"),
        (["--tokenizer", "space"], "tokenizer = space, got tokenizer = unicode;"),
        (["--min-freq", 2], "min_freq = at least 2, got min_freq = 1;"),
        (["--vocabulary.size", 3], "size = at most 3, got size = 4;"),
        (["--vocabulary.size", 4], ""),
        ([], ""),
    ],
)
def test_training_goes_on_with_the_same_words(tmp_path, flags, message):
    train = write(tmp_path / "train.tsv", {"1.jpg": ["a b, a b a c"]}, features_of([1]))
    run(tmp_path / "ml", "--train", train, "--epochs", 1)
    start = ["--train", train, "--start", tmp_path / "ml", *flags]
    if not message:
        assert len(prepared(*start).vocabulary) == SPECIALS + 4
        return
    with pytest.raises(RunError, match=rf"its words stay: expected the recipe's \[vocabulary\], {message}"):
        prepared(*start)


def test_what_has_started_elsewhere_is_judged_without_it(tmp_path, files):
    run(tmp_path / "ml", "--train", files["test"])  # fewer words
    flags = [*parts(files, "train", "dev", "test"), "--start", tmp_path / "ml", "--epochs", 1]
    row = run(tmp_path / "run", *flags)
    shutil.rmtree(tmp_path / "ml")
    found = TASK.test_statistics([recipe(*flags)], best_models(RunFolder(tmp_path / "run")), [0])
    assert float(TASK.metric_of(found.sum(1))) == pytest.approx(row["test"])
    assert run(tmp_path / "run", *flags, resume=True) == row  # it is finished


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
    train = write(tmp_path / "train.tsv", {f"{number}.jpg": captions_of(number)[:2] for number in range(18)}, features_of(range(18)))

    def job(out):
        train_cells(TASK, [recipe("--train", train, "--dev", files["test"], *flags)], out, resume=True, workers=CPU)

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
    with pytest.raises(RunError, match="cannot go on: the training data or the words of this run are not those"):
        train_cells(TASK, [recipe(*flags)], tmp_path / "run", resume=True, workers=CPU)


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dev", "a.tsv"], "name the training file as well"),
        (["--train", "a", "--halve-dev"], "halve_dev takes the test part from dev"),
        (["--train-features", "b"], "train_features are of the images in train: name that file of captions as well"),
        (["--train", "a", "--dev-features", "b"], "dev_features are of the images in dev"),
        (["--train", "a", "--test-features", "b"], "test_features are of the images in test"),
        (["--max-length", 0], "max_length must be at least 1"),
        (["--scenes", 0], "scenes must be at least 1"),
        (["--captions", 0], "captions must be at least 1"),
        (["--data.seed", -1], "seed must be at least 0"),
        (["--tie"], "tie needs embedding = hidden, got 12 and 16"),
        (["--dropout", 1], r"dropout must lie in \[0, 1\)"),
        (["--dev-beam", 0], "dev_beam must be at least 1"),
        (["--max-words", 0], "max_words must be at least 1"),
        ([*SQDML, "--no-merge"], "merge = false"),
        ([*RAML, "--no-merge", "--sampler", "recombined"], "sampler = recombined takes n-grams of other references"),
        ([*RAML, "--temperature-scaled"], "temperature_scaled"),
    ],
)
def test_what_does_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


def test_cells_of_a_sweep_have_their_recipes_back():
    made = recipe("--objective", "raml", "--tau", 0.5, "--seed", 3)
    assert cell_recipe(recipe(), describe_cell(TASK, made)) == made


# --- commands ---------------------------------------------------------------------------------------------


def test_train_command(tmp_path, files):
    flags = [*SMALL, *parts(files, "train", "dev", "test"), "--device", "cpu"]
    result = told(softq("train", "captioning", *flags, *SQDML, "--sampler", "near", "--out", tmp_path / "run", "--json"))
    (cell,) = result["cells"]
    assert (result["task"], result["run"], cell["objective"], cell["tau"]) == ("captioning", str(tmp_path / "run"), "sqdml", 0.3)
    assert cell["test"] == cell["test_average_reward"]
    assert "near:of=10:size=6" in result["signature"]
    again = told(softq("train", "--resume", "--out", tmp_path / "run", "--json"))
    assert again["cells"] == [cell]
    plain = well(softq("train", "captioning", *flags, "--max-length", 5, "--out", tmp_path / "plain"))
    assert "run: " in plain
    assert "near" in well(softq("train", "captioning", *SQDML, "--sampler", "near", "--dry-run"))
    facts = told(softq("evaluate", tmp_path / "run", files["test"], "--json"))
    assert facts["average_reward"] == pytest.approx(cell["test"])


def test_sweep_command(tmp_path):
    flags = [*SMALL, "--device", "cpu", "--epochs", 1]
    command = ["sweep", "captioning", *flags, "--objective", "ml,raml,sqdml", "--tau", "0.2,0.4", "--out", tmp_path / "sweep"]
    result = told(softq(*command, "--json"))
    assert (result["task"], result["metric"], result["cells"]) == ("captioning", "average reward", 5)
    assert {choice["objective"] for choice in result["choices"]} == {"ml", "raml", "sqdml"}
    cells = [RunFolder(folder.parent).result()["cells"][0] for folder in (tmp_path / "sweep").rglob(RESULT)]
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
        (["--train", "{short}"], ["short.features.npy: expected 2 rows, one for each image, got 1, none for image '2.jpg'"]),
        (["--train", "{broken}"], ["broken.tsv, line 2: expected the name of an image, a tab and one or more captions"]),
        (["--train", "{good}", "--dev", "{json}"], ["expected images of the split 'val', got 'train'"]),
        (["--train", "{good}", "--start", "{good}"], ["good.tsv is not a captioner of softq"]),
        (["--sampler", "nearest", *RAML], ["sampler must be one of ngram, hamming, model, near, recombined, or several joined by +"]),
        ([*SQDML, "--no-merge"], ["merge = false makes one of each"]),
        (["--features", "x.npy"], ["--features"]),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, texts):
    write(tmp_path / "short.tsv", {"1.jpg": ["a dog"], "2.jpg": ["a cat"]}, features_of([1]))
    write(tmp_path / "good.tsv", {"1.jpg": ["a dog"]}, features_of([1]))
    write(tmp_path / "broken.tsv", {"1.jpg": ["a dog"]}, features_of([1])).write_text("1.jpg\ta dog\n2.jpg a cat\n")
    write_json(tmp_path / "all.json", {"train": [1]})
    paths = {name: tmp_path / f"{name}.tsv" for name in ("none", "short", "broken", "good")} | {"json": tmp_path / "all.json"}
    given = [str(flag).format(**paths) for flag in flags]
    refused(softq("train", "captioning", *SMALL, *given, "--out", tmp_path / "run"), *texts)
    assert not (tmp_path / "run").exists()


def test_a_features_file_is_found_by_the_names_of_its_rows(tmp_path):
    both = write_json(tmp_path / "all.json", {"train": [3, 1, 2]})
    read = read_captions(both, "train")
    assert np.array_equal(read_features(tmp_path / "all.features.npy", read), features_of([3, 1, 2]))
