"""What is asked for one translation alone holds: its beginning, required and forbidden words."""

import io
import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tfm.cli.main import main
from tfm.data.errors import DataError, SettingsError
from tfm.data.phrases import ForbiddenPhrase, PieceIndex
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model import Translator
from tfm.model.request import Request
from tfm.model.search.beam import beam_search, force_score
from tfm.model.search.constraints import Constraints
from tfm.model.settings import DecodingSettings

if TYPE_CHECKING:
    from conftest import Tiny

SPECIAL = (PAD, UNK, BOS)


def has(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    n = len(phrase)
    return any(tuple(ids[i : i + n]) == tuple(phrase) for i in range(len(ids) - n + 1))


def no_four_after_five(ids: Sequence[int]) -> set[int]:
    return {4} if ids and ids[-1] == 5 else set()


ASKED = [
    Constraints(prefix=(6,)),
    Constraints(prefix=(4, 4), bars=no_four_after_five),
    Constraints(required=((4, 5),)),
    Constraints(required=((6, 6), (4,))),
    Constraints(prefix=(5, 4), required=((6,),), bars=no_four_after_five),
    Constraints(bars=no_four_after_five),
    Constraints(),
]


def allows(asked: Constraints, ids: Sequence[int]) -> bool:
    if tuple(ids[: len(asked.prefix)]) != asked.prefix:
        return False
    free = range(len(asked.prefix), len(ids))
    if asked.bars is not None and any(ids[i] in asked.bars(ids[:i]) for i in free):
        return False
    return all(has(ids, phrase) for phrase in asked.required)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_beam_finds_everything_that_is_allowed_in_order(
    tiny: "Tiny", length_penalty: float
) -> None:
    model, sources = tiny.case(1, len(ASKED), vocab=7)
    longest = 4
    options = DecodingSettings(
        beam=400, max_length=longest, length_penalty=length_penalty, batch_tokens=20_000
    )
    found = beam_search(model, sources, options, forbidden=SPECIAL, constraints=ASKED, n_best=400)
    for source, asked, hypotheses in zip(sources, ASKED, found, strict=True):
        scores = {}
        for length in range(max(longest, asked.least)):
            for ids in itertools.product(range(EOS + 1, 7), repeat=length):
                if allows(asked, ids):
                    whole = [*ids, EOS]
                    scores[ids] = tiny.log_p(model, source, whole) / len(whole) ** length_penalty
        finished = [h for h in hypotheses if not h.truncated]
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        assert [tuple(h.tokens) for h in finished] == best_first
        assert [h.score for h in finished] == pytest.approx([scores[ids] for ids in best_first])


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_each_source_has_its_own_and_nothing_of_its_neighbours(tiny: "Tiny", beam: int) -> None:
    model = tiny.network(2)
    sources = [[4, 5, 6, EOS]] * len(ASKED)
    options = DecodingSettings(beam=beam, max_length=12)
    n_best = min(beam, 2)
    found = beam_search(
        model, sources, options, forbidden=SPECIAL, constraints=ASKED, n_best=n_best
    )
    (plain,) = beam_search(model, sources[:1], options, forbidden=SPECIAL, n_best=n_best)
    assert [h.tokens for h in found[-1]] == [h.tokens for h in plain]
    for asked, source, hypotheses in zip(ASKED, sources, found, strict=True):
        (alone,) = beam_search(
            model, [source], options, forbidden=SPECIAL, constraints=[asked], n_best=n_best
        )
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]
        for h in hypotheses:
            assert allows(replace(asked, required=()), h.tokens)
            assert h.truncated or allows(asked, h.tokens)
            ids = h.tokens if h.truncated else [*h.tokens, EOS]
            (forced,) = force_score(model, [source], [ids])
            assert h.token_log_probabilities == pytest.approx(forced)
            assert h.score == pytest.approx(sum(forced) / len(forced), rel=1e-5)


def test_required_words_are_found_where_a_plain_search_has_none(tiny: "Tiny") -> None:
    model, sources = tiny.case(3, 12, vocab=20)
    options = DecodingSettings(beam=6, max_length=30, max_length_ratio=3)
    plain = beam_search(model, sources, options, forbidden=SPECIAL)
    phrases = [((7, 8), (15,)), ((16, 9, 11),)] * 6
    asked = [Constraints(required=each) for each in phrases]
    found = beam_search(model, sources, options, forbidden=SPECIAL, constraints=asked)
    for each, (before,), (after,) in zip(phrases, plain, found, strict=True):
        assert not all(has(before.tokens, phrase) for phrase in each)
        assert all(has(after.tokens, phrase) for phrase in each)
    with pytest.raises(SettingsError, match="required words need beam search"):
        beam_search(model, sources, replace(options, sampling=True), constraints=asked)
    with pytest.raises(SettingsError, match="required words need beam search"):
        beam_search(model, sources, replace(options, beam_groups=2), constraints=asked)


def test_prefixes_and_bars_hold_for_samples_and_groups(tiny: "Tiny") -> None:
    model, sources = tiny.case(4, 6)
    asked = [Constraints(prefix=(6, 4), bars=no_four_after_five)] * 6
    for options in (
        DecodingSettings(sampling=True, max_length=9),
        DecodingSettings(beam=4, beam_groups=2, max_length=9),
        DecodingSettings(beam=4, no_repeat_ngram=1, repetition_penalty=1.5, max_length=9),
    ):
        found = beam_search(model, sources, options, forbidden=SPECIAL, constraints=asked, n_best=4)
        assert all(allows(asked[0], h.tokens) for each in found for h in each)


# Words of texts


PIECES = [
    b"",
    b" Hu",
    b"nd",
    b" Hund",
    b"e",
    b" Hunde",
    b".",
    b' "',
    b"Hund",
    b" ",
    b"H",
    b"u",
    b"n",
]
PIECES += [b"d", b" Hund.", b" Hund lief", b"\xc3", b"\xa4", b"-Hund"]


def test_barred_pieces_are_those_that_would_bring_the_word_and_no_others() -> None:
    index = PieceIndex(PIECES)
    phrase = ForbiddenPhrase(b"Hund", index)
    word = re.compile(r"(?<![^\W_])Hund(?![^\W_])")

    def stands(text: bytes) -> bool:
        return bool(word.search(text.decode(errors="replace")))

    checked = 0
    for ids in itertools.product(range(1, len(PIECES)), repeat=2):
        if stands(index.text(ids)):
            continue  # it could not have come so far
        barred = phrase.barred(index.text(ids))
        assert barred == {i for i in range(1, len(PIECES)) if stands(index.text([*ids, i]))}
        checked += bool(barred)
    assert checked > 100


@pytest.fixture(scope="module")
def translator(tiny_model: Path) -> Translator:
    translator = Translator.load(tiny_model, device="cpu")
    translator.warn = lambda text: None
    return translator


TEXT = "The woman reads a book."


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


def test_a_translation_begins_as_it_is_told_to(translator: Translator) -> None:
    for prefix in ("Die", "Die Katze sch", "</s> ▁ ", "x"):
        for options in ({}, {"beam": 1}):
            (found,) = translator.translate([Request(TEXT, prefix=prefix)], **options)
            assert found.startswith(prefix.rstrip())
    assert translator.translate([Request(TEXT, prefix=" ")]) == translator.translate([TEXT])
    long = "The cat sleeps. A dog runs. " * 40
    (found,) = translator.translate([Request(long, prefix="Die Katze")])
    assert found.startswith("Die Katze")


def test_required_and_forbidden_words(translator: Translator) -> None:
    (found,) = translator.translate_all(
        [Request(TEXT, required=("Katze", "im Garten"))], beam=12, max_length=60
    )
    assert found.truncated or ("Katze" in found.text and "im Garten" in found.text)
    (plain,) = translator.translate([TEXT])
    forbidden = tuple(dict.fromkeys(words(plain)))[:3]
    assert forbidden
    for beam in (1, 5):
        (found_text,) = translator.translate([Request(TEXT, forbidden=forbidden)], beam=beam)
        assert not set(words(found_text)) & set(forbidden)


def test_of_candidates_that_are_cut_those_with_the_required_words_come_first(
    translator: Translator,
) -> None:
    """Whatever ranks them afterwards: agreement with others, or coverage."""
    asked = [Request(TEXT, required=("Katze",)), Request("I", required=("Hund", "Katze"))]
    original = translator.decoding
    for beam in (4, 8, 12):
        plain = replace(original, beam=beam, max_length=1)
        translator.decoding = plain
        lists = translator.translate_all(asked, n_best=beam)
        for decoding in (replace(plain, mbr="chrf"), replace(plain, coverage_penalty=5.0)):
            translator.decoding = decoding
            found = translator.translate_all(asked)
            translator.decoding = original
            for request, every, best in zip(asked, lists, found, strict=True):
                most = max(sum(w in each.text for w in request.required) for each in every.n_best)
                assert most > 0
                assert sum(word in best.text for word in request.required) == most


def test_what_contradicts_itself_is_refused(translator: Translator) -> None:
    for request in (
        Request(TEXT, required=("Hund",), forbidden=("Hund",)),
        Request(TEXT, required=("im Garten",), forbidden=("Katze", " Garten ")),
        Request(TEXT, prefix="Ein Hund rennt", forbidden=("Hund",)),
        Request(TEXT, prefix="Ein Hund ", forbidden=("Hund",)),
    ):
        with pytest.raises(DataError, match="`forbidden` has it too"):
            translator.translate([request])
    fine = Request(TEXT, prefix="Hunde", required=("Gartens",), forbidden=("Hund", "Garten"))
    translator.require_possible(fine)


def test_a_line_break_is_refused(translator: Translator) -> None:
    for request in (Request(TEXT, prefix="Die\nFrau"), Request(TEXT, required=("a\rb",))):
        with pytest.raises(DataError, match="no line break"):
            translator.translate([request])


def test_required_words_of_a_line_in_parts_are_left_out_and_said(translator: Translator) -> None:
    said: list[str] = []
    translator.warn = said.append
    translator.translate([Request("A dog runs. " * 60, required=("Katze",))], beam=1)
    assert "required words of a line that is translated in parts are left out" in said


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: str,
    *arguments: object,
) -> tuple[int, list[str], str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    code = main(["translate", "--device", "cpu", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out.removesuffix("\n").split("\n"), err


def test_records_say_what_is_asked_for_each(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records: list[dict[str, object]] = [
        {"source": TEXT},
        {"source": TEXT, "prefix": "Eine Frau"},
        {"source": TEXT, "prefix": 3},
        {"source": TEXT, "required": "Katze"},
        {"source": TEXT, "forbidden": [None]},
        {"source": TEXT, "prefix": "a\nb"},
    ]
    stdin = "".join(json.dumps(record) + "\n" for record in records)
    code, lines, _ = run(monkeypatch, capsys, stdin, tiny_model, "--jsonl")
    found = [json.loads(line) for line in lines]
    assert code == 1 and len(found) == 6
    assert found[1]["translation"].startswith("Eine Frau")
    assert found[0]["translation"] != found[1]["translation"]
    assert "record 3: `prefix` must be a string, but is 3" in found[2]["error"]
    assert "record 4: `required` must be a list of strings" in found[3]["error"]
    assert "record 5: `forbidden` must be a string, but is null" in found[4]["error"]
    assert "record 6: `prefix` has a line break" in found[5]["error"]
    word = words(found[0]["translation"])[0]
    both = [{"source": TEXT, "forbidden": [word]}, {"source": TEXT, "required": ["Katze"]}]
    stdin = "".join(json.dumps(record) + "\n" for record in both)
    code, lines, _ = run(monkeypatch, capsys, stdin, tiny_model, "--jsonl", "--beam", 8)
    barred, required = (json.loads(line) for line in lines)
    assert code == 0
    assert word not in words(barred["translation"])
    assert "Katze" in required["translation"]


@pytest.mark.parametrize("flags", [["--sampling"], ["--beam", 4, "--beam-groups", 2], []])
def test_a_record_that_asks_for_the_impossible_does_not_end_the_others(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[object],
) -> None:
    records: list[dict[str, object]] = [
        {"source": TEXT},
        {"source": TEXT, "required": ["Hund"]},
        {"source": TEXT, "required": ["Hund"], "forbidden": ["Hund"]},
        {"source": TEXT, "prefix": "Ein Hund", "forbidden": ["Hund"]},
        {"source": TEXT, "required": [" "], "prefix": "Eine"},
    ]
    stdin = "".join(json.dumps(record) + "\n" for record in records)
    code, lines, err = run(monkeypatch, capsys, stdin, tiny_model, "--jsonl", *flags)
    found = [json.loads(line) for line in lines]
    bad = [1, 2, 3] if flags else [2, 3]
    assert code == 1 and f"could not be translated: {len(bad)}" in err
    assert [i for i, each in enumerate(found) if "error" in each] == bad
    assert all("translation" in each for i, each in enumerate(found) if i not in bad)
    if flags:
        assert "record 2: required words need beam search" in found[1]["error"]
    assert "record 3: `required` has 'Hund'" in found[2]["error"]
    assert "record 4: `prefix` has 'Hund' in 'Ein Hund'" in found[3]["error"]


def test_a_file_of_prefixes_has_one_for_each_line(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prefixes = tmp_path / "prefixes.de"
    prefixes.write_text("Eine Frau\n\n", encoding="utf-8")
    flags = [tiny_model, "--prefix-file", prefixes]
    code, lines, _ = run(monkeypatch, capsys, f"{TEXT}\n{TEXT}\n", *flags)
    _, plain, _ = run(monkeypatch, capsys, f"{TEXT}\n", tiny_model)
    assert code == 0
    assert lines[0].startswith("Eine Frau") and lines[1:] == plain
    code, _, err = run(monkeypatch, capsys, f"{TEXT}\n" * 3, *flags)
    assert code == 1 and "--prefix-file: 2 lines, but stdin has more" in err
    code, _, err = run(monkeypatch, capsys, "{}\n", *flags, "--jsonl")
    assert code == 2 and "a record has `prefix`" in err
