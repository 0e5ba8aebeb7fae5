"""Small models with random weights, in memory and as directories, for tests of translation."""

import functools
from pathlib import Path

import torch

from nmt.checkpoint.model_directory import model_files, model_for
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import (
    AttentionTypesConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    SublayerAttentionConfig,
    SubwordConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.decoding.ensemble import pad
from nmt.model.transformer import Transformer
from nmt.storage.directories import write_directory

UPDATES = 150
KINDS = sorted(ATTENTION_KINDS)
WORDS = ["the", "a", "old", "young", "man", "woman", "dog", "cat", "house", "tree", "sees", "likes"]


def make_config(kind: str = "softmax", *, subword: str = "none", max_length: int = 256) -> Config:
    """A model of two small layers per side."""
    sublayer = SublayerAttentionConfig(kind)
    files = TrainingCorpus((Path("train.src"),), (Path("train.trg"),))
    return Config(
        run_dir=Path("/nowhere/run"),
        data=DataConfig(
            source_language="en",
            target_language="de",
            train=(files,),
            validation=(ParallelFiles((Path("validation.src"),), (Path("validation.trg"),)),),
            subword=SubwordConfig("bpe", merges=40) if subword == "bpe" else SubwordConfig("none"),
            max_length=max_length,
        ),
        model=ModelConfig(
            dim=32,
            heads=4,
            encoder_layers=2,
            decoder_layers=2,
            feed_forward_dim=64,
            tie_embeddings="none",
            attention=AttentionTypesConfig(sublayer, sublayer, sublayer),
        ),
    )


def make_codec(config: Config) -> Codec:
    """Learned from every word, on both sides; target words are in capitals."""
    pairs = [(" ".join(WORDS[i:]), " ".join(WORDS[i:]).upper()) for i in range(len(WORDS))]
    return Codec.learn(config.data, pairs)


def make_model(config: Config, codec: Codec, *, seed: int = 1, ending: float = 4.0) -> Transformer:
    """Random weights, large enough for clear choices; `ending` makes outputs shorter."""
    torch.manual_seed(seed)
    model = model_for(config.model, codec)
    assert model.own_output_weight is not None
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight *= 2.0
        model.own_output_weight *= 3.0
        end = model.own_output_weight[EOS]
        norm = model.decoder[-1].feed_forward_residual.norm
        norm.bias.copy_(ending * end / end.dot(end))
    return model.eval()


@functools.cache
def trained_model(kind: str = "softmax") -> tuple[Config, Codec, Transformer]:
    """A model that is learning, for about two seconds, to write short lines in capitals."""
    config = make_config(kind)
    codec = make_codec(config)
    return config, codec, train_briefly(config, codec)


def train_briefly(config: Config, codec: Codec) -> Transformer:
    """A model of this configuration that writes short lines in capitals."""
    torch.manual_seed(1)
    model = model_for(config.model, codec)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(UPDATES):
        lines = [random_line(generator, longest=8) for _ in range(32)]
        source, visible = pad([codec.source.encode(x) for x in lines], multiple=1, device="cpu")
        target, _ = pad([codec.target.encode(x.upper()) for x in lines], multiple=1, device="cpu")
        target_input = torch.cat([torch.full((32, 1), BOS), target[:, :-1]], dim=1)
        logits = model.logits(model(source, visible, target_input))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def make_directory(path: Path, config: Config, codec: Codec, model: Transformer) -> Path:
    """The model as a directory that nmt-translate takes."""
    write_directory(path, model_files(config, codec, model.state_dict()))
    return path


def make_broken_directory(path: Path, kind: str, *, number: float = float("nan")) -> Path:
    """A model that computes finite numbers for all sources without the word `cat`."""
    config = make_config(kind)
    codec = make_codec(config)
    model = make_model(config, codec)
    model.state_dict()["own_source_embedding"][codec.source.encode("cat")[0]] = number
    return make_directory(path, config, codec, model)


def random_line(generator: torch.Generator, *, longest: int = 30) -> str:
    """A few words."""
    length = int(torch.randint(1, longest + 1, (), generator=generator))
    picks = torch.randint(len(WORDS), (length,), generator=generator).tolist()
    return " ".join(WORDS[pick] for pick in picks)


def random_lines(count: int, *, seed: int = 1, longest: int = 30) -> list[str]:
    """Lines of one to `longest` words."""
    generator = torch.Generator().manual_seed(seed)
    return [random_line(generator, longest=longest) for _ in range(count)]
