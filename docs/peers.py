"""What other programs make of the work of `tfm bench`; runs in their environment, not in tfm's.

    python -m venv peers && peers/bin/pip install torch transformers ctranslate2 sentencepiece
    peers/bin/python docs/peers.py train --tokenizer m.model --train data/train

`train` is the usual training loop over the MarianMT model of HF transformers: token batches sorted
by length, AdamW, clipping, label smoothing. `translate` searches with HF's `generate` and with
CTranslate2 on random weights, each hypothesis of the same forced length, so that all do the same
work. Every result is one JSON line. `docs/compare.py` calls this.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import torch.nn.functional as F

PAD, UNK, BOS, EOS = range(4)
WARM_UP = 3  # steps before the clock runs
CT2_BATCH_TOKENS = 2048, 4096, 8192, 16384  # the fastest counts
HF_BATCH_SENTENCES = 128


def marian(options: argparse.Namespace, vocab: int) -> Any:
    """Return MarianMT with random weights, dropout where the network of tfm has it."""
    from transformers import MarianConfig, MarianMTModel

    side = {
        f"{name}_{key}": value
        for name in ("encoder", "decoder")
        for key, value in {
            "layers": options.layers,
            "ffn_dim": options.d_ff,
            "attention_heads": options.heads,
        }.items()
    }
    config = MarianConfig(
        **side,
        vocab_size=vocab,
        d_model=options.d_model,
        dropout=options.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return MarianMTModel(config)


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the rows as (rows, longest), padded at the end."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


def token_batches(widths: Sequence[int], limit: int, *, seed: int) -> list[list[int]]:
    """Return the indices in batches of alike widths, of at most `limit` positions each."""
    draw = random.Random(seed)
    batches: list[list[int]] = []
    batch: list[int] = []
    for index in sorted(range(len(widths)), key=lambda i: widths[i] + draw.random() * 0.5):
        if batch and widths[index] * (len(batch) + 1) > limit:  # the widest comes last
            batches.append(batch)
            batch = []
        batch.append(index)
    batches.append(batch)
    draw.shuffle(batches)
    return batches


def train(options: argparse.Namespace) -> None:
    """Print source and target tokens per second, end of sentence counted and padding not."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(options.tokenizer))
    source, target = (
        pieces.encode(Path(f"{options.train}.{language}").read_text("utf-8").splitlines())
        for language in (options.source, options.target)
    )
    model = marian(options, pieces.get_piece_size()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    widths = [max(len(s), len(t)) + 1 for s, t in zip(source, target, strict=True)]
    tokens, start = 0, 0.0
    for step, batch in enumerate(token_batches(widths, options.batch_tokens, seed=1)):
        if step == WARM_UP:
            tokens, start = 0, time.perf_counter()
        x = padded([[*source[i], EOS] for i in batch])
        y = padded([[BOS, *target[i], EOS] for i in batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            logits = model(
                input_ids=x, attention_mask=(x != PAD).long(), decoder_input_ids=y[:, :-1]
            ).logits
        loss = F.cross_entropy(
            logits.float().flatten(0, 1),
            y[:, 1:].flatten(),
            ignore_index=PAD,
            label_smoothing=0.1,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += int((x != PAD).sum() + (y[:, 1:] != PAD).sum())
        if start and time.perf_counter() - start > options.seconds:
            break
    rate = tokens / (time.perf_counter() - start)
    say(peer="HF MarianMT", precision=options.precision, tokens_per_s=round(rate, 1))


def translate(options: argparse.Namespace) -> None:
    """Print sentences per second of the whole file, and milliseconds of one sentence by itself."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(options.tokenizer))
    lines = options.input.read_text("utf-8").splitlines()
    model = marian(options, pieces.get_piece_size()).eval()
    hugging_face(options, model, pieces.encode(lines))
    with tempfile.TemporaryDirectory() as folder:
        export(options, model, pieces, os.path.join(folder, "model"))
        for kind in ("float32", "int8"):
            ctranslate2_search(
                options, os.path.join(folder, "model"), kind, pieces.encode(lines, out_type=str)
            )


def hugging_face(options: argparse.Namespace, model: Any, rows: Sequence[Sequence[int]]) -> None:
    """Measure `generate`: all sentences sorted by length, and the first by themselves."""
    forced = {"min_new_tokens": options.length, "max_new_tokens": options.length}

    def run(some: Sequence[Sequence[int]], size: int) -> None:
        with torch.inference_mode():
            for begin in range(0, len(some), size):
                x = padded([[*row, EOS] for row in some[begin : begin + size]])
                mask = (x != PAD).long()
                model.generate(
                    input_ids=x,
                    attention_mask=mask,
                    num_beams=options.beam,
                    do_sample=False,
                    **forced,
                )

    run(rows[:64], 64)
    whole = seconds(lambda: run(sorted(rows, key=len), HF_BATCH_SENTENCES))
    some = rows[: options.single]
    alone = seconds(lambda: run(some, 1))
    report("HF generate", "fp32", options, len(rows) / whole, alone / len(some))


def ctranslate2_search(
    options: argparse.Namespace, folder: str, kind: str, rows: Sequence[Sequence[str]]
) -> None:
    """Measure CTranslate2 in one compute type, at its best batch size."""
    import ctranslate2

    translator = ctranslate2.Translator(
        folder, compute_type=kind, inter_threads=1, intra_threads=torch.get_num_threads()
    )
    forced = {
        "beam_size": options.beam,
        "batch_type": "tokens",
        "min_decoding_length": options.length,
        "max_decoding_length": options.length,
    }
    translator.translate_batch(rows[:64], max_batch_size=2048, **forced)
    whole = min(
        seconds(lambda size=size: translator.translate_batch(rows, max_batch_size=size, **forced))
        for size in CT2_BATCH_TOKENS
    )
    some = rows[: options.single]
    alone = seconds(lambda: [translator.translate_batch([row], **forced) for row in some])
    report("CTranslate2", kind, options, len(rows) / whole, alone / len(some))


def export(options: argparse.Namespace, model: Any, pieces: Any, folder: str) -> None:
    """Write the weights as a CTranslate2 model, through its own description of Marian."""
    import numpy as np
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs import common_spec, transformer_spec

    loader = converters.BartLoader()
    spec = transformer_spec.TransformerSpec.from_config(
        (options.layers, options.layers),
        options.heads,
        pre_norm=False,
        activation=common_spec.Activation.RELU,
        layernorm_embedding=False,
    )
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.lm_head)
    spec.decoder.projection.bias = np.zeros(pieces.get_piece_size(), dtype=np.float32)
    spec.decoder.start_from_zero_embedding = False
    vocabulary = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = vocabulary[UNK : EOS + 1]
    config.decoder_start_token = vocabulary[BOS]
    config.add_source_eos, config.add_source_bos = True, False
    spec.validate()
    spec.optimize(quantization="float32")
    os.makedirs(folder)
    spec.save(folder)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def report(
    peer: str, precision: str, options: argparse.Namespace, rate: float, alone: float
) -> None:
    """Print a figure of search."""
    say(
        peer=peer,
        precision=precision,
        beam=options.beam,
        sentences_per_s=round(rate, 1),
        ms_per_sentence=round(1e3 * alone, 2),
    )


def say(**result: object) -> None:
    """Print a result as a JSON line."""
    print(json.dumps(result), flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    training, search = jobs.add_parser("train"), jobs.add_parser("translate")
    for job in (training, search):
        job.add_argument("--tokenizer", type=Path, required=True)
        job.add_argument("--d-model", type=int, default=256)
        job.add_argument("--d-ff", type=int, default=1024)
        job.add_argument("--heads", type=int, default=4)
        job.add_argument("--layers", type=int, default=3)
        job.add_argument("--dropout", type=float, default=0.3)
    training.add_argument("--train", required=True, help="PREFIX of two files")
    training.add_argument("--source", default="en")
    training.add_argument("--target", default="de")
    training.add_argument("--batch-tokens", type=int, default=4096)
    training.add_argument("--seconds", type=float, default=30)
    training.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    search.add_argument("--input", type=Path, required=True)
    search.add_argument("--beam", type=int, default=5)
    search.add_argument("--length", type=int, default=16)
    search.add_argument("--single", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(1)
    {"train": train, "translate": translate}[options.job](options)


if __name__ == "__main__":
    main()
