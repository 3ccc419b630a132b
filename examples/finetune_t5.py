r"""Fine-tune an encoder-decoder (T5, BART, Marian) toward a reward: by likelihood first, then by RAML or SQDML from there.

    python examples/finetune_t5.py                               # no files, no network: a tiny T5 and two made-up languages
    python examples/finetune_t5.py --model google-t5/t5-small --template "translate German to English: {}" --train train.tsv --dev dev.tsv \
        --lr 3e-4 --ml-epochs 3 --epochs 1 --candidates ngram+model --out tuned

A line of --train and --dev is a source, a tab and a reference; more tabs and references may follow (plain, .gz or .xz).
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch
from transformers import PrinterCallback, set_seed

from softq.formats.bitext import read_bitext
from softq.integrations.transformers import (
    RewardAugmentedArguments,
    RewardAugmentedTrainer,
    RowEncoder,
)
from softq.integrations.transformers.loading import (
    load_model,
    make_t5,
    refuse_full,
    save_model,
    train_tokenizer,
)
from softq.lab.worlds import LanguageWorld

make = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
make.add_argument(
    "--model", help="name or folder of an encoder-decoder; a tiny T5 of random weights if not given"
)
make.add_argument(
    "--train",
    type=Path,
    help="texts to learn from; sentences of two made-up languages if not given",
)
make.add_argument("--dev", type=Path, help="texts for evaluation; those of --train if not given")
make.add_argument(
    "--template",
    default="{}",
    help=r"what the model reads, with {} for the source and \n for a new line ({})",
)
make.add_argument(
    "--objective",
    choices=["raml", "sqdml"],
    default="sqdml",
    help="of the second stage; sqdml is for several references",
)
make.add_argument(
    "--tau", type=float, default=0.1, help="its temperature, in units of the reward (0.1)"
)
make.add_argument(
    "--reward",
    default="bleu",
    help="bleu, chrf, rouge-l, edit or exact, on tokens; words:bleu, … on words (bleu)",
)
make.add_argument(
    "--candidates",
    default="ngram",
    help="ngram, hamming, edit, recombined, model, several joined by + (ngram)",
)
make.add_argument(
    "--candidate-size", type=int, default=4, help="candidates of a source, from each of these (4)"
)
make.add_argument(
    "--lr",
    type=float,
    default=5e-3,
    help="learning rate, of the second stage half; 3e-4 for a pretrained T5 (0.005)",
)
make.add_argument("--ml-epochs", type=float, default=4, help="passes by likelihood (4)")
make.add_argument("--epochs", type=float, default=2, help="passes toward the reward (2)")
make.add_argument("--batch", type=int, default=8, help="sources of a step (8)")
make.add_argument("--max-source", type=int, default=256, help="longest source, in tokens (256)")
make.add_argument(
    "--max-target",
    type=int,
    help="longest reference and written text, in tokens (256; 40 of the made-up languages)",
)
make.add_argument(
    "--bf16", action="store_true", help="compute in bfloat16 where it is safe; for GPUs"
)
make.add_argument("--seed", type=int, default=0, help="of all that is random (0)")
make.add_argument(
    "--out", type=Path, help="folder for the model and its tokenizer, as from_pretrained reads them"
)
options = make.parse_args()
if options.out:
    refuse_full(options.out)
set_seed(options.seed)
template, most = (
    options.template.replace("\\n", "\n"),
    options.max_target or (256 if options.train else 40),
)

if options.train:
    train, dev = read_bitext(options.train), read_bitext(options.dev or options.train)
else:  # of many sentences those that are made of common words, which a tiny model learns in seconds
    drawn = LanguageWorld(idiom=0).sample(6000, seed=0, references=2)
    common = {word for word, _ in Counter(" ".join(drawn.sources).split()).most_common(60)}
    easy = [
        number for number, source in enumerate(drawn.sources) if common.issuperset(source.split())
    ]
    train, dev = drawn.take(easy[:240]), drawn.take(easy[240:290])
if options.model:
    model, tokenizer = load_model(options.model, dtype="float32")
else:
    tokenizer = train_tokenizer(
        [template, *train.sources, *(text for several in train.references for text in several)], 400
    )
    model = make_t5("t5-tiny", tokenizer, dropout=0)

encode = RowEncoder(tokenizer, causal=False, max_source=options.max_source, max_target=most)
rows, judged = (
    encode.all(
        [
            {"source": template.replace("{}", a), "references": b}
            for a, b in zip(text.sources, text.references, strict=True)
        ]
    )
    for text in (train, dev)
)
stages = {
    "ml": (None, options.ml_epochs, options.lr),
    options.objective: (options.tau, options.epochs, options.lr / 2),
}
shared = {
    name: getattr(options, name)
    for name in ("reward", "candidates", "candidate_size", "bf16", "seed")
}
shared |= {
    "per_device_train_batch_size": options.batch,
    "per_device_eval_batch_size": 64,
    "use_cpu": not torch.cuda.is_available(),
}
shared |= {
    "output_dir": tempfile.gettempdir(),
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "max_new_tokens": most,
}
for objective, (tau, epochs, rate) in stages.items():
    arguments = RewardAugmentedArguments(
        objective=objective, tau=tau, num_train_epochs=epochs, learning_rate=rate, **shared
    )
    trainer = RewardAugmentedTrainer(
        model, arguments, processing_class=tokenizer, train_dataset=rows, eval_dataset=judged
    )
    trainer.remove_callback(PrinterCallback)
    before = trainer.evaluate()["eval_reward"]
    trainer.train()
    print(
        f"{objective}: reward {before:.4f} before, {trainer.evaluate()['eval_reward']:.4f} after"
        f" ({trainer.reward.signature})"
    )
if options.out:
    save_model(trainer.model, tokenizer, options.out)
