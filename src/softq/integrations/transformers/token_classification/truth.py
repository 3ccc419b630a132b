"""The truth behind labels of annotators, with the tagger that is being trained in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from softq.annotators import AnnotatorTables, Crowd, SequentialFit
from softq.formats.conll import Sentence
from softq.formats.tags import Scheme
from softq.linear.truth_loop import TruthModel
from softq.objectives import cross_entropy
from softq.spaces import Distribution

_FILE = "annotators.safetensors"


class AnnotatorTruth:
    """Annotators' tables, and the probabilities of the true labels of their sentences.

    Before training the tables are those of `softq.annotators.SequentialFit`, in which a chain
    stands for the words. Each step takes the tagger as the prior (E-step); after an epoch the
    tables are updated by what the steps expected (M-step). With SQDML the tagger is trained toward
    the evidence alone, without how frequent labels are, and does not take part: it would make the
    tables worse, and they it.

    Attributes:
        tables: P(label given | true label) of each annotator.
        posterior: probabilities of the labels of all T words, ``[T, K]``, of the last update.

    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        labels: Sequence[str],
        scheme: Scheme | None,
        *,
        model: TruthModel,
        temper: float,
        tau: float | None,
    ) -> None:
        """Estimate the truth without a tagger.

        Args:
            sentences: with the labels of annotators.
            labels: names of the labels.
            scheme: what true labels keep to before there is a tagger; None: nothing.
            model: of the annotators.
            temper: power of their evidence.
            tau: the temperature of SQDML; None: ML.

        """
        crowd = Crowd.read(sentences, labels, previous=model == "sequential")
        self.tables, self._temper, self._tau = AnnotatorTables(crowd), temper, tau
        fit = SequentialFit(self.tables, crowd.labels, crowd.lengths, scheme)
        self.posterior = fit.posterior.labels
        self._starts = np.cumsum(crowd.lengths) - crowd.lengths
        self._forget()

    def _forget(self) -> None:
        """Begin an epoch: sums of probabilities, and how often each sentence was seen."""
        self._sums = np.zeros_like(self.posterior)
        self._seen = np.zeros(len(self._starts))

    def losses(self, space: Distribution, p: Distribution, sentences: Tensor) -> Tensor:
        """H(target, model) of a batch; what the target expects is kept for the next update."""
        rows = sentences.tolist()
        if self._tau is not None:
            # the evidence alone, at a temperature: softq.sqdml with the tables as the reward
            evidence = self.tables.target(space, rows, temper=1 / self._tau, weight=0.0)
            return cross_entropy(evidence, p)
        posterior = self.tables.target(space, rows, temper=self._temper)
        expected = posterior.marginals.double().cpu().numpy()
        for values, sentence in zip(expected, rows, strict=True):
            start, length = self._starts[sentence], self.tables.crowd.lengths[sentence]
            self._sums[start : start + length] += values[:length]
            self._seen[sentence] += 1
        return cross_entropy(posterior, p)

    def update(self, accelerator: Any) -> None:
        """M-step by what the steps of all processes expected since the last one."""
        sums, seen = self._gathered(accelerator)
        times = np.repeat(seen, self.tables.crowd.lengths)[:, None]
        self.posterior = np.where(times > 0, sums / np.maximum(times, 1), self.posterior)
        self.tables.update(self.posterior)
        self._forget()

    def _gathered(self, accelerator: Any) -> tuple[Any, Any]:
        return tuple(
            accelerator.reduce(torch.from_numpy(part).to(accelerator.device), "sum").cpu().numpy()
            for part in (self._sums, self._seen)
        )

    def labels(self) -> list[list[str]]:
        """The most probable true label of each word of each sentence."""
        names, best = self.tables.crowd.labels, self.posterior.argmax(1)
        return [[names[number] for number in row] for row in np.split(best, self._starts[1:])]

    def save(self, folder: Path, accelerator: Any) -> None:
        """Beside a checkpoint; called in every process."""
        sums, seen = self._gathered(accelerator)
        if accelerator.is_main_process:
            arrays = {"posterior": self.posterior, "sums": sums, "seen": seen}
            save_file(arrays, folder / _FILE)

    def load(self, folder: Path, accelerator: Any) -> None:
        """From a checkpoint."""
        arrays = load_file(folder / _FILE)
        self.posterior = arrays["posterior"]
        self.tables.update(self.posterior)
        self._forget()
        if accelerator.is_main_process:  # once, for what processes have seen is added up
            self._sums, self._seen = arrays["sums"], arrays["seen"]
