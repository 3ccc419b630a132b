"""The page of `softq explore` without a browser, field by field."""

import asyncio
import contextlib
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from softq.explorer import sentences

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from nicegui import ui
from nicegui.testing.user_simulation import user_simulation

from softq.explorer import fields
from softq.explorer.page import build

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def study():
    return sentences.SentenceStudy(sentences.parse_references(sentences.EXAMPLE))


def in_a_loop(visit):
    """Run a visit in a thread of its own: playwright keeps a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(visit())).result()


@contextlib.asynccontextmanager
async def simulated(study):
    """A visitor's page, and what finds its fields by their labels, those that are hidden too."""
    async with user_simulation(lambda: build(sentences.EXAMPLE, study)) as user:
        client = await user.open("/")

        def find(label):
            (found,) = (one for one in client.elements.values() if one.props.get("label") == label)
            return found

        yield user, find


def is_grey(field):
    """Whether results of the field's page are not of what its fields hold."""
    return any("stale" in one.classes for one in field.client.elements.values())


def text_of(user, css):
    return [one.content for one in user.find(ui.html).elements if css in one.content]


def test_every_field_refuses_beside_itself(study):
    refusals = {
        "references": {
            "": "at least one sentence", "dog dog": None, "w " * 101: "at most 100 words"
        },
        "candidates per input": {
            "x": "a whole number from 2 to 20000, got 'x'", "1": "from 2 to 20000",
            "3": "at least 4", "10001": "at most 10000 each",
        },
        "seed": {"-1": "from 0 to", "": "got ''"},
        "longest n-gram": {"0": "from 1 to 20"},
        "mass to leave on the references": {"1": "between 0 and 1, got '1'", "much": "got 'much'"},
        "P(y|x) of an input": {"0.5 0.5": "expected 3 probabilities", "1 1 1": "a sum of 3"},
        "table": {"1 2\n3 nan": "line 2, column 2", "": "got none; paste a table"},
    }  # fmt: skip

    async def type_all():
        async with simulated(study) as (_, find):
            for label, cases in refusals.items():
                field = find(label)
                before = field.value
                for text, message in cases.items():
                    field.value = text
                    if message is not None:
                        assert message in field.error
                    else:
                        assert "two different words" in find("more words to write with").error
                field.value = before
                assert field.error is None
            assert find("more words to write with").error is None

    in_a_loop(type_all)


def test_samplers_and_sorting(study):
    async def choose():
        async with simulated(study) as (user, find):
            sampler = find("candidates by")
            for name in ("hamming", "edit"):
                sampler.value = name
                assert find("τ of the samples").visible
                assert not find("longest n-gram").visible
            find("τ of the samples").value = "0"
            assert "as τ goes to 0, RAML becomes ML" in find("τ of the samples").error
            find("τ of the samples").value = "0.5"
            sampler.value = "recombined"
            assert find("longest n-gram").visible
            find("references").value = "one line\n\nanother line"
            assert "several references" in sampler.error
            sampler.value = "ngram"
            assert sampler.error is None
            find("input").value = 1
            find("sorted by").value = "reward"
            (table,) = text_of(user, "mean reward</th>")
            first = re.search(r"<tbody>\s*<tr><th[^>]*>(.*?)</th>", table).group(1)
            assert first.startswith("another line")
            find("references").value = "a single input"  # the second is gone, the first is shown
            assert find("input").value == 0
            assert not find("input").visible
            find("mass to leave on the references").value = "much"
            find("references").value = "shown all the same"
            (table,) = text_of(user, "mean reward</th>")
            assert "shown all the same" in table
            find("reward").value = "exact"
            find("mass to leave on the references").value = "0.001"
            buttons = [one.text for one in user.find(ui.button).elements]
            assert "RAML: none" in buttons
            assert "no temperature leaves a mass of 0.001" in " ".join(
                one.text for one in user.find(ui.label).elements
            )

    in_a_loop(choose)


def test_temperatures_move_together():
    async def move():
        moves = []
        async with user_simulation(
            lambda: moves.append(fields.Temperature(0.1, lambda: moves.append(moves[0].value)))
        ) as user:
            await user.open("/")
            temperature = moves[0]
            (slider,) = user.find(ui.slider).elements
            slider.value = 1.0
            assert (temperature.value, temperature.field.value) == (10.0, "10")
            temperature.field.value = "0.5"
            assert slider.value == pytest.approx(math.log10(0.5))
            temperature.field.value = "1e5"  # beyond the slider, which shows its end
            assert (temperature.value, slider.value) == (1e5, 5.0)
            for text, message in {
                "warm": "got 'warm'",
                "nan": "a positive number from 1e-09 to 1e+08, got 'nan'",
                "1e99": "got '1e99'",
            }.items():
                temperature.field.value = text
                assert message in temperature.field.error
                assert slider.value == 5.0
            slider.value = -0.91
            assert (temperature.field.value, temperature.field.error) == ("0.123", None)
            assert moves[1:] == [10.0, 0.5, 1e5, 0.123]

    in_a_loop(move)


def test_many_classes(study):
    async def paste():
        async with simulated(study) as (user, find):
            rows = ["a b c d e"] + [
                " ".join("0" if i == j else "1" for j in range(5)) for i in range(5)
            ]
            find("table").value = "\n".join(rows)
            chosen = find("classes to draw")
            assert chosen.visible
            assert chosen.value == [0, 1, 2]
            assert find("P(y|x) of an input").value == "1/5 1/5 1/5 1/5 1/5"
            chosen.value = [1]
            assert "two or three different classes to draw, got 1" in chosen.error
            chosen.value = [3, 1]
            assert chosen.error is None
            (pictures,) = text_of(user, "<rect")
            assert pictures.count("<figure>") == 3
            find("table").value = "1 2\n3 x"
            assert "got 'x'" in find("table").error
            (kind,) = user.find(ui.radio).elements
            kind.value = "rewards"
            assert find("table").error is not None
            find("P(y|x) of an input").value = "0.2 0.3 0.1 0.3 0.1"
            assert find("P(y|x) of an input").error is None
            assert is_grey(chosen)  # the table is still no table
            find("table").value = "1 2\n3 4"
            assert not is_grey(chosen)

    in_a_loop(paste)


def test_files_that_are_too_large(study):
    async def upload():
        async with simulated(study) as (user, find):
            (field,) = user.find(ui.upload).elements
            for listener in list(field._event_listeners.values()):
                if listener.type == "rejected":
                    listener.handler()
            assert "at most 4 MB" in find("references").error

    in_a_loop(upload)
