"""Scripts of the source tree, benchmarks among them, run in this process at sizes that take no time."""

import argparse
import contextlib
import importlib.util
import io
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.recipe import CandidateSettings

ROOT = Path(__file__).parents[1]


class Small(NamedTuple):
    """What makes a benchmark small: flags of its script, and other values for names in it."""

    flags: str
    names: Mapping[str, Any] = MappingProxyType({})


def _no_row(*_):
    return {"work": "left out", "ms": {"softq": 1.0}, "figures": []}


# without the packages they compare with, which are no part of the tests; biaffine cannot do without
BENCHMARKS = {
    "core": Small(
        "--rounds 1 --device cpu",
        {
            "CHAINS": {"cpu": [(2, 5, 3, 1.0)]},
            "PROJECTIVE": {"cpu": [(2, 5, 1.0)]},
            "SPANNING": {"cpu": [(2, 5, 1.0)]},
            "chain_losses": lambda *_, **__: {},
            "tree_losses": lambda *_, **__: {},
            "chain_memory": lambda: {"work": "memory", "times_inputs": {}, "bar": 3.0},
        },
    ),
    "rewards": Small(
        "--rounds 1",
        {
            "installed": lambda _: False,
            "generate_and_score": _no_row,
            "replacement": _no_row,
            "captions": lambda _: [],
        },
    ),
    "estimators": Small("--repeats 2"),
    "grid": Small("--rounds 1 --models 2 --steps 1 --device cpu", {"memory": lambda *_: {}}),
    "ner": Small("--rounds 1", {"SENTENCES": 20, "FEATURES": 5, "VOCABULARY": 300}),
    "parsing": Small("--passes 1 --sentences 20 --tau 0.2"),
    "neural": Small(
        "--rounds 1 --sentences 24 --device cpu",
        {
            "TAGGER_SIZES": ["--hidden", "8"],
            "PARSER_SIZES": ["--hidden", "8", "--arc-size", "8", "--relation-size", "4"],
            "TINY": True,
        },
    ),
    "translation": Small(
        "--rounds 1 --steps 1 --size 8 --device cpu", {"SOURCE_VOCAB": 60, "TARGET_VOCAB": 60}
    ),
    "captioning": Small(
        "--rounds 1 --steps 1 --device cpu",
        {
            "VOCAB": 60,
            "FEATURES": 8,
            "SETTINGS": {
                kind: (count, CandidateSettings(size=10, k=10, estimator="paper"))
                for kind, count in (("RAML", 1), ("SQDML", 5))
            },
            "ImageCaptioner": partial(ImageCaptioner, embedding=8, hidden=8),
            "plain_loop": lambda *_: {"work": "plain loop", "words_per_second": 1},
        },
    ),
    "finetuning": Small(
        "--rounds 1 --blocks 2 --tiny --precision float32 --device cpu",
        {
            "SOURCES": 2,
            "SOURCE": 4,
            "TARGET_LENGTH": 4,
            "CANDIDATES": 2,
            "WARMUP": 1,
            "BLOCK": 2,
            "SKIPPED": 1,
        },
    ),
    "conformal": Small("--sentences 20 --splits 1", {"LEVELS": (0.5,)}),
    "encoder": Small(
        "--rounds 1 --images 2 --threads 1 --device cpu",
        {"SIZES": {"small": (40, 30)}, "DISTINCT": 2},
    ),
}


class _ReadError(Exception):
    """Options were read, and that was all."""


def run_benchmark(name, options, run_softq, *, read_only=False):
    """What a benchmark prints, with the options it was given, made small.

    ``run_softq`` runs commands that it starts as processes.
    """
    really_run, threads = subprocess.run, torch.get_num_threads()
    small = Small("") if read_only else BENCHMARKS[name]

    def run(command, **options):
        if command[:2] != [sys.executable, "-c"]:
            return really_run(command, **options)
        run_softq(command[3:])  # after python -c PROGRAM
        return subprocess.CompletedProcess(command, 0, "", "1024\n")  # its memory

    try:
        with replaced(subprocess, run=run):
            path = ROOT / "benchmarks" / f"{name}.py"
            return run_script(
                path, [*options, *small.flags.split()], read_only=read_only, **dict(small.names)
            )
    finally:
        torch.set_num_threads(threads)


def run_script(path, options, *, read_only=False, **names):
    """What the main program of a script prints, with other values for names in it.

    Or run it only as far as it has read its options.
    """
    parse, known = argparse.ArgumentParser.parse_args, set(sys.modules)

    def parse_and_stop(parser, *given):
        parse(parser, *given)
        raise _ReadError

    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    script = importlib.util.module_from_spec(spec)
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:  # left early where options alone are read
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(
            replaced(sys, argv=[str(path), *options], path=[str(path.parent), *sys.path])
        )
        if read_only:
            stack.enter_context(replaced(argparse.ArgumentParser, parse_args=parse_and_stop))
            stack.enter_context(contextlib.suppress(_ReadError))
        stack.callback(_forget_neighbours, path.parent, known)
        sys.modules[spec.name] = script
        spec.loader.exec_module(script)
        for name, value in names.items():
            getattr(script, name)  # a name that is not there would change nothing
            setattr(script, name, value)
        if hasattr(script, "main"):  # else it is a script from top to bottom, and has run
            script.main()
    return printed.getvalue()


def _forget_neighbours(folder, known):
    """Modules of a script's folder have short names, which others may want."""
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@contextlib.contextmanager
def replaced(owner, **values):
    """Other values for names of a module or a class, for a while."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
