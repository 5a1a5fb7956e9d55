"""What ran behind the measurements of others: their jobs as workloads, without the fine-tuning jobs of the catalogue.

Counted in the manner of :mod:`wattune.workloads.opcost`: FLOPs of matrix products and convolutions, bytes of every kernel unfused,
one launch per kernel. ViT, ResNet50 and BERT are counted on torch's meta device and committed as numbers (`jobs.json`); what that
counter cannot see is counted here from the architecture:

* a recurrent layer is one call of cuDNN, which issues the kernels of all time steps itself: `CUDNN_LAUNCH_SHARE`;
* YOLOv8n is built from its published layout (8.7 GFLOPs, 3.2 million parameters at 640 x 640);
* llama.cpp streams quantised weights once a token.

Inference is a step of nothing but a forward pass.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload
from wattune.io import read_json

TABLE = Path(__file__).with_name("jobs.json")
NOTHING = PhaseCost(0.0, 0.0, 0.0)

CUDNN_LAUNCH_SHARE = 0.2
"""Cost of one of cuDNN's time-step kernels in launches of eager PyTorch: a loop in C++ issues it in some 6 us where an eager
operation takes some 30. On the AGX Xavier all of them at full price would take longer than the measured step."""

FLOAT = 4
ADAM_KERNELS = 7
"""Kernels per parameter tensor of Adam without multi-tensor operations, the default before PyTorch 2.0."""
ADAM_TENSORS = 19
"""Tensors the size of the parameters that these kernels read and write together."""

BERT_TOKENS = 10
BERT_TILE_TOKENS = 64
LSTM_TOKENS = 900
LSTM_VOCABULARY = 5500


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    document = read_json(TABLE, "The table of measured jobs")
    assert isinstance(document, dict)
    jobs = document["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def _counted(job: str, phase: str) -> PhaseCost:
    return PhaseCost(*(float(value) for value in _table()[job][phase]))


def _workload(
    id: str,  # noqa: A002
    cost: StepCost,
    *,
    family: str,
    task: str,
    layers: int,
    hidden: int,
    params_m: float,
    seq_len: float,
    batch_size: int = 1,
    precision: str = "fp32",
    steps: int = 1,
) -> Workload:
    return Workload(
        id=id,
        model=id.removesuffix(f"-{task}"),
        task=task,
        family=family,
        layers=layers,
        hidden=hidden,
        params_m=params_m,
        seq_len=seq_len,
        batch_size=batch_size,
        precision=precision,
        steps_per_epoch=steps,
        bins=(LengthBin(tokens=max(1, round(seq_len)), share=1.0, cost=cost),),
    )


def _inference(cost: PhaseCost) -> StepCost:
    return StepCost(cost, NOTHING, NOTHING)


def _training(job: str) -> StepCost:
    return StepCost(*(_counted(job, phase) for phase in ("forward", "backward", "optimizer")))


# --- AGX Xavier: forward, backward and Adam on a cached batch
# --------------------------------------------------------------------------------------------------------


def vit_cifar10() -> Workload:
    """ViT-B/16 on 32 x 32 images: four patches and the class token; batch 32, fp32."""
    return _workload(
        "vit-b16-cifar10",
        _training("vit_b16_32px_b32"),
        family="vit",
        task="cifar10",
        layers=12,
        hidden=768,
        params_m=85.7,
        seq_len=5,
        batch_size=32,
    )


def resnet50_tinyimagenet() -> Workload:
    """ResNet50 on 224 x 224 images, 200 classes; batch 8, fp32."""
    return _workload(
        "resnet50-tinyimagenet",
        _training("resnet50_224px_b8"),
        family="resnet",
        task="tinyimagenet",
        layers=50,
        hidden=2048,
        params_m=23.9,
        seq_len=1,
        batch_size=8,
    )


def bilstm_imdb(tokens: int = LSTM_TOKENS) -> Workload:
    """Two-layer bidirectional LSTM(256) over embeddings of 100 on IMDB; batch 8, fp32.

    Args:
        tokens: length that all texts are padded to: the longest of the first 160, which is not published.
    """
    return _workload(
        "bilstm-imdb",
        lstm_cost(tokens),
        family="lstm",
        task="imdb",
        layers=2,
        hidden=256,
        params_m=2.9,
        seq_len=tokens,
        batch_size=8,
    )


def _product(rows: float, inner: float, columns: float) -> PhaseCost:
    return PhaseCost(2 * rows * inner * columns, FLOAT * (rows * inner + inner * columns + rows * columns), 1)


def _elementwise(elements: float, launches: float = 1.0) -> PhaseCost:
    return PhaseCost(0, FLOAT * elements, launches)


def _times(cost: PhaseCost, n: float, launch_share: float = 1.0) -> PhaseCost:
    return PhaseCost(cost.flops * n, cost.bytes * n, cost.launches * n * launch_share)


def lstm_cost(tokens: int) -> StepCost:
    """Cost of a training step of the bidirectional LSTM.

    Per layer and direction cuDNN projects all time steps at once and then takes, per time step, one product with the recurrent
    weights and one pointwise kernel; backwards the same, and the gradients of both weights and biases over all steps at once.
    """
    batch, embedded, hidden, layers, directions = 8, 100, 256, 2, 2
    gates, rows = 4 * hidden, tokens * batch
    forward = _elementwise(2 * rows * embedded) + _elementwise(2.25 * rows * embedded)  # embedding, dropout
    backward = forward + _elementwise(LSTM_VOCABULARY * embedded)
    params, tensors = LSTM_VOCABULARY * embedded, 1
    for layer in range(layers):
        width = embedded if layer == 0 else directions * hidden
        for _ in range(directions):
            step = _product(batch, hidden, gates), _elementwise(batch * (3 * gates + 3 * hidden))
            back = _product(batch, gates, hidden), _elementwise(batch * (2 * gates + 5 * hidden))
            forward += _product(rows, width, gates)
            for kernel in step:
                forward += _times(kernel, tokens, CUDNN_LAUNCH_SHARE)
            for kernel in back:
                backward += _times(kernel, tokens, CUDNN_LAUNCH_SHARE)
            backward += _product(rows, gates, width)  # to the layer below
            backward += _product(gates, rows, width) + _product(gates, rows, hidden)  # weights
            backward += _elementwise(rows * gates, 2)  # biases
            params, tensors = params + gates * (width + hidden + 2), tensors + 4
        if layer == 0:
            dropout = _elementwise(2.25 * rows * directions * hidden)
            forward, backward = forward + dropout, backward + dropout
    classifier = _product(batch, directions * hidden, 1)
    params, tensors = params + directions * hidden + 1, tensors + 2
    forward += classifier + _elementwise(0, 6)  # concatenation, dropout, loss
    backward += _times(classifier, 2) + _elementwise(0, 8)
    backward += _elementwise(
        3 * params, tensors
    )  # added to the last step's gradients, which are never zeroed
    return StepCost(forward, backward, _elementwise(ADAM_TENSORS * params, ADAM_KERNELS * tensors))


# --- AGX Orin: inference
# --------------------------------------------------------------------------------------------------------


def bert_features() -> Workload:
    """BERT-base as a feature extractor, one line of text at a time, fp32.

    A matrix product computes whole tiles of its output: `BERT_TOKENS` rows cost the FLOPs of `BERT_TILE_TOKENS`. Training, with
    hundreds of rows, does not feel it, and opcost does not round; here it decides.
    """
    cost = _counted("bert_base_b1_10tokens", "forward")
    tiles = _counted("bert_base_b1_64tokens", "forward")
    return _workload(
        "bert-base-features",
        _inference(PhaseCost(tiles.flops, cost.bytes, cost.launches)),
        family="bert",
        task="features",
        layers=12,
        hidden=768,
        params_m=116.8,
        seq_len=BERT_TOKENS,
        steps=10_000,
    )


def yolov8n_detection(width: int) -> Workload:
    """YOLOv8n on frames of 16:9 that are `width` pixels wide, one at a time, fp32."""
    height = -(-width * 9 // 16 // 32) * 32  # padded to whole strides
    cost, params = yolov8n_cost(width, height)
    return _workload(
        f"yolov8n-{width}px-detection",
        _inference(cost),
        family="yolo",
        task="detection",
        layers=22,
        hidden=256,
        params_m=params / 1e6,
        seq_len=1,
        steps=1800,
    )


class _Net:
    """Counts layers as they are built; an image is (channels, height, width)."""

    def __init__(self) -> None:
        self.cost, self.params = NOTHING, 0

    def conv(
        self, image: tuple[int, int, int], out: int, kernel: int = 1, stride: int = 1, *, act: bool = True
    ) -> tuple[int, int, int]:
        channels, height, width = image
        height, width = -(-height // stride), -(-width // stride)
        pixels, weights = height * width, channels * out * kernel * kernel
        self.params += weights + (2 * out if act else out)  # normalisation (folded at inference) or a bias
        moved = channels * image[1] * image[2] + weights + out * pixels
        self.cost += PhaseCost(2.0 * weights * pixels, FLOAT * moved, 1)
        if act:
            self.cost += _elementwise(2 * out * pixels)
        return out, height, width

    def move(self, elements: float) -> None:
        """A kernel that reads and writes so many numbers."""
        self.cost += _elementwise(elements)

    def join(self, *images: tuple[int, int, int]) -> tuple[int, int, int]:
        channels = sum(image[0] for image in images)
        self.move(2 * channels * images[0][1] * images[0][2])
        return channels, images[0][1], images[0][2]

    def c2f(self, image: tuple[int, int, int], out: int, depth: int, *, add: bool) -> tuple[int, int, int]:
        half = out // 2
        split = self.conv(image, out)
        part = (half, split[1], split[2])
        parts = [part, part]
        for _ in range(depth):
            self.conv(self.conv(part, half, 3), half, 3)
            if add:
                self.move(3 * half * part[1] * part[2])
            parts.append(part)
        return self.conv(self.join(*parts), out)

    def upsample(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        channels, height, width = image
        self.move(5 * channels * height * width)
        return channels, 2 * height, 2 * width


def yolov8n_cost(width: int, height: int) -> tuple[PhaseCost, int]:
    """Cost of one image through YOLOv8n, and its parameters; decoding of boxes and suppression of overlaps is not counted."""
    net = _Net()
    x = net.conv(net.conv((3, height, width), 16, 3, 2), 32, 3, 2)
    x = net.conv(net.c2f(x, 32, 1, add=True), 64, 3, 2)
    p3 = net.c2f(x, 64, 2, add=True)
    p4 = net.c2f(net.conv(p3, 128, 3, 2), 128, 2, add=True)
    x = net.c2f(net.conv(p4, 256, 3, 2), 256, 1, add=True)
    x = net.conv(x, 128)
    for _ in range(3):  # pooling
        net.move(2 * x[0] * x[1] * x[2])
    p5 = net.conv(net.join(x, x, x, x), 256)
    up4 = net.c2f(net.join(net.upsample(p5), p4), 128, 1, add=False)
    out3 = net.c2f(net.join(net.upsample(up4), p3), 64, 1, add=False)
    out4 = net.c2f(net.join(net.conv(out3, 64, 3, 2), up4), 128, 1, add=False)
    out5 = net.c2f(net.join(net.conv(out4, 128, 3, 2), p5), 256, 1, add=False)
    for image in (out3, out4, out5):  # boxes and classes
        for between, last in ((64, 64), (80, 80)):
            net.conv(net.conv(net.conv(image, between, 3), between, 3), last, act=False)
    return net.cost, net.params


# Llama 3.1 8B: 32 layers, width 4096, 8 key-value heads of 128, 14336, 128256 tokens (arXiv 2407.21783).
_LLAMA_LAYERS, _LLAMA_WIDTH, _LLAMA_KV = 32, 4096, 1024
_LLAMA_PARAMS, _LLAMA_EMBEDDING = 8.03e9, 128_256 * 4096
_LLAMA_KERNELS = 20
"""Kernels per layer of llama.cpp: norms, seven products with quantisation of their input, rotation, attention, additions."""
LLAMA_BYTES = {"iq4xs": 4.45e9, "q4km": 4.92e9}
"""Sizes of the public GGUF files, rounded; the measurement does not name the files. Their input embedding is not streamed."""
_LLAMA_MICRO_BATCH = 512


def llama8b_decode(quantisation: str, context: int) -> Workload:
    """Llama-3.1-8B by llama.cpp, one new token at a time after `context` tokens."""
    weights = LLAMA_BYTES[quantisation] * (1 - _LLAMA_EMBEDDING / _LLAMA_PARAMS)
    cache = 2 * 2 * _LLAMA_LAYERS * _LLAMA_KV * context  # keys and values, 16 bits
    flops = 2 * (_LLAMA_PARAMS - _LLAMA_EMBEDDING) + 4 * _LLAMA_LAYERS * _LLAMA_WIDTH * context
    return _llama(
        f"llama8b-{quantisation}-decode",
        PhaseCost(flops, weights + cache, _LLAMA_LAYERS * _LLAMA_KERNELS),
        "decode",
        context,
    )


def llama8b_prefill(quantisation: str, tokens: int) -> Workload:
    """Llama-3.1-8B by llama.cpp, a prompt of `tokens` in micro-batches of 512, as one step."""
    batches = -(-tokens // _LLAMA_MICRO_BATCH)
    body = _LLAMA_PARAMS - 2 * _LLAMA_EMBEDDING
    attention = 2 * _LLAMA_LAYERS * _LLAMA_WIDTH * tokens * tokens  # causal: half of all pairs
    activations = FLOAT * tokens * _LLAMA_LAYERS * (10 * _LLAMA_WIDTH + 4 * 14_336)
    cache = 2 * 2 * _LLAMA_LAYERS * _LLAMA_KV * batches * tokens / 2
    weights = LLAMA_BYTES[quantisation] * body / _LLAMA_PARAMS * batches
    return _llama(
        f"llama8b-{quantisation}-prefill",
        PhaseCost(
            2 * body * tokens + attention,
            weights + activations + cache,
            batches * _LLAMA_LAYERS * _LLAMA_KERNELS,
        ),
        "prefill",
        tokens,
    )


def _llama(name: str, cost: PhaseCost, task: str, tokens: int) -> Workload:
    return _workload(
        name,
        _inference(cost),
        family="llama",
        task=task,
        layers=_LLAMA_LAYERS,
        hidden=_LLAMA_WIDTH,
        params_m=_LLAMA_PARAMS / 1e6,
        seq_len=tokens,
        precision="fp16",
    )
