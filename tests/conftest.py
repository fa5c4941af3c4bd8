"""What several test files share: ways to run `tfm`, small corpora and networks, hardware marks."""

import functools
import math
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from tfm.data.tokenizer import BOS, EOS

if TYPE_CHECKING:
    from torch import Tensor

    from tfm.model.search.beam import Hypothesis
    from tfm.model.settings import DecodingSettings
    from tfm.model.training.material import Order
    from tfm.model.training.run import Run
    from tfm.model.transformer import Transformer

ROOT = Path(__file__).resolve().parent.parent

PAIRS = [
    ("A dog runs.", "Ein Hund rennt."),
    ("The cat sleeps.", "Die Katze schläft."),
    ("A man rides a red bike.", "Ein Mann fährt ein rotes Fahrrad."),
    ("Two children play in the garden.", "Zwei Kinder spielen im Garten."),
    ("The woman reads a book.", "Die Frau liest ein Buch."),
    ("I do not see the house.", "Ich sehe das Haus nicht."),
]

# Settings of a model that trains in seconds, as values of --set.
TINY_SETTINGS = [
    "tokenizer.vocab_size=450",
    "model.d_model=32",
    "model.d_ff=64",
    "model.heads=2",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "training.steps=60",
    "training.batch_tokens=600",
    "training.learning_rate=5e-3",
    "training.warmup_steps=20",
    "training.validate_every=30",
    "training.checkpoint_every=20",
    "training.average_last=2",
]


class Finished(NamedTuple):
    """What a process left: stdout as bytes, for the line contract; stderr as text."""

    code: int
    stdout: bytes
    stderr: str


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return the environment that tests give to a process: one thread, no colours."""
    unwanted = ("FORCE_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def run_tfm(environment: dict[str, str]) -> Callable[..., Finished]:
    """Run `tfm` in a process of its own: `run_tfm("translate", model, stdin=b"...", cwd=...)`.

    `program` replaces `-m tfm.cli`; other keywords are environment variables.
    """

    def run(
        *arguments: str | Path,
        program: tuple[str, ...] = ("-m", "tfm.cli"),
        stdin: bytes = b"",
        cwd: Path | None = None,
        timeout: float = 300,
        **variables: str,
    ) -> Finished:
        done = subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=environment | variables,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def on_a_terminal(environment: dict[str, str]) -> Callable[..., bytes]:
    """Run Python with stderr on a terminal of its own; return all that is written there.

    `on_a_terminal("-m", "tfm.cli", "eval", model)`; keywords are environment variables, beside
    those of a terminal that shows colours.
    """

    def run(*arguments: str | Path, **variables: str) -> bytes:
        shown = {"NO_COLOR": "", "CI": "", "TERM": "xterm-256color", "COLUMNS": "100"}
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=environment | shown | variables,
        )
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # Linux: nobody holds the other end any more
            pass
        os.close(ours)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 0, written
        assert b"\x1b" not in stdout
        return written

    return run


@pytest.fixture
def tiny_corpus(tmp_path: Path) -> str:
    """Write six pairs as `tiny.en` and `tiny.de`; return their prefix, a corpus string."""
    prefix = tmp_path / "tiny"
    for language, side in (("en", 0), ("de", 1)):
        text = "".join(pair[side] + "\n" for pair in PAIRS)
        Path(f"{prefix}.{language}").write_text(text, encoding="utf-8", newline="")
    return str(prefix)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the model directory of an untrained tiny network; return it. Not to be changed."""
    import torch

    from tfm.data.corpus import Pair
    from tfm.data.settings import TokenizerSettings
    from tfm.data.tokenizer import EOS, train_tokenizer
    from tfm.model.checkpoint import build_model, save_weights
    from tfm.model.settings import Settings

    directory = tmp_path_factory.mktemp("tiny-model")
    # The longest lines are short, so that tests see lines translated in parts.
    overrides = ["data.max_length=128", "decoding.max_length=40", "model.d_model=16"]
    overrides += ["model.d_ff=32", "model.encoder_layers=1", "model.decoder_layers=1"]
    settings = Settings.read(None, overrides)
    tokenizer = train_tokenizer([Pair(*p) for p in PAIRS], TokenizerSettings(vocab_size=320))
    torch.manual_seed(1)
    model = build_model(settings, tokenizer)
    with torch.no_grad():
        for name, weight in model.decoder.named_parameters():
            weight.mul_(4 if name.endswith("weight") and "norm" not in name else 1)
        # Text, not single bytes, and not the last piece for ever: like a trained network's output.
        model.target_embedding.weight[4:260].mul_(0.1)
        model.target_embedding.weight[EOS].mul_(1.2)
    (directory / "config.toml").write_text(settings.to_toml(), encoding="utf-8")
    tokenizer.save(directory / "tokenizer.model")
    save_weights(directory / "model.safetensors", model, {"tokenizer": tokenizer.fingerprint})
    return directory


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Return the folder of Multi30k (TFM_MULTI30K, or beside the repository), or skip."""
    folder = Path(os.environ.get("TFM_MULTI30K", ROOT.parent / "shared/data/multi30k"))
    if not (folder / "train.en").is_file():
        pytest.skip("no Multi30k: set TFM_MULTI30K to the folder of train.en and train.de")
    return folder


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a very small model on the built-in corpus for seconds: real, whole, but no good.

    All tests share it, so a test that changes anything works on a copy.
    """
    from tfm.model.settings import Settings
    from tfm.model.training.loop import train
    from tfm.model.training.material import Order
    from tfm.model.training.recipe import prepare
    from tfm.model.training.reporting import Silence

    settings = Settings.read(None, TINY_SETTINGS)
    directory = tmp_path_factory.mktemp("tiny") / "model"
    order = Order(settings=settings, train="builtin:300", valid="builtin:20", directory=directory)
    with prepare(order, Silence()) as run:
        train(run, Silence())
    return directory


@pytest.fixture(scope="session")
def small_order(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., "Order"]:
    """Ask for a run of 12 steps, less than 3 epochs of 60 built-in pairs: a second or two.

    `small_order(directory, valid=False, ema_decay=0.9)`: the other keywords are settings of
    [training], `kind` and `separate` those of its tokenizer.
    """
    from tfm.data.corpus import read_pairs
    from tfm.data.settings import TokenizerSettings
    from tfm.data.tokenizer import train_tokenizer
    from tfm.model.settings import Settings
    from tfm.model.training.material import Order

    sections: dict[str, dict[str, Any]] = {
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "training": {
            "steps": 12,
            "batch_tokens": 200,
            "accumulate": 2,
            "warmup_steps": 4,
            "validate_every": 4,
            "checkpoint_every": 5,
            "average_last": 2,
        },
        "decoding": {"max_length": 10},
    }
    folder = tmp_path_factory.mktemp("small")

    @functools.cache
    def tokenizer(kind: Literal["unigram", "bpe"], separate: bool) -> Path:
        pairs = read_pairs("builtin:60", source="en", target="de", split="train")
        path = folder / f"{kind}-{separate}.model"
        settings = TokenizerSettings(vocab_size=420, kind=kind, separate=separate)
        train_tokenizer(pairs, settings).save(path)
        return path

    def order(
        directory: Path,
        *,
        valid: bool = True,
        kind: Literal["unigram", "bpe"] = "unigram",
        separate: bool = False,
        **training: Any,
    ) -> Order:
        tables = sections | {"training": sections["training"] | training}
        settings = Settings.from_tables(tables, "test")
        corpus = "builtin:4" if valid else None
        return Order(
            settings=settings,
            train="builtin:60",
            valid=corpus,
            directory=directory,
            tokenizer=tokenizer(kind, separate),
            device="cpu",
            precision="fp32",
            attention="math",
        )

    return order


@pytest.fixture
def train_small(small_order: Callable[..., "Order"]) -> Callable[..., "Run"]:
    """Train such a run, or go on with it; `after` is called with the run after each step."""
    from tfm.model.training.loop import train
    from tfm.model.training.recipe import prepare
    from tfm.model.training.reporting import Silence, StepReport

    def go(
        directory: Path, *, after: 'Callable[["Run"], None] | None' = None, **options: Any
    ) -> "Run":
        with prepare(small_order(directory, **options), Silence()) as run:

            class Watch(Silence):
                def on_step(self, report: StepReport) -> None:
                    if after:
                        after(run)

            train(run, Watch())
        return run

    return go


@pytest.fixture
def assert_resume_is_exact(
    train_small: Callable[..., "Run"], tmp_path: Path
) -> Callable[..., None]:
    """Train once in one go and once with a crash and two stops: all tensors are the same bits."""
    from tfm.model.tensor_file import read_tensors
    from tfm.model.training.signals import Interrupted

    def after(step: int, action: Callable[[], None]) -> Callable[["Run"], None]:
        return lambda run: action() if run.progress.step == step else None

    def crash() -> None:
        raise RuntimeError("power cut")

    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)

    def check(**options: Any) -> None:
        train_small(tmp_path / "whole", **options)
        for action, step in ((stop, 3), (crash, 7), (stop, 9)):
            with pytest.raises((RuntimeError, Interrupted)):
                train_small(tmp_path / "parts", after=after(step, action), **options)
        train_small(tmp_path / "parts", **options)
        for name in ("model", "checkpoints/last", "checkpoints/best"):
            one, other = (
                read_tensors(tmp_path / run / f"{name}.safetensors").tensors
                for run in ("whole", "parts")
            )
            assert one.keys() == other.keys()
            assert all(one[key].equal(other[key]) for key in one), name

    return check


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU (make gpu-check)"))


@pytest.fixture(scope="session")
def read_until() -> Callable[..., bytes]:
    """Read a descriptor until some bytes have come; fail instead of waiting for ever."""

    def read(descriptor: int, end: bytes, *, seconds: float = 120) -> bytes:
        found = b""
        until = time.monotonic() + seconds
        while not found.endswith(end):
            ready, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
            assert ready, f"nothing after {found!r}"
            chunk = os.read(descriptor, 4096)
            assert chunk, f"closed after {found!r}"
            found += chunk
        return found

    return read


Found = tuple[list[int], float, bool]  # ids without EOS, score, whether they were cut
Following = Callable[[Sequence[int], Sequence[int]], list[float]]  # of a source and the ids so far


class Tiny:
    """Tiny random networks, and what a search in them finds: no batch, no cache, no padding."""

    @staticmethod
    def network(
        seed: int, *, vocab: int = 8, scale: float = 3, norm: Literal["pre", "post"] = "pre"
    ) -> "Transformer":
        """Return an untrained network whose predictions are as uneven as a trained one's.

        It computes in fp64: two ways to the same number differ by less than any two numbers.
        """
        import torch

        from tfm.model.settings import ModelSettings
        from tfm.model.transformer import Transformer

        torch.manual_seed(seed)
        shape = ModelSettings(
            d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=2, norm=norm
        )
        model = Transformer(shape, source_vocab=9, target_vocab=vocab, joint=False)
        with torch.no_grad():
            model.target_embedding.weight.mul_(scale)
        return model.double().eval()

    def case(
        self, seed: int, count: int = 1, **options: Any
    ) -> tuple["Transformer", list[list[int]]]:
        """Return such a network and `count` sources: at most 6 ids and EOS."""
        draw, words = random.Random(seed), range(EOS + 1, 9)
        sources = [[*draw.choices(words, k=draw.randint(0, 6)), EOS] for _ in range(count)]
        return self.network(seed, **options), sources

    @staticmethod
    def log_probabilities(
        model: "Transformer", source: Sequence[int], target: Sequence[int]
    ) -> "Tensor":
        """Return log P of every id after BOS and each id of `target`, T+1 V."""
        import torch

        from tfm.model.attention.padding import Padding

        padding = Padding.from_lengths([len(source)])
        with torch.no_grad():
            logits: Tensor = model(
                torch.tensor([source]), torch.tensor([[BOS, *target]]), source=padding
            )
        return logits[0].log_softmax(-1)

    def log_p(self, model: "Transformer", source: Sequence[int], ids: Sequence[int]) -> float:
        """Return log P of all `ids`."""
        each = self.log_probabilities(model, source, ids[:-1])
        return math.fsum(row[i] for row, i in zip(each.tolist(), ids, strict=True))

    def following(
        self,
        model: "Transformer",
        forbidden: Collection[int] = (),
        *,
        penalty: float = 1,
        bars: Callable[[Sequence[int], int], bool] = lambda ids, token: False,
    ) -> Following:
        """Return the function that gives log P of each next id, -inf if it is forbidden.

        Args:
            penalty: `repetition_penalty`; it is log P' then.
            bars: whether an id is forbidden after these.
        """

        def following(source: Sequence[int], ids: Sequence[int]) -> list[float]:
            each = self.log_probabilities(model, source, ids)[-1].tolist()
            each = each if penalty == 1 else penalised(each, ids, penalty)
            return [-math.inf if i in forbidden or bars(ids, i) else p for i, p in enumerate(each)]

        return following

    @staticmethod
    def search(
        following: Following, source: Sequence[int], options: "DecodingSettings", least: int = 1
    ) -> list[Found]:
        """Search by beam as it is defined, always up to the longest, which is `least` or more.

        `following` says what each next id counts; -inf: it may not come.
        """
        live: list[tuple[float, list[int]]] = [(0.0, [])]
        finished: list[tuple[float, list[int]]] = []
        stuck: list[tuple[float, list[int]]] = []
        for n in range(1, max(options.longest(len(source) - 1), least) + 1):
            extensions = [
                (-(total + p), beam, token, ids)
                for beam, (total, ids) in enumerate(live)
                for token, p in enumerate(following(source, ids))
                if p > -math.inf
            ]
            extensions.sort(key=lambda extension: extension[:3])
            for minus_total, _, token, ids in extensions[: options.beam]:
                if token == EOS:
                    finished.append((-minus_total / n**options.length_penalty, ids))
            if finished and options.beam == 1:
                return [(finished[0][1], finished[0][0], False)]
            going = [e for e in extensions if e[2] != EOS][: options.beam]
            stuck = stuck or (live if not going else [])
            live = [(-minus_total, [*ids, token]) for minus_total, _, token, ids in going]
        finished.sort(key=lambda found: -found[0])
        found = [(ids, score, False) for score, ids in finished]
        for total, ids in live if live or finished else stuck:
            found.append((ids, total / max(len(ids), 1) ** options.length_penalty, True))
        return found[: options.beam]

    @staticmethod
    def outcome(hypotheses: "Sequence[Hypothesis]") -> list[tuple[list[int], Any, bool]]:
        """Return what equals the result of `search` up to rounding."""
        close = functools.partial(pytest.approx, rel=1e-5, abs=1e-9)
        return [(h.tokens, close(h.score), h.truncated) for h in hypotheses]


def penalised(log_p: list[float], ids: Sequence[int], penalty: float) -> list[float]:
    """Return log P', id by id, by the formula of `repetition_penalty`."""
    mean = math.fsum(log_p) / len(log_p)
    x = [p - mean for p in log_p]
    for i in set(ids):
        x[i] = x[i] / penalty if x[i] > 0 else x[i] * penalty
    whole = math.log(math.fsum(map(math.exp, x)))
    return [each - whole for each in x]


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """Return tiny networks, and what a search in them finds."""
    return Tiny()
