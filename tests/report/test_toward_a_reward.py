"""What a report shows of runs of `softq train lm`: the reward beside what a model that exploits it loses."""

import pytest

from report_cases import text_of
from small_runs import new_run
from softq.lab import report
from softq.lab.recipe import to_toml
from softq.lab.report.figures import MOST_EPOCHS
from softq.lab.run import METRICS, RESULT, TRAINING, as_json
from softq.lab.tasks.lm_recipe import TASK, LmRecipe

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 120
HACKED = "may exploit its reward: from step 40 to 120 the reward rose from 0.4000 to 0.8000"


def make_run(folder, *, held_out, seed=0, finished=True, training=True):
    """A run that nobody trained: its reward rises, and its held-out score is as told."""
    row = {
        "hash": f"{seed:012x}",
        "objective": "raml",
        "tau": 1.0,
        "temperature_scaled": False,
        "settings": {},
        "seed": seed,
    }
    run = new_run(folder, to_toml(LmRecipe(), task=TASK), [row])
    for step in range(1, STEPS + 1) if training else ():
        seen = {
            "loss": 2.0 - step / STEPS,
            "reward": step / STEPS,
            "kl_base": 0.1 * step,
            "entropy": 3.0 - step / STEPS,
            "completion_length": 10.0 + step,
            "distinct": 1.0 - 0.5 * step / STEPS,
            "ess": 0.9,
            "ess_reused": 0.5,
        }
        run.append_line(TRAINING, {"step": step, "epoch": step / 40, **seen})
    for number, score in enumerate(held_out, start=1):
        place = {"step": 40 * number, "epoch": float(number)}
        scores = {"dev_loss": 1.0, "dev_reward": 0.2 + 0.2 * number, "dev_chrf": score}
        run.append_line(METRICS, place | scores)
    if finished:
        result = {"task": TASK, "metric": "reward", "signature": "sentence-bleu:test"}
        cell = {**row, "step": STEPS, "epoch": 3.0, "dev": 0.8, "reward": 0.8}
        run.write(RESULT, as_json(result | {"cells": [cell]}))
    return run


def figure_of(section):
    (found,) = [part for part in section.parts if part.name.startswith("toward-a-reward")]
    return found


def test_reward_held_out_score_kl_length_and_diversity_stand_together(tmp_path):
    make_run(tmp_path / "a", held_out=[30.0, 31.0, 32.0])
    make_run(tmp_path / "b", held_out=[30.0, 25.0, 20.0], seed=1, finished=False)
    (section,) = report.read_sections(report.find_sources([tmp_path]))
    figure = figure_of(section)
    titles = [column.title for column in figure.numbers.columns]
    for label in ("a", "b"):
        for name in (
            "reward",
            "dev_reward",
            "dev_chrf",
            "kl_base",
            "completion_length",
            "distinct",
        ):
            assert any(title.endswith(f": {label}, {name}") for title in titles), (label, name)
    rows = [dict(zip(titles, row, strict=True)) for row in figure.numbers.rows]
    (last,) = [row for row in rows if row["step"] == STEPS]
    by_name = {title.rpartition(": a, ")[2]: value for title, value in last.items()}
    assert by_name["kl_base"] == pytest.approx(12.0)
    assert by_name["dev_chrf"] == 32.0
    assert by_name["reward"] == 1.0
    assert "KL to the model it started from: a rises" in figure.alt
    # as many points as other curves have, and the last one
    assert len([row for row in rows if row["step"] <= STEPS]) <= MOST_EPOCHS + 3
    # the run that lost what it was not trained on is named, the other one is not
    assert [text for text in section.warnings if HACKED in text] == [
        f"b {HACKED} on the development set, and chrF, which it was not trained on, fell from 30.00"
        " to 20.00."
    ]


def test_curves_are_drawn_and_saved_for_light_and_dark_pages(tmp_path):
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "run", held_out=[30.0, 31.0, 32.0])
    sections = report.read_sections(report.find_sources([tmp_path / "run"]))
    out = tmp_path / "page.html"
    written = {path.name for path in report.write_report(sections, out)}
    assert {f"toward-a-reward{end}" for end in (".svg", "-dark.svg", ".png", ".csv")} <= written
    shown = text_of(out)
    assert "Held-out score on the development set" in shown
    assert "exploits the reward" in shown


@pytest.mark.parametrize("scores", [[30.0, 29.9, 29.8], [30.0, 20.0, 31.0], []])
def test_no_alarm_without_a_loss(tmp_path, scores):
    make_run(tmp_path / "run", held_out=scores)
    (section,) = report.read_sections(report.find_sources([tmp_path]))
    assert not [text for text in section.warnings if "exploit" in text]


def test_runs_from_before_have_their_learning_curves_alone(tmp_path):
    make_run(tmp_path / "run", held_out=[30.0, 31.0], training=False)
    (section,) = report.read_sections(report.find_sources([tmp_path]))
    names = [part.name for part in section.parts]
    assert not any(name.startswith("toward-a-reward") for name in names)
    assert any(name.startswith("learning-curves-lm") for name in names)
