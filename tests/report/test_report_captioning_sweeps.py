"""Sweeps of the captioning experiment in a report: examples against what the models say, pictures, pages."""

import base64
import dataclasses
import io
import re
import shutil

import numpy as np
import pytest
import torch

from captioning_runs import TASK, make_files, parts, recipe
from report_cases import part, rows_of, text_of
from small_runs import single_thread
from softq.lab import report
from softq.lab.report.captioning_examples import MOST_AHEAD, MOST_BEHIND, most_apart
from softq.lab.report.captioning_galleries import IN_STUDY
from softq.lab.report.load import find_sources, read_sections
from softq.lab.report.page import to_csv
from softq.lab.report.pictures import SIDE, png, small_copy
from softq.lab.sweep import Grid, read_sweep, run_sweep
from softq.lab.tasks.captioning import read_captioned
from softq.lab.worlds import Scene
from softq.lab.worlds.scene_pictures import render
from softq.metrics import CAPTION_METRICS, caption_statistics, paired_test
from softq.neural.text_generator import TextGenerator
from softq.rewards import SentenceBLEU
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

WILD = [
    "--init",
    3,
    "--epochs",
    1,
    "--device",
    "cpu",
]  # models that say a lot of different things, after next to no training
EVERY = Grid("all", ("ml", "raml", "sqdml"), "0.1,0.4", seed="0:1")


def sweep(folder, grids, *flags):
    with single_thread():
        run_sweep(TASK, recipe(*WILD, *flags), grids, folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    near = Grid("near", ("raml", "sqdml"), "0.1", over=("sampler=recombined",))
    return sweep(tmp_path_factory.mktemp("world"), [EVERY, near], "--dev-scenes", 16)


@pytest.fixture(scope="module")
def shown(world):
    with single_thread():
        return read_sections(find_sources([world]))[0]


def test_a_sweep_of_the_world(world, shown, tmp_path):
    names = [one.name for one in shown.parts]
    each = [
        "temperatures",
        "reward-by-temperature",
        "expected-reward-by-temperature",
        "scores",
        "gains",
    ]
    assert names == [
        *each,
        "temperatures",
        "scores",
        "gains",
        "paper-table-1",
        "candidate-sets",
        "case-study",
        "disagreements",
        *["training"] * 2,
    ]
    cells = [one.cell for one in read_sweep(TASK, world).cells]
    rows = rows_of(part(shown, "temperatures"))
    for label, row in rows.items():
        objective, *tau = label.removesuffix(" (best)").lower().split(" τ = ")
        found = [
            100 * cell.measures["test_average_reward"]
            for cell in cells
            if cell.objective == objective
            and (not tau or cell.tau == float(tau[0]))
            and cell.settings == {"sampler": "ngram"}
        ]
        ends = [float(row[f"Test average reward{end}"]) for end in ("", " low", " high")]
        assert ends == pytest.approx([sum(found) / 2, min(found), max(found)])
    assert len(part(shown, "candidate-sets").rows) == 4
    assert "With sampler=ngram: In average reward on the test part, SQDML" in shown.intro[2]
    page, *written = report.write_report([shown], tmp_path / "page.html")
    text = text_of(page)
    assert "nan" not in text
    assert all(len(alt) > 60 for alt in re.findall(r'alt="([^"]*)"', text))
    pictures = re.findall(r"data:image/png;base64,([^\"]*)", page.read_text())
    examples = [
        example
        for name in ("case-study", "disagreements")
        for example in part(shown, name).examples
    ]
    assert [base64.b64decode(one) for one in pictures] == [
        example.picture.content for example in examples
    ]
    assert 0 < len(pictures) <= 12
    assert {"case-study-1.png", "case-study.csv", "disagreements.csv"} <= {
        path.name for path in written
    }
    assert text.count('<article class="example"') == len(examples)


def words_of(text):
    return text.split()


def test_gains_are_of_a_paired_bootstrap(world, shown):
    """SQDML over RAML, from captions that the saved models say again."""
    rows, data = {}, recipe("--dev-scenes", 16).data
    test = read_captioned(data).test
    for one in read_sweep(TASK, world).cells:
        if one.cell.settings["sampler"] == "ngram" and one.cell.objective != "ml":
            said = TextGenerator.load(one.run / "best.safetensors").generate(test.features)
            references = [[words_of(caption) for caption in several] for several in test.references]
            rows.setdefault((one.cell.objective, one.cell.tau), []).append(
                caption_statistics([one.words for one in said], references)
            )
    table = part(shown, "gains")
    taus = [
        float(tau)
        for tau in re.findall(r"(?:SQDML|RAML) at (?:its best )?τ = ([\d.]+)", shown.intro[2])
    ]
    ours, theirs = (
        torch.stack(rows[objective, tau])
        for objective, tau in zip(("sqdml", "raml"), taus, strict=True)
    )
    (wanted,) = paired_test(
        ours[None],
        theirs,
        CAPTION_METRICS["average_reward"],
        generator=torch.Generator().manual_seed(0),
    )
    found = next(iter(rows_of(table).values()))
    ends = [float(found[f"Average reward{end}"]) for end in ("", " low", " high")]
    assert ends == pytest.approx([100 * end for end in wanted.gain])
    assert float(found["p, average reward"]) == pytest.approx(wanted.p_value)


def bleu(words, reference):
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*words, *reference]))}
    ours, theirs = (
        Sentences.pack([[[numbers[word] for word in one]]]) for one in (words, reference)
    )
    return float(SentenceBLEU()(*ours, *theirs))


def test_examples_hold_what_the_models_say(world, shown):
    test = read_captioned(recipe("--dev-scenes", 16).data).test
    members = read_sweep(TASK, world).cells
    models = re.search(r"development part: (.*)\.$", part(shown, "case-study").caption)[1].split(
        "; "
    )
    captions, rewards = {}, {}
    for model in models:  # the seed that is best on the development part
        objective, tau, sampler = re.fullmatch(
            r"(\w+)(?: τ = ([\d.]+))? \(sampler=(\w+)\)", model
        ).groups()
        alike = [
            one
            for one in members
            if (one.cell.objective, one.cell.tau, one.cell.settings["sampler"])
            == (objective.lower(), tau and float(tau), sampler)
        ]
        best = max(alike, key=lambda one: one.cell.dev)
        captions[objective] = TextGenerator.load(best.run / "best.safetensors").generate(
            test.features
        )
        rewards[objective] = [
            [bleu(said.words, words_of(reference)) for reference in several]
            for said, several in zip(captions[objective], test.references, strict=True)
        ]
    assert list(captions) == ["ML", "RAML", "SQDML"]
    lead = np.array(
        [
            np.mean(ours) - np.mean(other)
            for ours, other in zip(rewards["SQDML"], rewards["RAML"], strict=True)
        ]
    )
    study, others = (part(shown, name) for name in ("case-study", "disagreements"))
    found = [test.inputs.index(example.name) for example in study.examples]
    assert lead[found] == pytest.approx(np.sort(lead)[::-1][: len(found)])
    for example, number in zip(study.examples, found, strict=True):
        assert example.picture.content == png(render(Scene.from_name(example.name), SIDE))
        assert test.references[number][0] in example.alt
        assert example.outputs == {
            objective: said[number].text for objective, said in captions.items()
        }
        *each, average, most = [list(row) for row in example.scores.rows]
        assert [row[0] for row in each] == test.references[number]
        for column, objective in enumerate(captions, 1):
            mine = [100 * one for one in rewards[objective][number]]
            assert [row[column] for row in each] == pytest.approx(mine)
            assert (average[column], most[column]) == (
                pytest.approx(np.mean(mine)),
                pytest.approx(max(mine)),
            )
    rows = [row.split(",")[:2] for row in to_csv(study.numbers).splitlines()[1:]]
    assert rows[:4] == [[study.examples[0].name, objective] for objective in ["ML"] * 3 + ["RAML"]]
    apart = [abs(lead[test.inputs.index(example.name)]) for example in others.examples]
    assert apart == sorted(apart, reverse=True)
    counts = [
        int(one)
        for one in re.search(
            r"on (\d+) of 16 .* on (\d+) the .* on (\d+) both", others.caption
        ).groups()
    ]
    assert counts == [(lead > 1e-9).sum(), (lead < -1e-9).sum(), (abs(lead) <= 1e-9).sum()]
    assert len(study.examples) <= IN_STUDY
    assert not {example.name for example in study.examples} & {
        example.name for example in others.examples
    }


def test_most_apart():
    differences = torch.linspace(-1, 1, 41)
    ahead, behind = most_apart(differences)
    assert ahead == list(range(40, 40 - MOST_AHEAD, -1))
    assert behind == list(range(MOST_BEHIND))
    assert most_apart(torch.zeros(5)) == ([], [])


def test_sweeps_without_a_comparison(tmp_path):
    folder = sweep(tmp_path / "ml", [Grid("ml", ("ml",), "1")])
    (section,) = read_sections(find_sources([folder]))
    assert [one.name for one in section.parts] == [
        "temperatures",
        "scores",
        "paper-table-1",
        "training",
    ]
    assert section.intro[-1].startswith(
        "There is no case study: it compares SQDML or RAML with another objective"
    )
    folder = sweep(tmp_path / "two", [Grid("two", ("ml", "sqdml"), "0.4")])
    (section,) = read_sections(find_sources([folder]))
    assert list(part(section, "case-study").examples[0].outputs) == ["ML", "SQDML"]
    assert part(section, "disagreements").title == "Where SQDML and ML disagree most"


def test_a_sweep_of_files(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    files, images = make_files(tmp_path), tmp_path / "images"
    images.mkdir()
    for number in range(200, 206):  # the last test image is not there
        pillow.new("RGB", (300, 200), (number, 0, 0)).save(images / f"{number}.jpg")
    flags = [
        *parts(files, "train", "dev", "test"),
        "--images",
        images,
        "--init",
        0.1,
        "--epochs",
        6,
    ]  # what is learnt differs here
    folder = sweep(tmp_path / "sweep", [dataclasses.replace(EVERY, tau="0.05", seed="0")], *flags)
    (section,) = read_sections(find_sources([folder]))
    assert str(tmp_path) not in " ".join([*section.intro, section.recipe, section.command])
    examples = [
        example
        for one in section.parts
        if isinstance(one, report.Gallery)
        for example in one.examples
    ]
    assert {"200.jpg", "206.jpg"} <= {example.name for example in examples}
    for example in examples:
        assert (example.picture is None) == (example.name == "206.jpg")
        assert example.picture is None or (example.picture.width, example.picture.height) == (
            SIDE,
            96,
        )
    text = text_of(report.write_report([section], tmp_path / "page.html")[0])
    assert "train.captions.tsv (36 images)" in text
    shutil.rmtree(images)
    (bare,) = read_sections(find_sources([folder]))
    without = [
        example for one in bare.parts if isinstance(one, report.Gallery) for example in one.examples
    ]
    assert [example.picture for example in without] == [None] * len(examples)
    text = text_of(report.write_report([bare], tmp_path / "page.html")[0])
    assert f'<p class="nameless">{without[0].name}</p>' in text
    files["test"].unlink()
    (gone,) = read_sections(find_sources([folder]))
    assert "There is no case study: its images and captions cannot be read here." in gone.intro
    assert gone.intro[-1].startswith("The data cannot be read here (cannot read test.captions.tsv")
    assert [one.name for one in gone.parts] == [
        one.name for one in section.parts if not isinstance(one, report.Gallery)
    ]


# --- pictures -------------------------------------------------------------------------------------------


def noise(colours):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (colours, 3), dtype=np.uint8)[rng.integers(0, colours, (37, 53))]


def shades(width):
    """Rows that differ from those above by the same everywhere, which PNG has a filter for."""
    return (
        np.arange(120)[:, None, None] * 3 + np.random.default_rng(0).integers(0, 256, (1, width, 3))
    ).astype(np.uint8)


@pytest.mark.parametrize(
    ("pixels", "mode"),
    [
        (noise(1), "P"),
        (noise(200), "P"),
        (noise(2000), "RGB"),
        (shades(1), "P"),
        (shades(50), "RGB"),
    ],
)
def test_png_files_are_read_back_by_others(pixels, mode):
    pillow = pytest.importorskip("PIL.Image")
    content = png(pixels)
    with pillow.open(io.BytesIO(content)) as image:
        assert (image.format, image.mode) == ("PNG", mode)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), pixels)


def test_small_copies(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("L", (10, 20), 7).save(tmp_path / "a.png")
    copy = small_copy(tmp_path, "some/folder/a.png")  # found by its own name; not enlarged
    assert (copy.width, copy.height) == (10, 20)
    turned = pillow.new("RGB", (400, 100))
    about = turned.getexif()
    about[0x0112] = 6  # lies on its side
    turned.save(tmp_path / "b.jpg", exif=about)
    assert (small_copy(tmp_path, "b.jpg").width, small_copy(tmp_path, "b.jpg").height) == (36, SIDE)
    (tmp_path / "c.jpg").write_bytes(b"no picture")
    assert small_copy(tmp_path, "c.jpg") is None
    assert small_copy(tmp_path, "none.jpg") is None
