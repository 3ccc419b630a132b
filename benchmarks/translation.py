"""The paper's translator in training and in use, at the paper's size.

Vocabularies 32,008 / 22,821, sentences of 19 / 20 words.

*Training* is the real loop of `softq train translation`: candidates made and scored in threads,
copied to the device, a step of Adam. Speed is in target words a second, all candidates counted and
ends of sentences not. *Idle* is the share of the time between the end of one step on the GPU and
the beginning of the next. The *plain loop* is what one writes first: candidates made in line, the
source repeated for each candidate, autograd through a Python loop over positions, all scores kept.
*Decoding* is beam search of sentences that all come out 20 words long.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import torch
from torch import Tensor, nn

import softq
from sequences import machine_name, repeated_seconds, sentences, show, training
from softq.lab.recipe import Objective
from softq.neural.examples import Examples
from softq.neural.modules.sequence import teacher_forcing
from softq.neural.modules.translator import AttentionalTranslator
from softq.neural.recipe import CandidateSettings
from softq.sentences import Sentences

SOURCE_VOCAB, TARGET_VOCAB, SOURCE_LENGTH, TARGET_LENGTH = 32_008, 22_821, 19, 20
TAU = 0.4
BARS = {
    ("n-gram", 64): 1.0e6,
    ("n-gram", 10): 0.45e6,
    ("importance", 64): 0.85e6,
    ("importance", 10): 0.3825e6,
}
SETTINGS = {
    "n-gram": CandidateSettings(size=10),
    "importance": CandidateSettings(size=10, sampler="hamming", estimator="importance"),
}


class PlainTranslator(nn.Module):
    """The same model as a first version has it; gradients are autograd's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.source, self.target = (
            nn.Embedding(SOURCE_VOCAB, size),
            nn.Embedding(TARGET_VOCAB, size),
        )
        self.encoder = nn.LSTM(size, size, bidirectional=True, batch_first=True)
        self.first_cell, self.keys = (
            nn.Linear(2 * size, size),
            nn.Linear(2 * size, size, bias=False),
        )
        self.cell = nn.LSTMCell(2 * size, size)
        self.attentional = nn.Linear(3 * size, size, bias=False)
        self.output, self.dropout = nn.Linear(size, TARGET_VOCAB), nn.Dropout(0.2)

    def forward(self, source: Tensor, inputs: Tensor, wanted: Tensor) -> Tensor:
        """Log-probabilities of sentences ``[M]``.

        All sources and all sentences are of one length here.
        """
        known, (last, _) = self.encoder(self.dropout(self.source(source)))
        keys = self.keys(known)
        cell = self.first_cell(torch.cat([last[0], last[1]], 1))
        hidden, fed, vectors = cell.tanh(), torch.zeros_like(cell), []
        for word in self.dropout(self.target(inputs)).unbind(1):
            hidden, cell = self.cell(torch.cat([word, fed], 1), (hidden, cell))
            weights = torch.einsum("mnh,mh->mn", keys, hidden).softmax(1)
            context = torch.einsum("mn,mnh->mh", weights, known)
            fed = self.dropout(self.attentional(torch.cat([hidden, context], 1)).tanh())
            vectors.append(fed)
        log_probs = self.output(torch.stack(vectors, 1)).log_softmax(2)
        return log_probs.gather(2, wanted.unsqueeze(2)).squeeze(2).sum(1)


def train(name: str, inputs: int, steps: int, options: argparse.Namespace) -> dict[str, Any]:
    data = Examples(
        sentences(inputs * steps, SOURCE_LENGTH, SOURCE_VOCAB, 0),
        [[sentence] for sentence in sentences(inputs * steps, TARGET_LENGTH, TARGET_VOCAB, 1)],
    )
    found = training(
        f"{name}, {inputs} × 10",
        AttentionalTranslator(
            SOURCE_VOCAB, TARGET_VOCAB, embedding=options.size, hidden=options.size
        ),
        data,
        Objective("raml", TAU),
        SETTINGS[name],
        inputs=inputs,
        words=inputs * 10 * TARGET_LENGTH,
        steps=steps,
        rounds=options.rounds,
        device=torch.device(options.device),
        precision=options.precision,
    )
    return found | {"bar": BARS[name, inputs]}


def plain_loop(inputs: int, steps: int, rounds: int, options: argparse.Namespace) -> dict[str, Any]:
    """Words a second of the plain loop."""
    device = torch.device(options.device)
    model = PlainTranslator(options.size).to(device)
    adam = torch.optim.Adam(model.parameters())
    sampler, bleu = (
        softq.samplers.NgramReplacement(TARGET_VOCAB, size=10, specials=range(4)),
        softq.rewards.SentenceBLEU(),
    )
    source = torch.tensor(sentences(inputs, SOURCE_LENGTH, SOURCE_VOCAB, 0))
    references = Sentences.pack(
        [[sentence] for sentence in sentences(inputs, TARGET_LENGTH, TARGET_VOCAB, 1)]
    )
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        target = softq.raml(sampler(references, generator=generator), references, TAU, bleu)
        repeated = source.repeat_interleave(10, 0).to(device)
        read, wanted, _ = (
            part.flatten(0, 1).to(device) for part in teacher_forcing(*target.outputs.sentences)
        )
        adam.zero_grad()
        loss = (
            -(target.weights.flatten().float().to(device) * model(repeated, read, wanted)).sum()
            / inputs
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        adam.step()

    step()
    speeds = [
        inputs * steps * 10 * TARGET_LENGTH / seconds
        for seconds in repeated_seconds(step, steps, rounds)
    ]
    return {
        "work": f"plain loop, {inputs} × 10",
        "words_per_second": round(statistics.median(speeds)),
    }


def decoding(count: int, rounds: int, options: argparse.Namespace) -> dict[str, Any]:
    """Sentences a second of beam search with 5."""
    device = torch.device(options.device)
    model = (
        AttentionalTranslator(
            SOURCE_VOCAB, TARGET_VOCAB, embedding=options.size, hidden=options.size
        )
        .to(device)
        .eval()
    )
    with torch.no_grad():
        model.output.bias[2] = -30.0  # END comes when nothing else may
    source = Sentences.pack(sentences(count, SOURCE_LENGTH, SOURCE_VOCAB, 2))
    batches = [
        Sentences(*(part.to(device) for part in batch))
        for batch in zip(*(part.split(256) for part in source), strict=True)
    ]

    def translate() -> int:
        return sum(
            int(
                (
                    model.generate(batch, size=5, max_length=TARGET_LENGTH).lengths[:, 0]
                    == TARGET_LENGTH
                ).sum()
            )
            for batch in batches
        )

    if translate() != count:
        raise SystemExit("sentences must come out 20 words long to be compared with the bar")
    speeds = [count / seconds for seconds in repeated_seconds(translate, 1, rounds)]
    return {
        "work": "decoding, beam 5",
        "sentences_per_second": round(statistics.median(speeds)),
        "bar": 1500,
    }


def main() -> None:
    make = argparse.ArgumentParser(description=__doc__)
    make.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    make.add_argument("--size", type=int, default=256, help="of embeddings and states")
    make.add_argument("--precision", default="bf16", choices=["float32", "tf32", "bf16"])
    make.add_argument("--rounds", type=int, default=5)
    make.add_argument(
        "--steps",
        type=int,
        default=None,
        help="in a round; by default 200 with 64 inputs, 600 with 10, and 2 on a CPU",
    )
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = make.parse_args()
    on_gpu = options.device == "cuda"
    usual = {64: 200, 10: 600} if on_gpu else {64: 2, 10: 2}
    rows = [
        train(name, inputs, options.steps or steps, options)
        for inputs, steps in usual.items()
        for name in SETTINGS
    ]
    plain = plain_loop(10, 20 if on_gpu else 1, min(options.rounds, 3), options)
    ours = next(row for row in rows if row["work"] == "n-gram, 10 × 10")
    ours["times_plain"] = round(ours["words_per_second"] / plain["words_per_second"], 2)
    rows += [plain, decoding(2048 if on_gpu else 16, min(options.rounds, 3), options)]
    machine = machine_name(options.device)
    if not options.json:
        show(rows, f"the paper's translator, {machine}")
    about = {
        "device": options.device,
        "machine": machine,
        "torch": torch.__version__,
        "precision": options.precision,
    }
    print(json.dumps({"benchmark": "translation", **about, "rows": rows}))


if __name__ == "__main__":
    main()
