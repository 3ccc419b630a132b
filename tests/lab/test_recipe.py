"""Recipes: what reads back, what is refused and how, what makes two of them the same."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest

import softq
from softq.cli import recipes
from softq.errors import RecipeError
from softq.lab.ranges import parse_seeds, parse_taus
from softq.lab.recipe import (
    Objective,
    Training,
    build,
    describe,
    flag_names,
    key,
    merge,
    parse_flags,
    read_toml,
    recipe_hash,
    to_toml,
)
from softq.lab.sweep import Grid, expand, parse_recipe, read_recipe, sweep_toml
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import cell_recipe, describe_cell
from softq.lab.tasks.classification_recipe import ClassificationRecipe
from softq.lab.tasks.lm_recipe import LmRecipe
from softq.lab.tasks.sequence_recipe import TranslationRecipe

TASK = TASKS["classification"]


@dataclass(frozen=True)
class Kinds:
    """A key of every kind."""

    name: str = key("x", "a name")
    count: int = key(1, "")
    rate: float = key(0.5, "")
    perhaps: float | None = key(None, "")
    yes: bool = key(True, "")
    sizes: tuple[int, ...] = key((1, 2), "")
    words: tuple[str, ...] = key((), "")
    kind: Literal["one", "two"] = key("one", "")


@dataclass(frozen=True)
class Recipe:
    """Two sections, and a key that stands alone."""

    title: str = key("t", "a title")
    kinds: Kinds = field(default_factory=Kinds)
    training: Training = field(default_factory=Training)


def read(text, recipe_type=Recipe):
    table = tomllib.loads(text)
    table.pop("task", None)
    return build(recipe_type, table)


RECIPES = [
    Recipe(),
    Recipe(
        'ü "quoted" \\ # no comment\n\ttwo lines',
        Kinds("", -3, 1e-30, 2.0, False, (), ("a,b", "'"), "two"),
        Training(seed=-1),
    ),
    Recipe(kinds=Kinds(rate=1e300, perhaps=float("inf"), sizes=(7,))),
]


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize(
    "recipe", [*RECIPES, ClassificationRecipe(objective=Objective("sqdml", 1.1, True))]
)
def test_a_recipe_reads_back(recipe, explain):
    again = read(to_toml(recipe, task="demo", explain=explain), type(recipe))
    assert again == recipe
    assert recipe_hash(again, task="demo") == recipe_hash(recipe, task="demo")


def test_explanations_stand_behind_the_keys():
    text = to_toml(ClassificationRecipe(), task="classification", explain=True)
    for section, name, value, explanation in describe(ClassificationRecipe()):
        assert explanation, f"[{section}] {name} has no explanation"
        assert any(
            line.startswith(f"{'# ' if value is None else ''}{name} = ")
            and line.endswith(f"# {explanation}")
            for line in text.splitlines()
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": {}}, "there is no key 'kind', did you mean 'kinds'?"),
        ({"trainings": {"epochs": 1}}, "there is no key 'trainings', did you mean 'training'?"),
        ({"qqq": 1}, "there is no key 'qqq', there are 'kinds', 'title', 'training'"),
        (
            {"training": {"epoch": 1}},
            "recipe, [training]: there is no key 'epoch', did you mean 'epochs'?",
        ),
        ({"training": 3}, "'training' is a section, write [training] and its keys below it, got 3"),
        ({"title": {"a": 1}}, "title must be text, got {'a': 1}"),
        ({"kinds": {"count": True}}, "recipe, [kinds], count must be a whole number, got True"),
        ({"kinds": {"count": 1.0}}, "count must be a whole number, got 1.0"),
        ({"kinds": {"count": "1"}}, "count must be a whole number, got '1'"),
        ({"kinds": {"count": [1]}}, "count must be a whole number, got [1]"),
        ({"kinds": {"rate": "0.5"}}, "rate must be a number, got '0.5'"),
        ({"kinds": {"rate": False}}, "rate must be a number, got False"),
        ({"kinds": {"perhaps": "x"}}, "perhaps must be a number, got 'x'"),
        ({"kinds": {"yes": 1}}, "yes must be true or false, got 1"),
        ({"kinds": {"name": 1}}, "name must be text, got 1"),
        ({"kinds": {"sizes": 8}}, "sizes is a list, got 8"),
        ({"kinds": {"words": "ab"}}, "words is a list, got 'ab'"),
        ({"kinds": {"sizes": [1, 2.5]}}, "sizes must be a whole number, got 2.5"),
        ({"kinds": {"kind": "tow"}}, "kind is one of 'one', 'two', got 'tow'; did you mean 'two'?"),
        ({"kinds": {"kind": "zzz"}}, "kind is one of 'one', 'two', got 'zzz'"),
        ({"training": {"epochs": 0}}, "recipe, [training]: epochs must be at least 1, got 0"),
        (
            {"training": {"seed": 2**63}},
            "recipe, [training]: seed must be a number of 64 bits, got 9223372036854775808",
        ),
    ],
)
def test_what_is_refused(table, message):
    with pytest.raises(RecipeError) as refused:
        build(Recipe, table)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"objective": {"tau": 1.0}}, "[objective]: ml has no temperature: leave out tau"),
        ({"objective": {"temperature_scaled": True}}, "ml has no temperature"),
        (
            {"objective": {"name": "raml"}},
            "raml needs a temperature in units of its reward, such as tau = 0.2 for BLEU",
        ),
        ({"objective": {"name": "raml", "tau": 0.0}}, "tau must be positive and finite, got 0.0"),
        ({"objective": {"name": "qraml", "tau": 1.0}}, "did you mean 'raml'?"),
        ({"model": {"hidden": [8, 0]}}, "hidden must be at least 1, got 0"),
        (
            {"optimizer": {"learning_rate": 0}},
            "learning_rate must be a positive number, got 0.0",
        ),
        ({"optimizer": {"learning_rate": float("nan")}}, "must be a positive number, got nan"),
        ({"optimizer": {"momentum": 1}}, "momentum must be at least 0 and less than 1, got 1.0"),
    ],
)
def test_what_the_sections_of_classification_refuse(table, message):
    with pytest.raises(RecipeError) as refused:
        build(ClassificationRecipe, table)
    assert message in str(refused.value)


OUTSIDE = {  # of each limit
    "least": lambda least: least - 1,
    "above": lambda above: above,
    "most": lambda most: most + 1,
    "below": lambda below: below,
    "positive": lambda _: 0,
    "finite": lambda _: float("inf"),
    "bits": lambda bits: 2**bits,
}


@pytest.mark.parametrize("name", TASKS)
def test_every_limit_of_a_key_is_checked(name):
    made, checked = TASKS[name].recipe_type(), 0
    for part in (getattr(made, section.name) for section in dataclasses.fields(made)):
        for one in dataclasses.fields(part):
            for limit, of in one.metadata["limits"].items():
                value = OUTSIDE[limit](of)
                given = (value,) if isinstance(getattr(part, one.name), tuple) else value
                with pytest.raises(RecipeError, match=f"^{one.name} must be .*, got {value}$"):
                    dataclasses.replace(part, **{one.name: given})
                checked += 1
    assert checked >= 8


@pytest.mark.parametrize("name", TASKS)
def test_the_recipe_of_a_task_is_known_without_the_task(name):
    assert TASKS.recipe_type(name) is TASKS[name].recipe_type


@pytest.mark.parametrize("name", TASKS)
def test_cells_of_a_sweep_have_their_recipes_back(name):
    base = TASKS[name].recipe_type()
    table = {"objective": {"name": "raml", "tau": 0.5}, "training": {"seed": 3}}
    made = build(type(base), table, base=base)
    assert cell_recipe(base, describe_cell(name, made)) == made


def test_what_is_bent():
    kinds = build(Recipe, {"kinds": {"rate": 2, "sizes": [3], "perhaps": 1}}).kinds
    assert (kinds.rate, kinds.sizes, kinds.perhaps) == (2.0, (3,), 1.0)
    assert isinstance(kinds.rate, float)
    assert isinstance(kinds.perhaps, float)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"task = 'x'\n\n[data\ninputs = 3\n",
            (
                "is not valid TOML: Expected ']' at the end of a table declaration (at line 3,"
                " column 6)"
            ),
        ),
        (b"a = 1\na = 2\n", "Cannot overwrite a value (at line 2"),
        (b"a = \xff", "is not valid TOML"),
        (None, "cannot read the recipe"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError) as refused:
        read_toml(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


# --- flags --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "table"),
    [
        ([], {}),
        (["--title", "new"], {"title": "new"}),
        (["--count", "3", "--rate=2"], {"kinds": {"count": 3, "rate": 2.0}}),
        (["--kinds.count", "-3"], {"kinds": {"count": -3}}),
        (["--count", "1_000"], {"kinds": {"count": 1000}}),
        (["--kinds", "new"], {"kinds": {"name": "new"}}),
        (["--kinds.name=a=b"], {"kinds": {"name": "a=b"}}),
        (["--yes"], {"kinds": {"yes": True}}),
        (["--no-yes"], {"kinds": {"yes": False}}),
        (["--no-kinds.yes"], {"kinds": {"yes": False}}),
        (["--yes=False"], {"kinds": {"yes": False}}),
        (["--sizes", "8,8"], {"kinds": {"sizes": [8, 8]}}),
        (["--sizes="], {"kinds": {"sizes": []}}),
        (["--perhaps", "1e-3"], {"kinds": {"perhaps": 0.001}}),
        (["--kind", "two"], {"kinds": {"kind": "two"}}),
        (
            ["--batch-size", "5", "--checkpoint_every", "2"],
            {"training": {"batch_size": 5, "checkpoint_every": 2}},
        ),
        (["--count", "1", "--count", "2"], {"kinds": {"count": 2}}),
    ],
)
def test_flags(arguments, table):
    assert parse_flags(Recipe, arguments) == table
    build(Recipe, table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batchsize", "3"], "there is no flag --batchsize, did you mean --batch-size?"),
        (["--no-such", "3"], "there is no flag --no-such"),
        (["--kinds.cuont", "3"], "did you mean --kinds.count?"),
        (["--count"], "--count needs a value"),
        (["--count", "many"], "--count must be a whole number, got 'many'"),
        (["--count", "1.5"], "--count must be a whole number, got '1.5'"),
        (["--rate", "x"], "--rate must be a number, got 'x'"),
        (["--perhaps", "none"], "--perhaps must be a number, got 'none'"),
        (["--yes=1"], "--yes is true or false, got '1'"),
        (["--no-yes=true"], "--no-yes does not fit: it takes no value"),
        (["--no-count", "3"], "--no-count does not fit"),
        (["--sizes", "1,x"], "--sizes must be a whole number, got 'x'"),
        (["--kind", "three"], "--kind is one of 'one', 'two', got 'three'"),
        (["classification"], "expected a flag like --epochs 10, got 'classification'"),
        (["-e", "3"], "expected a flag like --epochs 10, got '-e'"),
    ],
)
def test_flags_that_are_refused(arguments, message):
    with pytest.raises(RecipeError) as refused:
        parse_flags(Recipe, arguments)
    assert message in str(refused.value)


def test_a_key_of_training_wins_over_its_namesake():
    flags = parse_flags(ClassificationRecipe, ["--seed", "3", "--data.seed", "4"])
    assert flags == {"training": {"seed": 3}, "data": {"seed": 4}}


def test_namesakes_without_training_have_no_short_flag():
    recipe_type = dataclasses.make_dataclass("Two", [("a", Kinds), ("b", Kinds)])
    flags = flag_names(recipe_type)
    assert "count" not in flags
    assert flags["a.count"][:2] == ("a", "count")
    assert flags["b"][:2] == ("b", "name")
    with pytest.raises(
        RecipeError, match=r"there is no flag --count, did you mean --a\.count or --b\.count\?"
    ):
        parse_flags(recipe_type, ["--count", "3"])


def test_short_flags_of_several_sections_are_told_apart():
    for flag, qualified in (
        ("--size", "--candidates.size or --vocabulary.size"),
        ("--kind", "--model.kind or --vocabulary.kind"),
    ):
        with pytest.raises(RecipeError) as refused:
            parse_flags(TranslationRecipe, [flag, "3"])
        assert f"there is no flag {flag}, did you mean {qualified}?" in str(refused.value)


def test_the_last_table_lies_on_top():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}, {"b": 2, "a": {"z": 4}}) == {
        "a": {"x": 1, "y": 3, "z": 4},
        "b": 2,
    }


# --- identity -----------------------------------------------------------------------------------------

OTHER = {str: "other", int: 77, float: 0.123, bool: True}


def variants(recipe):
    """The recipe with one key changed, by (section, key)."""
    for section in dataclasses.fields(recipe):
        part = getattr(recipe, section.name)
        for inner in dataclasses.fields(part):
            value = getattr(part, inner.name)
            if inner.name == "device":
                other = "cpu"
            elif inner.name == "name":
                other = "sqdml"
            else:
                other = (
                    (7,)
                    if isinstance(value, tuple)
                    else (not value)
                    if isinstance(value, bool)
                    else OTHER[type(value)]
                )
            yield (
                (section.name, inner.name),
                dataclasses.replace(
                    recipe, **{section.name: dataclasses.replace(part, **{inner.name: other})}
                ),
            )


def test_the_hash_ignores_device_and_checkpoints_and_nothing_else():
    recipe = ClassificationRecipe(objective=Objective("raml", 2.4))
    before = recipe_hash(recipe, task="classification")
    same = {
        place
        for place, variant in variants(recipe)
        if recipe_hash(variant, task="classification") == before
    }
    assert same == {("training", "device"), ("training", "checkpoint_every")}
    assert recipe_hash(recipe, task="other") != before
    assert len(before) == 12


# --- recipes that come with softq, and grids ----------------------------------------------------------


def counted(text):
    """How many temperatures a range has, by the formula."""
    first, last, step = map(float, text.split(":"))
    return round((last - first) / step) + 1


@pytest.mark.parametrize(
    "path", sorted(recipes.RECIPES.glob("classification-*.toml")), ids=lambda path: path.stem
)
def test_recipes_of_classification(path):
    task = TASKS[read_toml(path)["task"]]
    recipe, grids = read_recipe(task, path)
    cells = expand(task, recipe, grids)
    by_grid = {
        grid.name: [cell for cell, names in cells.values() if grid.name in names] for grid in grids
    }
    for grid in grids:
        seeds = len(parse_seeds(grid.seed))
        temperatures = counted(grid.tau) * len([name for name in grid.objective if name != "ml"])
        assert len(by_grid[grid.name]) == seeds * (temperatures + ("ml" in grid.objective))
        assert {cell.training.seed for cell in by_grid[grid.name]} == set(parse_seeds(grid.seed))
    large = 51 if path.stem.endswith("paper") else 21
    assert (counted(grids[0].tau), counted(grids[1].tau)) == (30, large)
    # short 61 and wide 2·51, where τ = 1 is in both for two objectives; wide-scaled shares none
    assert len(cells) == 5 * (61 + 2 * large - 2 + 2 * large)
    again, same = parse_recipe(task, tomllib.loads(sweep_toml(task, recipe, grids)), "again")
    assert (again, same) == (recipe, grids)


def test_the_recipes_are_where_the_command_looks():
    assert {path.stem for path in recipes.RECIPES.glob("*.toml")} >= {
        f"{task}-{scale}"
        for task in TASKS
        if task not in ("classifier", "tag")
        for scale in ("small", "paper")
    }
    assert (
        recipes.RECIPES.is_relative_to(softq.__path__[0])
        or (recipes.RECIPES.parent / "pyproject.toml").is_file()
    )


def test_a_cell_of_two_grids_is_trained_once():
    grids = [Grid("a", ("ml", "raml"), "1,2", "0"), Grid("b", ("raml",), "2,3", "0:1")]
    cells = expand(TASK, ClassificationRecipe(), grids)
    named = {
        (str(recipe.objective), recipe.training.seed): names for recipe, names in cells.values()
    }
    assert named == {
        ("ml", 0): ("a",),
        ("raml τ=1", 0): ("a",),
        ("raml τ=2", 0): ("a", "b"),
        ("raml τ=3", 0): ("b",),
        ("raml τ=2", 1): ("b",),
        ("raml τ=3", 1): ("b",),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[sweep]\ntau = '1'\n",
            "a grid is a table [[sweep]], in double brackets because there may be several",
        ),
        ("sweep = [1]\n", "a grid is a table [[sweep]]"),
        ("[[sweep]]\ntaus = '1'\n", "[[sweep]]: there is no key 'taus', did you mean 'tau'?"),
        ("[[sweep]]\ntau = 1\n", "tau must be text, got 1"),
        ("[[sweep]]\ntau = '0'\n", "[[sweep]]: tau must be positive and finite"),
        (
            "[[sweep]]\nseed = 'x'\n",
            (
                "[[sweep]]: seed must be a whole number, several as 0,1,2, or a range like 0:4,"
                " got 'x'"
            ),
        ),
        (
            "[[sweep]]\nobjective = []\n",
            "objective must name at least one of ml, raml and sqdml, got an empty list",
        ),
        ("[[sweep]]\nobjective = ['rmal']\n", "did you mean 'raml'?"),
        (
            "[data]\ninptus = 1\n",
            "mine.toml, [data]: there is no key 'inptus', did you mean 'inputs'?",
        ),
    ],
)
def test_grids_that_are_refused(text, message):
    with pytest.raises(RecipeError) as refused:
        parse_recipe(TASK, tomllib.loads(text), "mine.toml")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("2", [2]), ("-1", [-1]), ("0,5", [0, 5]), ("0:3,7", [0, 1, 2, 3, 7]), ("4:4", [4])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "1,", "a", "1.5", "3:1", "0:1:2", "0:99999999"])
def test_bad_seeds(text):
    with pytest.raises(RecipeError, match="seed must be a whole number"):
        parse_seeds(text)


def test_a_range_of_temperatures_holds_its_end():
    taus = parse_taus("0.1:3:0.1")
    assert taus == [round(0.1 * number, 1) for number in range(1, 31)]


def test_a_section_keeps_the_defaults_of_its_recipe():
    # of the experiment, not of the section's class
    assert build(ClassificationRecipe, {"training": {"seed": 3}}).training == dataclasses.replace(
        ClassificationRecipe().training, seed=3
    )
    assert ClassificationRecipe().training.burn_in != Training().burn_in


@pytest.mark.parametrize("name", [*TASKS, "lm"])
def test_every_key_is_explained(name):
    """The page of keys and ``--help`` are made of these lines."""
    kind = LmRecipe if name == "lm" else TASKS[name].recipe_type
    unexplained = [f"{section}.{key}" for section, key, _, text in describe(kind()) if not text]
    assert unexplained == []
