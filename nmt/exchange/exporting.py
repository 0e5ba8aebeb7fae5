"""Models for other programs: what the exporters of several formats share."""

from nmt.config.config import Config, ModelConfig
from nmt.config.search_options import SearchOptions
from nmt.errors import UserError


def check_attention(config: ModelConfig, *, name: str, program: str) -> None:
    """Reject a model with an attention kind that another program does not have."""
    kinds = config.attention
    sublayers = [
        *(("encoder_self", kinds.encoder_self, layer) for layer in range(config.encoder_layers)),
        *(("decoder_self", kinds.decoder_self, layer) for layer in range(config.decoder_layers)),
        *(("cross", kinds.cross, layer) for layer in range(config.decoder_layers)),
    ]
    for sublayer, attention, layer in sublayers:
        kind = attention.at(layer).kind
        if kind != "softmax":
            raise UserError(
                f"{name}: model.attention.{sublayer}, layer {layer}: {program} has softmax "
                f"attention only, got {kind}; export it to ONNX, or translate with nmt-translate"
            )


def position_count(config: Config) -> int:
    """The positions of sources of the training length and of their outputs, with end or start."""
    source = config.data.max_length
    return max(source, SearchOptions.of(config.decode).output_limit(source)) + 1
