"""Trains tiny models with other toolkits and records their outputs, for the tests of nmt-import.

    python scripts/record_imports.py huggingface tests/unit/exchange/huggingface
    python scripts/record_imports.py marian tests/unit/exchange/marian

It needs the packages transformers and pymarian, which nmt itself does not need. Everything is drawn
from one seed, and the files are small enough to be part of the repository.
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch

CORPUS = Path(__file__).parents[1] / "nmt/builtin/corpus"
NORMALIZATION = {"FB01": "66 69", "A0": "20", "2019": "27"}  # a ligature, a space, an apostrophe
PIECES = 280
DIM = 16
STEPS = 1500
SENTENCES = 12
ODD = ["The ﬁne\u00a0man’s dog   sees ☃ .", ">>deu<< The old man sees a dog."]


def read_lines(language: str, count: int) -> list[str]:
    """The first lines of the built-in corpus."""
    with gzip.open(CORPUS / f"train.{language}.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for _, line in zip(range(count), file, strict=False)]


def learn_pieces(lines: Sequence[str], path: Path, *, count: int = PIECES) -> list[str]:
    """A sentencepiece model with a small normalisation of its own; returns its pieces."""
    with tempfile.TemporaryDirectory() as name:
        rules, text = Path(name) / "rules.tsv", Path(name) / "text"
        rules.write_text("".join(f"{old}\t{new}\n" for old, new in NORMALIZATION.items()))
        text.write_text("\n".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=f"{name}/model",
            vocab_size=count,
            normalization_rule_tsv=str(rules),
            eos_id=0,
            unk_id=1,
            bos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
        path.write_bytes((Path(name) / "model.model").read_bytes())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(number) for number in range(len(processor))]


def record_huggingface(folder: Path) -> None:
    """A MarianMT model, its folder, and what transformers does with it."""
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    sources, targets = (read_lines(language, 2000) for language in ("en", "de"))
    ids: dict[str, int] = {}
    for side, lines in (("source", sources), ("target", targets)):
        for piece in learn_pieces(lines, folder / f"{side}.spm"):
            ids.setdefault(piece, len(ids))
    for piece in (">>deu<<", "<pad>"):
        ids[piece] = len(ids)
    padding = ids["<pad>"]
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer = MarianTokenizer(*files, source_lang="en", target_lang="de")
    torch.manual_seed(1)
    symbols = {"pad_token_id": padding, "eos_token_id": 0, "decoder_start_token_id": padding}
    config = MarianConfig(
        vocab_size=len(ids),
        d_model=DIM,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=128,
        forced_eos_token_id=0,
        **symbols,
    )
    model = MarianMTModel(config)
    with torch.no_grad():
        model.model.shared.weight.normal_(std=DIM**-0.5)
        model.final_logits_bias.normal_(std=0.5)
    encoded = [tokenizer(line)["input_ids"] for line in sources]
    wanted = [tokenizer(text_target=line)["input_ids"] for line in targets]
    train(model, encoded, wanted, padding)
    model.generation_config = GenerationConfig(
        num_beams=3, length_penalty=1.0, max_length=60, bad_words_ids=[[padding]], **symbols
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lines = [*sources[:SENTENCES], *ODD]
    recorded = {
        "lines": lines,
        "targets": targets[: len(lines)],
        "pieces": [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines],
        **huggingface_outputs(model, tokenizer, lines, targets[: len(lines)]),
    }
    write_record(folder, recorded)


def train(model: Any, sources: Sequence[Any], targets: Sequence[Any], padding: int) -> None:
    """A few updates, until most outputs end."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model.train()
    for step in range(STEPS):
        chosen = [(32 * step + number) % len(sources) for number in range(32)]
        source = pad([sources[row] for row in chosen], padding)
        target = pad([targets[row] for row in chosen], -100)
        mask = source.ne(padding)
        loss = model(input_ids=source, attention_mask=mask, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def pad(sentences: Sequence[Sequence[int]], filling: int) -> torch.Tensor:
    """Sentences of one length."""
    longest = max(map(len, sentences))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in sentences])


@torch.inference_mode()
def huggingface_outputs(
    model: Any, tokenizer: Any, lines: Sequence[str], targets: Sequence[str]
) -> dict[str, Any]:
    """Translations by greedy and beam search, and log probabilities of given targets."""
    found: dict[str, Any] = {"greedy": [], "beam": [], "log_probabilities": []}
    for line, target in zip(lines, targets, strict=True):
        batch = tokenizer(line, return_tensors="pt")
        for name, beams in (("greedy", 1), ("beam", 3)):
            output = model.generate(**batch, num_beams=beams)
            found[name].append(tokenizer.decode(output[0], skip_special_tokens=True))
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        scores = model(**batch, labels=labels).logits.log_softmax(-1)
        chosen = scores.gather(2, labels[:, :, None])[0, :, 0]
        found["log_probabilities"].append([round(x, 6) for x in chosen.tolist()])
    return found


MARIAN_PIECES = 130
MARIAN_BATCHES = 700
CROSS_ENTROPY = re.compile(r"ce-mean-words : ([0-9.]+)")
MARIAN_MODELS = {
    "pieces": (
        ".spm",
        "--dim-emb 16 --enc-depth 1 --dec-depth 1 --transformer-dim-ffn 24 "
        "--transformer-ffn-activation swish --tied-embeddings-all",
    ),
    # Marian decodes pre-norm models in another way than it trains them, so of this one only the
    # cross-entropy is compared.
    "words": (
        ".yml",
        "--dim-emb 8 --enc-depth 2 --dec-depth 1 --transformer-dim-ffn 12 "
        "--transformer-ffn-activation relu --transformer-preprocess n "
        "--transformer-postprocess da --transformer-postprocess-top n",
    ),
}


def pymarian(*arguments: object, text: Sequence[str] = ()) -> str:
    """Run a command of Marian; returns its output."""
    command = [sys.executable, "-m", "pymarian", *map(str, arguments), "--cpu-threads", "1"]
    data = "".join(f"{line}\n" for line in text)
    done = subprocess.run(command, input=data, capture_output=True, text=True, check=True)
    return done.stdout or done.stderr


def record_marian(folder: Path) -> None:
    """Transformers of Marian, and what it does with them."""
    folder.mkdir(parents=True, exist_ok=True)
    sources, targets = (read_lines(language, 1000) for language in ("en", "de"))
    learn_pieces([*sources, *targets], folder / "both.spm", count=MARIAN_PIECES)
    recorded: dict[str, Any] = {"lines": [*sources[:SENTENCES], ODD[0]]}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for language, lines in (("en", sources), ("de", targets)):
            (work / language).write_text("\n".join(lines) + "\n", encoding="utf-8")
        for model, (suffix, options) in MARIAN_MODELS.items():
            sides = ["both", "both"] if suffix == ".spm" else ["source", "target"]
            vocabularies = [folder / f"{side}{suffix}" for side in sides]
            file = work / "model.npz"
            log = pymarian(
                *("train", "--type", "transformer", "-m", file, "-v", *vocabularies),
                *("-t", work / "en", work / "de", "--dim-vocabs", MARIAN_PIECES, MARIAN_PIECES),
                *("--valid-sets", work / "en", work / "de", "--valid-metrics", "ce-mean-words"),
                *("--valid-freq", MARIAN_BATCHES, "--after-batches", MARIAN_BATCHES),
                *("--mini-batch", 32, "--learn-rate", 0.01, "--seed", 1, "--overwrite"),
                *("--workspace", 200, "--transformer-heads", 2),
                *options.split(),
            )
            recorded[f"{model}: cross-entropy"] = float(CROSS_ENTROPY.findall(log)[-1])
            for path in vocabularies if suffix == ".yml" else ():
                shorten(path)
            file.replace(folder / f"{model}.npz")
            recorded[model] = marian_outputs(
                folder / f"{model}.npz", vocabularies, recorded["lines"]
            )
            for left in work.glob("model.npz*"):
                left.unlink()
    write_record(folder, recorded)


def shorten(vocabulary: Path) -> None:
    """Keep a few words more than the model knows."""
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    vocabulary.write_text("\n".join(lines[: MARIAN_PIECES + 5]) + "\n", encoding="utf-8")


def marian_outputs(model: Path, vocabularies: Sequence[Path], lines: Sequence[str]) -> Any:
    """The best translation of each line with a beam of 3, and its log probability."""
    printed = pymarian(
        *("decode", "-m", model, "-v", *vocabularies, "-b", 3, "-n", 0, "--n-best"),
        *("--max-length-factor", 10, "--quiet", "--quiet-translation", "--workspace", 200),
        text=lines,
    )
    best: dict[int, Any] = {}
    for line in printed.splitlines():
        number, text, score, _ = (part.strip() for part in line.split("|||"))
        best.setdefault(int(number), [text, float(score.partition("=")[2])])
    return [best[number] for number in range(len(lines))]


def write_record(folder: Path, recorded: dict[str, Any]) -> None:
    """Write recorded.json."""
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (folder / "recorded.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    {"huggingface": record_huggingface, "marian": record_marian}[sys.argv[1]](Path(sys.argv[2]))
