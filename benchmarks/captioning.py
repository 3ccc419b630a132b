"""The paper's captioner in training and in use, at the paper's size.

Vocabulary 10,102, features of 4,096 numbers, captions of 11 words.

*Training* is the real loop of `softq train captioning`: candidates made and scored in threads,
copied to the device, a step of Adam. Speed is in words a second, all candidates counted and ends of
sentences not. RAML takes 10 of 100 candidates of ⟨image, caption⟩ pairs, SQDML 50 of 500 of images
with five captions: 100 sequences a batch, as in the paper, and 1,000. *Idle* is the share of the
time between the end of one step on the GPU and the beginning of the next. The *plain loop* is what
one writes first: the same candidates made and scored in line, features repeated for each candidate,
autograd's LSTM cell in a Python loop over positions, all scores kept. *Decoding* is beam search of
captions that all come out 11 words long.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import softq
from sequences import machine_name, repeated_seconds, sentences, show, training
from softq.lab.recipe import Objective
from softq.neural.examples import Examples, Vectors
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.modules.sequence import teacher_forcing
from softq.neural.recipe import CandidateSettings
from softq.sentences import Sentences

VOCAB, FEATURES, LENGTH, TAU = 10_102, 4_096, 11, 0.9
SETTINGS = {  # captions of an example, candidates
    "RAML": (1, CandidateSettings(size=100, k=10, max_n=3, estimator="paper")),
    "SQDML": (5, CandidateSettings(size=500, k=50, max_n=3, estimator="paper")),
}
BARS = {100: 0.8e6, 1000: 1.5e6}


class PlainCaptioner(nn.Module):
    """The same model as a first version has it; gradients are autograd's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first_cell = nn.Embedding(VOCAB, 256), nn.Linear(FEATURES, 512)
        self.cell, self.output, self.dropout = (
            nn.LSTMCell(256, 512),
            nn.Linear(512, VOCAB),
            nn.Dropout(0.3),
        )

    def forward(self, features: Tensor, read: Tensor, wanted: Tensor) -> Tensor:
        """Log-probabilities of sentences ``[M]``, all of one length."""
        cell = self.first_cell(self.dropout(features))
        hidden, vectors = cell.tanh(), []
        for word in self.dropout(self.words(read)).unbind(1):
            hidden, cell = self.cell(word, (hidden, cell))
            vectors.append(self.dropout(hidden))
        log_probs = self.output(torch.stack(vectors, 1)).log_softmax(2)
        return log_probs.gather(2, wanted.unsqueeze(2)).squeeze(2).sum(1)


def features(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random((count, FEATURES), np.float32)


def train(name: str, sequences: int, steps: int, options: argparse.Namespace) -> dict[str, Any]:
    captions, candidates = SETTINGS[name]
    images = sequences // candidates.k
    written = sentences(images * steps * captions, LENGTH, VOCAB, 1)
    references = [written[begin : begin + captions] for begin in range(0, len(written), captions)]
    table = Vectors(features(256), np.arange(images * steps) % 256)
    found = training(
        f"{name}, {images} × {candidates.k}",
        ImageCaptioner(FEATURES, VOCAB),
        Examples(table, references),
        Objective(name.lower(), TAU),
        candidates,
        inputs=images,
        words=sequences * LENGTH,
        steps=steps,
        rounds=options.rounds,
        device=torch.device(options.device),
        precision=options.precision,
    )
    return found | {"bar": BARS[sequences]}


def plain_loop(name: str, steps: int, options: argparse.Namespace) -> dict[str, Any]:
    """Words a second of the plain loop, 100 sequences a batch."""
    device, (captions, settings) = torch.device(options.device), SETTINGS[name]
    images, model = 100 // settings.k, PlainCaptioner().to(device)
    adam = torch.optim.Adam(model.parameters())
    sampler = softq.samplers.NgramReplacement(
        VOCAB, max_n=settings.max_n, size=settings.size, specials=range(4)
    )
    bleu, objective = softq.rewards.SentenceBLEU(), softq.raml if name == "RAML" else softq.sqdml
    written = sentences(images * captions, LENGTH, VOCAB, 1)
    references = Sentences.pack(
        [written[begin : begin + captions] for begin in range(0, len(written), captions)]
    )
    seen, generator = torch.from_numpy(features(images)), torch.Generator().manual_seed(0)

    def step() -> None:
        made = sampler(references, generator=generator)
        measured = made.measure("paper", settings.k, generator=generator)
        target = objective(measured, references, TAU, bleu)
        read, wanted, _ = (
            part.flatten(0, 1).to(device) for part in teacher_forcing(*target.outputs.sentences)
        )
        adam.zero_grad()
        log_probs = model(seen.repeat_interleave(settings.k, 0).to(device), read, wanted)
        loss = -(target.weights.flatten().float().to(device) * log_probs).sum() / images
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        adam.step()

    for _ in range(3):
        step()
    speeds = [
        100 * LENGTH * steps / seconds
        for seconds in repeated_seconds(step, steps, min(options.rounds, 3))
    ]
    return {
        "work": f"plain loop, {name}, {images} × {settings.k}",
        "words_per_second": round(statistics.median(speeds)),
    }


def decoding(count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Captions a second of beam search with 5."""
    device = torch.device(options.device)
    model = ImageCaptioner(FEATURES, VOCAB).to(device).eval()
    with torch.no_grad():
        model.output.bias[2] = -30.0  # END comes when nothing else may
    batches = torch.from_numpy(features(count)).to(device).split(512)

    def caption() -> int:
        found = (
            model.generate((batch,), size=5, max_length=LENGTH).lengths[:, 0] for batch in batches
        )
        return sum(int((lengths == LENGTH).sum()) for lengths in found)

    if caption() != count:
        raise SystemExit("captions must come out 11 words long to be compared")
    speeds = [count / seconds for seconds in repeated_seconds(caption, 1, min(options.rounds, 3))]
    return {"work": "decoding, beam 5", "sentences_per_second": round(statistics.median(speeds))}


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--precision", default="bf16", choices=["float32", "tf32", "bf16"])
    make.add_argument("--rounds", type=int, default=5)
    make.add_argument(
        "--steps",
        type=int,
        default=None,
        help="in a round; by default 600 and 100 on a GPU, and 2 on a CPU",
    )
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    on_gpu = options.device == "cuda"
    usual = {100: 600, 1000: 100} if on_gpu else {100: 2, 1000: 2}
    rows = [
        train(name, sequences, options.steps or steps, options)
        for sequences, steps in usual.items()
        for name in SETTINGS
    ]
    plain = [plain_loop(name, 50 if on_gpu else 2, options) for name in SETTINGS]
    for ours, theirs in zip(rows, plain, strict=False):  # the first rows are those of 100 sequences
        ours["times_plain"] = round(ours["words_per_second"] / theirs["words_per_second"], 2)
    rows += [*plain, decoding(4096 if on_gpu else 16, options)]
    machine = machine_name(options.device)
    if not options.json:
        show(rows, f"the paper's captioner, {machine}")
    about = {
        "device": options.device,
        "machine": machine,
        "torch": torch.__version__,
        "precision": options.precision,
    }
    print(json.dumps({"benchmark": "captioning", **about, "rows": rows}))


if __name__ == "__main__":
    main()
