"""benchmarks/race.py: what is run next, what is chosen, what is reported; TRL's rows without `datasets`."""

import argparse
import importlib
import math
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def race():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("race")


def cell(method, rate, seed, final, chosen_by, kind="gpt2"):
    start = {"seconds": 0.0, "reward": 0.1, "chrf": 0.2, "length": 5.0, "distinct": 1.0}
    end = start | {
        "seconds": 4.0,
        "reward": final,
        "chrf": final / 2,
        "chosen_by_reward": chosen_by,
    }
    about = {"kind": kind, "method": method, "rate": rate, "seed": seed, "steps": 7}
    return about | {"curve": [start | {"chosen_by_reward": 0.1}, end]}


def test_rates_are_tried_at_the_first_seed_and_the_best_one_goes_on(race):
    options = argparse.Namespace(seeds=3)
    low, high = race.METHODS["grpo"].rates["gpt2"]

    def wanted(*done):
        return race.wanted_cells("gpt2", "grpo", done, options)

    assert wanted() == [(low, 0), (high, 0)]
    first = cell("grpo", low, 0, 0.5, 0.4)
    assert wanted(first, cell("ml", high, 0, 0.5, 0.4)) == [(high, 0)]
    # by the half that chooses, not by the one that is reported
    second = cell("grpo", high, 0, 0.3, 0.6)
    assert wanted(first, second) == [(high, 1), (high, 2)]
    assert wanted(first, second, cell("grpo", high, 1, 0.3, 0.6)) == [(high, 2)]
    # TRL trains no encoder-decoder
    assert race.wanted_cells("t5", "dpo", [], options) == []


def test_results_are_of_the_chosen_rate_with_intervals_over_seeds(race, tmp_path):
    grpo, ml = (race.METHODS[name].rates["gpt2"][0] for name in ("grpo", "ml"))
    cells = [cell("grpo", grpo, seed, 0.5 + seed / 100, 0.5) for seed in range(3)]
    cells += [cell("ml", ml, seed, 0.4, 0.4) for seed in range(2)]
    cells.append(cell("ml", race.METHODS["ml"].rates["gpt2"][1], 0, 0.9, 0.1))
    rows = {row["method"]: row for row in race.results(cells)}
    value, low, high = rows["grpo"]["reward"]
    assert value == pytest.approx(0.51)
    assert high - value == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-4)
    assert low == pytest.approx(2 * value - high)
    assert rows["ml"]["reward"][0] == pytest.approx(0.4)
    assert rows["ml"]["over_grpo"][0] == pytest.approx(-0.105)  # the seeds that both have
    assert "over_grpo" not in rows["grpo"]
    race.show(list(rows.values()), "race")
    race.draw(cells, tmp_path / "race.svg", "GPU seconds")
    drawn = (tmp_path / "race.svg").read_text(encoding="utf-8")
    assert all(text in drawn for text in ("TRL GRPO", "held-out chrF", "GPU seconds"))
    one = race.results(cells[:1])
    assert race.without_nan(one)[0]["reward"] == [0.5, None, None]


def test_rewards_of_texts_are_means_over_references(race):
    found = race.text_rewards(["a b c d", "x"], [["a b c d", "e f g h"], ["x"]])
    alone = race.text_rewards(["a b c d"], [["e f g h"]])
    assert found[0] == pytest.approx((1 + alone[0]) / 2)
    assert len(found) == 2


def test_rows_in_a_list_stand_in_for_a_dataset(race):
    peer = importlib.import_module("trl_peer")
    rows = peer.ListDataset.from_list([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    mapped = rows.map(lambda row, n: {"c": row["a"] + n}, fn_kwargs={"n": 1}, remove_columns="b")
    assert list(mapped) == [{"a": 1, "c": 2}, {"a": 3, "c": 4}]
    assert mapped.column_names == ["a", "c"]
    assert mapped.filter(lambda row: row["a"] > 1)[0] == {"a": 3, "c": 4}
    assert list(mapped.select_columns(["c"])) == [{"c": 2}, {"c": 4}]
    assert len(rows) == 2
    assert rows[0] == {"a": 1, "b": 2}
