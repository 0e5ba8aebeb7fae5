"""Trains tiny models with other toolkits and records their outputs, for the tests of nmt-import.

    python scripts/record_imports.py huggingface tests/unit/exchange/huggingface

It needs the package transformers, which nmt itself does not need. Everything is drawn from one
seed, and the files are small enough to be part of the repository.
"""

import gzip
import json
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


def learn_pieces(lines: Sequence[str], path: Path) -> list[str]:
    """A sentencepiece model with a small normalisation of its own; returns its pieces."""
    with tempfile.TemporaryDirectory() as name:
        rules, text = Path(name) / "rules.tsv", Path(name) / "text"
        rules.write_text("".join(f"{old}\t{new}\n" for old, new in NORMALIZATION.items()))
        text.write_text("\n".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=f"{name}/model",
            vocab_size=PIECES,
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


def write_record(folder: Path, recorded: dict[str, Any]) -> None:
    """Write recorded.json."""
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (folder / "recorded.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    {"huggingface": record_huggingface}[sys.argv[1]](Path(sys.argv[2]))
