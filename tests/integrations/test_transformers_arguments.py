"""What `RewardAugmentedArguments` accept, and what they say to the rest."""

import builtins
import importlib
import sys

import pytest
from transformers import HfArgumentParser

from softq.errors import DependencyError, RecipeError, SoftqError, TemperatureError
from softq.integrations.transformers import RewardAugmentedArguments
from tiny_models import arguments

REFUSED = [
    ({"objective": "reinforce"}, "objective must be one of ml, raml, sqdml, got 'reinforce'"),
    ({"estimator": "best"}, "estimator must be one of set, paper, importance, got 'best'"),
    ({"corpus_metric": "comet"}, "corpus_metric must be one of bleu, chrf, none, got 'comet'"),
    ({"candidates": ["ngram"]}, r"candidates must be a text, several joined by \+ as in"),
    ({"candidates": "ngram+beam"}, "candidates must be one of ngram, hamming, edit, recombined,"),
    ({"candidates": "ngram+ngram"}, "candidates must name each source once, got 'ngram\\+ngram'"),
    ({"candidate_size": 0}, "candidate_size must be a whole number from 1, got 0"),
    ({"max_n": True}, "max_n must be a whole number from 1, got True"),
    ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number from 1, got 1.5"),
    ({"eval_num_beams": 0}, "eval_num_beams must be a whole number from 1, got 0"),
    ({"eval_mbr_samples": -1}, "eval_mbr_samples must be a whole number from 0, got -1"),
    ({"k": 0}, "k must be a whole number from 1, got 0"),
    ({"remove_unused_columns": True}, "remove_unused_columns must stay False: references and"),
    ({"sampling_top_p": 0.0}, "sampling_top_p must lie in 0..1, got 0.0"),
    ({"sampling_top_p": 1.5}, "sampling_top_p must lie in 0..1, got 1.5"),
    ({"sampling_temperature": 0.0}, "sampling_temperature must be positive, got 0.0"),
    ({"accelerator_config": {"dispatch_batches": True}}, "accelerator_config must leave"),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is for ml: raml has a smooth target"),
    ({"estimator": "paper"}, "estimator 'paper' needs k, how many candidates a step uses"),
    ({"estimator": "importance", "candidates": "ngram"}, "need one source of known probability"),
    ({"estimator": "importance", "candidates": "edit+model"}, "importance weights need one source"),
    ({"estimator": "importance", "candidates": "edit", "k": 3}, "importance weights use every"),
    (
        {"estimator": "importance", "candidates": "model", "sampling_top_p": 0.9},
        (
            "importance weights of the model's samples need sampling_temperature 1 and"
            " sampling_top_p 1"
        ),
    ),
    ({"preset": "grpo"}, "preset must be one of raft, best-of-n, dpg, rwr, tpo, got 'grpo'"),
    ({"preset": "dpg", "prior": "none"}, "preset 'dpg' is prior='base', got prior='none': leave"),
    ({"preset": "raft"}, "preset 'raft' is tau=1e-08, got tau=0.5: leave out one of the two"),
    ({"preset": "dpg", "objective": "ml"}, "preset 'dpg' is for raml and sqdml: ml trains on"),
    ({"prior": "self"}, "prior must be one of none, base, current, got 'self'"),
    ({"prior": "base", "objective": "ml"}, "prior 'base' is for raml and sqdml: ml has all its"),
    ({"prior_weight": float("nan")}, "prior_weight must be finite, got nan"),
    ({"reward_weights": [1.0, float("inf")]}, r"reward_weights must be finite, got \[1.0, inf\]"),
    ({"normalize_model": True, "k": 3}, "normalize_model needs raml or sqdml and all candidates"),
    ({"length_normalization": "prior"}, "length_normalization 'prior' needs a prior"),
    ({"length_normalization": "loss", "objective": "ml"}, "length_normalization is for raml and"),
    ({"length_normalization": "tokens"}, "length_normalization must be one of none, prior, loss"),
    ({"reuse_samples": 0}, "reuse_samples must be a whole number from 1, got 0"),
    ({"reuse_samples": 2}, "reuse_samples is for the model's own samples: add candidates 'model'"),
    ({"min_ess": 1.5}, "min_ess must lie in 0..1, got 1.5"),
    ({"generation": "vllm"}, "generation must be one of eager, static, compiled, continuous, got"),
    ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be a whole number from 1, got 0"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_arguments_that_are_refused(settings, message, tmp_path):
    with pytest.raises(RecipeError, match=message):
        arguments(tmp_path, **settings)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_that_are_refused(tau, tmp_path):
    with pytest.raises(SoftqError, match="tau"):
        arguments(tmp_path, tau=tau)


def test_a_temperature_is_needed_but_for_ml(tmp_path):
    for objective in ("raml", "sqdml"):
        with pytest.raises(
            TemperatureError,
            match=f"{objective} needs a temperature: give tau, such as 0.2 for BLEU",
        ):
            arguments(tmp_path, objective=objective, tau=None)
    assert (
        arguments(
            tmp_path, objective="ml", tau=None, label_smoothing_factor=0.1, estimator="paper"
        ).tau
        is None
    )


def test_presets(tmp_path):
    """Each is a target of the family; what is given explicitly is kept."""
    names = ("prior", "candidates", "estimator", "add_references", "standardize_rewards", "tau")
    wanted = {
        None: ("none", "ngram", "set", True, False, 0.5),
        "raft": ("none", "model", "set", False, False, 1e-8),
        "best-of-n": ("none", "model", "set", False, False, 1e-8),
        "dpg": ("base", "model", "importance", False, False, 0.5),
        "rwr": ("current", "model", "importance", False, False, 0.5),
        "tpo": ("current", "model", "set", False, True, 1.0),
    }
    for preset, values in wanted.items():
        tau = 0.5 if values[-1] == 0.5 else None
        made = arguments(tmp_path, preset=preset, tau=tau)
        assert tuple(getattr(made, name) for name in names) == values, preset
        assert made.normalize_model is (preset == "tpo")
        again = arguments(tmp_path, preset=preset, **{name: getattr(made, name) for name in names})
        assert tuple(getattr(again, name) for name in names) == values, preset
    made = arguments(tmp_path, preset="tpo", tau=0.3, standardize_rewards=False, candidates="edit")
    assert (made.tau, made.standardize_rewards, made.candidates) == (0.3, False, "edit")
    # completions of the dataset have no probability of their own
    assert arguments(tmp_path, preset="dpg", candidates="dataset").estimator == "set"


def test_what_is_set_for_trainer(tmp_path):
    made = arguments(tmp_path, candidates="edit+model+dataset")
    assert made.candidate_kinds == ("edit", "model", "dataset")
    assert made.label_names == ["labels"]
    assert made.accelerator_config.dispatch_batches is False
    assert arguments(tmp_path, label_names=["other"]).label_names == ["other"]


def test_flags_of_a_script(tmp_path):
    flags = [
        "--output_dir",
        str(tmp_path),
        "--objective",
        "sqdml",
        "--tau",
        "0.3",
        "--candidates",
        "edit",
        "--k",
        "4",
        "--report_to",
        "none",
        "--reward_weights",
        "1",
        "0.5",
        "--standardize_rewards",
        "true",
    ]
    (made,) = HfArgumentParser(RewardAugmentedArguments).parse_args_into_dataclasses(flags)
    assert (made.objective, made.tau, made.candidates, made.k, made.estimator) == (
        "sqdml",
        0.3,
        "edit",
        4,
        "set",
    )
    assert made.reward_weights == [1.0, 0.5]
    assert (made.prior, made.standardize_rewards, made.add_references) == ("none", True, True)
    (made,) = HfArgumentParser(RewardAugmentedArguments).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--preset", "tpo", "--report_to", "none"]
    )
    assert (made.prior, made.tau, made.normalize_model) == ("current", 1.0, True)


def test_without_transformers_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "softq.integrations.transformers")
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DependencyError, match=r"softq.integrations.transformers needs"):
        importlib.import_module("softq.integrations.transformers")
