"""Measures how fast the batches of a config are made, on one core, without training on them.

    python scripts/measure_batches.py --config mine.yaml [section.key=value ...]

Prints the target and source tokens per second of the batches as the config has them, and without
subword dropout.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from nmt.checkpoint.start import start_codec
from nmt.config.loading import load_config
from nmt.data.batching import BatchStream
from nmt.data.prepare import prepare
from nmt.training.stream import training_stream


def tokens_per_second(stream: BatchStream, seconds: float) -> float:
    """The tokens of both sides, without padding, by the time of the processor."""
    updates = stream.updates()
    next(updates)  # plans the epoch
    tokens, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < seconds:
        for batch in next(updates).batches:
            tokens += int(batch.source_visible.sum()) + batch.num_target_tokens
    return tokens / elapsed


def main() -> None:
    """Prepare the data of a config unless that has been done, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(arguments.config, arguments.overrides)
    stream = training_stream(config, prepare(config, start=start_codec(config)))
    plain = replace(stream, sampling=None)
    print(f"without subword dropout {tokens_per_second(plain, arguments.seconds):14,.0f} tokens/s")
    if stream.sampling is not None:
        speed = tokens_per_second(stream, arguments.seconds)
        print(f"with subword dropout    {speed:14,.0f} tokens/s")


if __name__ == "__main__":
    main()
