"""`--quantize int8`: products in 8 bits are near those in fp32, and the same in every batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.cli.main import main
from tfm.data.errors import BackendError
from tfm.data.tokenizer import BOS, EOS, PAD, UNK
from tfm.model import Translator
from tfm.model.attention.padding import Padding
from tfm.model.search.beam import beam_search
from tfm.model.search.prepared import Prepared, prepare
from tfm.model.search.products import Int8, Product, choose_product
from tfm.model.settings import DecodingSettings, ModelSettings
from tfm.model.transformer import Transformer

REASON = Int8.refusal(torch.device("cpu"))
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def random_network(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    shape = dict(d_model=32, d_ff=64, heads=4, encoder_layers=2, decoder_layers=2)
    settings = ModelSettings(**shape | changes)
    model = Transformer(settings, source_vocab=40, target_vocab=40, joint=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() == 1 else 0.2)
    return model.eval()


def random_sources(count: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 12, (count,), generator=draw).tolist()
    return [
        [*torch.randint(EOS + 1, 40, (length,), generator=draw).tolist(), EOS] for length in lengths
    ]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("shape", [(1,), (70,), (3, 5)])
def test_a_product_in_8_bits_is_near_the_exact_one(shape: Any, activation: str) -> None:
    torch.manual_seed(2)
    weight, bias, x = torch.randn(24, 64), torch.randn(24), torch.randn(*shape, 64)
    x[..., :] *= 10.0 ** torch.randint(-3, 3, (*shape, 1))  # each row has a scale of its own
    plain, rounded = (make(weight, bias, activation=activation) for make in (Product, Int8))
    error = (rounded(x) - plain(x)).norm(dim=-1) / (x @ weight.T).norm(dim=-1)
    assert 0 < error.max() < 0.02
    plus = torch.randn(*shape, 24)
    added = Int8(weight, None)(x, plus=plus)
    torch.testing.assert_close(added - plus, Int8(weight, None)(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inner", [1, 2, 3])
@pytest.mark.parametrize("outer", [1, 2, 7])
@pytest.mark.parametrize("rows", [1, 2, 20])
def test_narrow_products_are_right_too(inner: int, outer: int, rows: int) -> None:
    torch.manual_seed(3)
    weight, x = torch.randn(outer, inner), torch.randn(rows, inner)
    torch.testing.assert_close(Int8(weight, None)(x), x @ weight.T, rtol=0.02, atol=0.05)


def test_nothing_is_divided_by_zero() -> None:
    weight = torch.cat([torch.zeros(1, 8), torch.ones(1, 8)])
    x = torch.stack([torch.zeros(8), torch.ones(8), torch.full((8,), torch.nan)])
    product = Int8(weight, None)(x)
    torch.testing.assert_close(product[:2], torch.tensor([[0.0, 0.0], [0.0, 8.0]]))
    assert product[2].isnan().all(), "what is not a number stays none, and is told"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_product_in_every_batch(dtype: torch.dtype) -> None:
    product = Int8(torch.randn(300, 96).to(dtype), torch.randn(300).to(dtype), activation="relu")
    x = torch.randn(70, 96).to(dtype)
    together = product(x)
    assert together.dtype == dtype
    for rows in (1, 2, 5, 33):
        parts = torch.cat([product(part) for part in x.split(rows)])
        assert torch.equal(together, parts)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@torch.inference_mode()
def test_a_network_in_8_bits_computes_nearly_the_same(activation: str) -> None:
    model = random_network(activation=activation)
    ids, padding = torch.randint(EOS + 1, 40, (3, 9)), Padding.from_lengths([9, 4, 6])
    plain, rounded = prepare(model), prepare(model, quantize=True)
    memory, other = (each.encode(ids, padding) for each in (plain, rounded))
    real = padding.unpad
    assert 0 < (real(other) - real(memory)).norm() / real(memory).norm() < 0.05
    logits = []
    for each in (plain, rounded):
        cache = each.start(memory, padding)
        hidden = [each.step(torch.full((3,), token), cache) for token in (BOS, 7, 8)]
        logits.append(each.project(torch.stack(hidden)))
    assert 0 < (logits[1] - logits[0]).norm() / logits[0].norm() < 0.05


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_in_8_bits_do_not_depend_on_the_batch(beam: int) -> None:
    prepared = Prepared(random_network(), quantize=True)
    sources = random_sources(25)
    settings = DecodingSettings(beam=beam, max_length=12)
    forbidden = {PAD, UNK, BOS}
    together = beam_search(prepared, sources, settings, forbidden=forbidden)
    for source, ((found, *_),) in zip(sources, ([each] for each in together), strict=True):
        ((alone, *_),) = beam_search(prepared, [source], settings, forbidden=forbidden)
        assert alone.tokens == found.tokens
        assert alone.score == pytest.approx(found.score, abs=1e-4)


def test_where_8_bits_cannot_run_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Int8.refusal(torch.device("cuda", 0))
    assert reason is not None and "for the CPU" in reason
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.int() @ b.int()).clamp(max=32767))
    with pytest.raises(BackendError, match="--quantize int8: this CPU's .* not exact"):
        choose_product(torch.ones(2, 2), quantize=True)
    monkeypatch.delattr(torch, "_int_mm")
    with pytest.raises(BackendError, match="--quantize int8: PyTorch .* has no 8-bit product"):
        prepare(random_network(), quantize=True)


def test_a_translator_in_8_bits_says_so_and_computes_otherwise(tiny_model: Path) -> None:
    plain, rounded = (
        Translator.load(tiny_model, device="cpu", quantize=quantize)
        for quantize in ("none", "int8")
    )
    assert "products in int8" in rounded.describe()[0]
    assert "int8" not in plain.describe()[0]
    (one,), (other,) = (each.translate_all(["A dog runs."]) for each in (plain, rounded))
    assert one.score != other.score
    assert one.score == pytest.approx(other.score, abs=0.5)


def test_eval_says_what_8_bits_cost(
    tiny_model: Path, tiny_corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", str(tiny_model), "--test", tiny_corpus, "--device", "cpu", "--json"]
    assert main(arguments) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--quantize", "int8"]) == 0
    out, err = capsys.readouterr()
    rounded = json.loads(out)
    assert rounded["bleu_without_quantize"] == plain["bleu"]["value"]
    difference = rounded["bleu"]["value"] - plain["bleu"]["value"]
    assert f"difference in BLEU by --quantize int8: {difference:+.2f}" in err
    assert "quantize" not in plain and rounded["quantize"] == "int8"


def test_translate_and_bench_run_in_8_bits(tiny_model: Path, run_tfm: Callable[..., Any]) -> None:
    done = run_tfm("translate", tiny_model, "--quantize", "int8", stdin=b"A dog runs.\n\n")
    assert done.code == 0 and done.stdout.count(b"\n") == 2
    assert "products in int8" in done.stderr
    small = ["--sentences", "4", "--single", "1", "--beams", "2", "--precisions", "int8"]
    rows = json.loads(run_tfm("bench", "translate", tiny_model, *small, "--json").stdout)["rows"]
    assert [row["precision"] for row in rows] == ["int8"]
