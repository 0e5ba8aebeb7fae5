"""CTranslate2 with our weights, by nmt-export; --option is the type of the weights."""

import argparse

import ctranslate2
from driver import serve
from task import BEAM, LENGTH_PENALTY, DecodingData, longest_output

WORD = "{:06d}"


class CTranslate2Decoder:
    """Its Translator with one worker."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.translator = ctranslate2.Translator(
            str(arguments.task / f"ctranslate2-{arguments.option}"),
            device="cpu",
            inter_threads=1,
            intra_threads=arguments.threads,
        )
        sentences = DecodingData(arguments.task).sentences
        self.lines = [[WORD.format(number) for number in x[:-1]] for x in sentences]

    def translate(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        lines = [self.lines[number] for number in numbers]
        found = self.translator.translate_batch(
            lines,
            beam_size=BEAM,
            length_penalty=LENGTH_PENALTY,
            max_batch_size=len(lines),
            max_decoding_length=longest_output(max(map(len, lines))),
        )
        return [[int(token) for token in result.hypotheses[0]] for result in found]


if __name__ == "__main__":
    serve(None, CTranslate2Decoder)
