"""Codes of languages: what Moses and SacreBLEU are told."""

from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

from nmt.cli import train
from nmt.languages import base_language, bleu_tokenizer, moses_language
from nmt.storage.records import METRICS_FILE, read_records


def test_a_code_may_have_a_script_and_a_region() -> None:
    assert [base_language(code) for code in ("de", "pt-BR", "ZH_Hant-TW")] == ["de", "pt", "zh"]
    assert [moses_language(code) for code in ("pt-BR", "por", "PT", "xx")] == [
        "pt",
        "pt",
        "pt",
        "xx",
    ]


@pytest.mark.parametrize(
    ("tokenizer", "codes"),
    [
        ("zh", ["zh", "ZH", "zh-TW", "zh_CN", "cmn", "yue"]),
        ("char", ["ja", "jpn", "th", "km-KH"]),
        ("13a", ["en", "de-AT", "ko", "bos", "kmr", "jav", ""]),
    ],
)
def test_bleu_splits_a_language_as_it_is_written(tokenizer: str, codes: list[str]) -> None:
    assert {bleu_tokenizer(code) for code in codes} == {tokenizer}


@pytest.mark.parametrize(("language", "tokenizer"), [("zh-CN", "zh"), ("de", "13a")])
def test_validation_splits_like_nmt_score(tmp_path: Path, language: str, tokenizer: str) -> None:
    config = tiny_config(tmp_path, max_updates=10)
    config["data"] |= {"target_language": language, "tokenizer": "none"}
    assert train.main(["--config", str(write_run(tmp_path, config))]) == 0
    records = read_records(tmp_path / "run" / METRICS_FILE)
    signatures = {record["signature"] for record in records if "signature" in record}
    assert [f"tok:{tokenizer}" in signature for signature in signatures] == [True]
