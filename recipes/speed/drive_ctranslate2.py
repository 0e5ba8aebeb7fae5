"""CTranslate2 with our weights, by nmt-export; --option is the type of the weights."""

import argparse

import ctranslate2
from driver import serve
from task import BEAM, LENGTH_PENALTY, STEPS, DecodingData

WORD = "{:06d}"


class CTranslate2Decoder:
    """Its Translator with one worker."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        data = DecodingData(arguments.task, arguments.size)
        self.translator = ctranslate2.Translator(
            str(data.directory / f"ctranslate2-{arguments.option}"),
            device="cpu",
            inter_threads=1,
            intra_threads=arguments.threads,
        )
        self.lines = [[WORD.format(number) for number in x[:-1]] for x in data.sentences]

    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        outputs = []
        for batch in batches:
            found = self.translator.translate_batch(
                [self.lines[number] for number in batch],
                beam_size=BEAM,
                length_penalty=LENGTH_PENALTY,
                max_batch_size=len(batch),
                min_decoding_length=STEPS,
                max_decoding_length=STEPS,
            )
            outputs += [[int(token) for token in result.hypotheses[0]] for result in found]
        return outputs


if __name__ == "__main__":
    serve(None, CTranslate2Decoder)
