"""Published figures, the jobs behind measurements of others, and the readers of their data files."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
from pathlib import Path

import pytest

from wattune.boards.virtual.constants import find_board_file
from wattune.core.errors import InputError
from wattune.validation import jobs
from wattune.validation.calibrate import log_ratios
from wattune.validation.datafiles import (
    ABSENT,
    FAMILIES,
    INFERENCE_FILE,
    LLAMA_FILE,
    XAVIER_FILE,
    data_sources,
)
from wattune.validation.published import (
    PYTHIA_14M,
    PYTHIA_14M_COST,
    published_figures,
    published_sources,
)
from wattune.workloads.opcost import QUANTITIES, _gpu_mode, _tally_mode, count_config

CLOCKS = (306.0, 408.0, 510.0)


# --- published figures
# --------------------------------------------------------------------------------------------------------


def test_published_curves():
    sources = published_sources()
    assert [s.name for s in sources] == ["orin_deberta_qnli", "orin_deberta_sst2", "orin_pythia14m_qnli"]
    assert sum(len(s.measured) for s in sources) == 33
    for source in sources:
        assert source.used_for == "calibration"
        assert source.rails == ("VDD_GPU_SOC", "VDD_CPU_CV")
        assert list(source.mhz) == sorted(source.mhz)
        assert len(source.mhz) == len(source.measured)
        assert source.steps == source.workload.steps_per_epoch
        assert "slmdvfs" in source.citation
    minima = [s.mhz[s.measured.index(min(s.measured))] for s in sources]
    assert minima == [612.0, 714.0, 408.0]


def test_what_is_assumed_is_said():
    assumed = {s.name: " ".join(s.assumed) for s in published_sources()}
    assert "batch 128 and fp16" in assumed["orin_deberta_sst2"]
    assert "batch 32 and fp16" in assumed["orin_pythia14m_qnli"]
    assert "epoch" in assumed["orin_pythia14m_qnli"]


def test_doubtful_row_is_named_and_left_out():
    figures = published_figures()
    left_out = [f for f in figures.values() if not f.used]
    assert [f.name for f in left_out] == ["orin_deberta_qnli_maxn_j"]
    assert "oubtful" in left_out[0].note
    assert all(f.citation and f.note and f.value for f in figures.values())
    assert figures["paper_mean_saving_pct"].value == (13.11,)


@pytest.mark.long
def test_pythia_14m_is_what_counting_gives():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counted = count_config(PYTHIA_14M, "fp16")
    for phase, rows in PYTHIA_14M_COST.coefficients.items():
        for quantity in QUANTITIES:
            assert tuple(counted.coefficients[phase][quantity]) == pytest.approx(rows[quantity], rel=0.01)
    assert counted.base_params == PYTHIA_14M_COST.base_params


# --- jobs
# --------------------------------------------------------------------------------------------------------


def _train_counts(model, loss_of):
    """Forward, backward onto gradients that are there, and Adam tensor by tensor."""
    import torch

    trained = [p for p in model.train().parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.Adam(trained, foreach=False)
    optimizer.step()
    with _tally_mode() as forward, _gpu_mode(None):
        loss = loss_of(model)
    with _tally_mode() as backward:
        loss.backward()
    with _tally_mode() as step:
        optimizer.step()
    return {
        "params": sum(p.numel() for p in trained),
        "forward": forward.tally.counts(),
        "backward": backward.tally.counts(),
        "optimizer": step.tally.counts(),
    }


def _image_job(name):
    import torch
    import transformers

    with torch.device("meta"):
        if name.startswith("vit"):
            config = transformers.ViTConfig(image_size=32, num_labels=10, hidden_dropout_prob=0.1)
            model = transformers.AutoModelForImageClassification.from_config(
                config, attn_implementation="eager"
            )
            images, labels = torch.empty(32, 3, 32, 32), torch.zeros(32, dtype=torch.long)
        else:
            model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=200))
            images, labels = torch.empty(8, 3, 224, 224), torch.zeros(8, dtype=torch.long)
    return _train_counts(
        model.float(), lambda m: torch.nn.functional.cross_entropy(m(pixel_values=images).logits, labels)
    )


def _bert_job(name):
    import torch
    import transformers

    tokens = 64 if "64" in name else jobs.BERT_TOKENS
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(vocab_size=40000)).eval()
        model.set_attn_implementation("eager")
        inputs = torch.zeros(1, tokens, dtype=torch.long)
        mask = torch.zeros(1, 1, tokens, tokens)
    with torch.no_grad(), _tally_mode() as forward, _gpu_mode(None):
        model(input_ids=inputs, attention_mask=mask)
    return {"params": sum(p.numel() for p in model.parameters()), "forward": forward.tally.counts()}


@pytest.mark.parametrize("name", sorted(jobs._table()))
def test_committed_counts_are_what_counting_gives(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counted = _bert_job(name) if name.startswith("bert") else _image_job(name)
    committed = jobs._table()[name]
    assert committed.keys() == counted.keys()
    for key, value in committed.items():
        wanted = counted[key] if isinstance(value, int) else list(counted[key])
        assert value == pytest.approx(wanted, rel=0.02), key


def test_adam_without_multi_tensor_operations():
    vit = jobs._table()["vit_b16_32px_b32"]
    _, moved, launches = vit["optimizer"]
    assert moved == pytest.approx(jobs.ADAM_TENSORS * jobs.FLOAT * vit["params"], rel=0.01)
    assert launches == 200 * jobs.ADAM_KERNELS


def test_yolov8n_has_its_published_size():
    cost, params = jobs.yolov8n_cost(640, 640)
    assert cost.flops == pytest.approx(8.7e9, rel=0.01)
    assert params == pytest.approx(3.2e6, rel=0.02)


def test_lstm_products_and_launches():
    torch = pytest.importorskip("torch")
    tokens, rows = 50, 50 * 8
    model = torch.nn.LSTM(100, 256, num_layers=2, bidirectional=True)
    per_token = sum(p.numel() for name, p in model.named_parameters() if name.startswith("weight"))
    cost = jobs.lstm_cost(tokens)
    assert cost.forward.flops == pytest.approx(2 * rows * per_token, rel=0.001)
    assert cost.backward.flops == pytest.approx(4 * rows * per_token, rel=0.001)
    more = jobs.lstm_cost(tokens + 1)
    kernels_per_token = (more.total.launches - cost.total.launches) / jobs.CUDNN_LAUNCH_SHARE
    assert kernels_per_token == pytest.approx(2 * 2 * 4)


def test_inference_is_a_forward_pass():
    for workload in (
        jobs.bert_features(),
        jobs.yolov8n_detection(640),
        jobs.llama8b_decode("q4km", 128),
        jobs.llama8b_prefill("iq4xs", 15718),
    ):
        cost = workload.bins[0].cost
        assert cost.forward.flops > 0
        assert cost.backward == cost.optimizer == jobs.NOTHING


def test_decoding_streams_the_weights_once_a_token():
    short, long = (jobs.llama8b_decode("q4km", n).bins[0].cost.forward for n in (0, 15718))
    assert short.bytes == pytest.approx(4.6e9, rel=0.02)
    assert long.bytes - short.bytes == pytest.approx(15718 * 131072)
    assert short.flops == pytest.approx(15e9, rel=0.01)


# --- data files
# --------------------------------------------------------------------------------------------------------

COLUMNS = ("workload", "model", "setting", "gpu_mhz", "cpu_mhz", "emc_mhz", "time_s", "power_w", "quality")


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, restval="")
    table.writeheader()
    table.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _sweep(clocks=CLOCKS, **fixed):
    return [{"gpu_mhz": f, "time_s": 300.0 / f, "power_w": f / 100.0, **fixed} for f in clocks]


def _xavier_rows():
    models = ("ViT-B_16", "resnet50", "LSTM emb100 hid256 x2 bidirectional")
    return [
        row
        for model in models
        for cpu, emc in ((2265.6, 2133.0), (2265.6, 204.0), (115.2, 2133.0))
        for row in _sweep(model=model, workload="train", cpu_mhz=cpu, emc_mhz=emc)
    ]


def _inference_rows():
    bert = [f"x/bert-base-pruned-voc-esw0.{n}-40000-en-de-cased" for n in (1, 5, 9)]
    rows = [row for model in bert for row in _sweep(model=model, workload="BERT", cpu_mhz=2201.6)]
    for width in (480, 640, 960):
        for cpu in (2201.6, 115.2):
            rows += _sweep(model="yolov8n", workload=f"YOLOv8n, width {width}", cpu_mhz=cpu)
    return rows


def _llama_rows():
    rows = []
    for mode, variants in (
        ("MAXN + jetson_clocks", ("iq4xs", "q4km", "lciq4xs", "lcq4km")),
        ("MODE_30W", ("q4km", "lcq4km")),
    ):
        for variant in variants:
            for phase in ("decode", "prefill"):
                for run, power in ((1, 40.0), (2, 42.0)):
                    rows.append(
                        {
                            "workload": f"llama.cpp {phase}, variant {variant} run {run}",
                            "setting": mode,
                            "time_s": 10,
                            "power_w": power,
                        }
                    )
    return rows


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / XAVIER_FILE, _xavier_rows())
    _write(tmp_path / INFERENCE_FILE, _inference_rows())
    _write(tmp_path / LLAMA_FILE, _llama_rows())
    return tmp_path


def test_absent_where_nothing_is_there(tmp_path):
    assert data_sources(None) == dict.fromkeys(FAMILIES, ABSENT)
    assert data_sources(tmp_path) == dict.fromkeys(FAMILIES, ABSENT)


def test_one_file_is_enough_for_its_families(folder):
    (folder / INFERENCE_FILE).unlink()
    found = data_sources(folder)
    assert {name for name, sources in found.items() if sources == ABSENT} == {
        name for name, file in FAMILIES.items() if file == INFERENCE_FILE
    }


def test_families(folder):
    found = data_sources(folder)
    assert found.keys() == FAMILIES.keys()
    names = [source.name for sources in found.values() for source in sources]
    assert len(set(names)) == len(names) == 3 + 3 + 3 + 3 + 3 + 3 + 9
    for family, sources in found.items():
        for source in sources:
            calibrates = family.startswith("xavier")
            assert source.used_for == ("calibration" if calibrates else "validation")
            assert source.quantity == family.rsplit("_", 1)[1]
            assert bool(source.rails) == (source.quantity != "time")
            assert len(source.mhz) == len(source.measured)
            assert source.citation


def test_only_the_maximum_cpu_and_memory_clock_count(folder):
    for family in ("xavier_training_time", "orin_yolo_inference_time"):
        for source in data_sources(folder)[family]:
            assert source.mhz == CLOCKS
            assert source.measured == pytest.approx([300.0 / f for f in CLOCKS])


def test_llama_powers_are_means_of_the_runs(folder):
    for source in data_sources(folder)["orin_llama8b_power"]:
        assert source.measured == (41.0,)
        assert source.mhz == ((612.0,) if source.name.endswith("30w") else (1300.5,))


def test_implausible_rows_are_left_out_and_counted(folder):
    rows = _inference_rows()
    rows[0]["time_s"] = 0.5  # faster than the clock above
    rows[1]["power_w"] = ""
    _write(folder / INFERENCE_FILE, rows)
    with pytest.raises(InputError, match="1 usable rows"):
        data_sources(folder)
    wide = (*CLOCKS, 612.0, 714.0)
    model = str(rows[0]["model"])
    bert = _sweep(wide, model=model, workload="BERT", cpu_mhz=2201.6)
    bert[0]["time_s"], bert[1]["power_w"] = 0.5, ""
    _write(folder / INFERENCE_FILE, bert + rows[3:])
    source = data_sources(folder)["orin_bert_inference_time"][0]
    assert source.mhz == (510.0, 612.0, 714.0)
    assert "rows left out: 2" in " ".join(source.assumed)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[: len(data) // 2], "line 1"),
        (lambda data: b"nonsense", "line 1"),
        (lambda data: gzip.compress(b"\xff\xfe"), "line 1"),
        (lambda data: gzip.compress(b""), "line 1, lacks the column workload"),
        (lambda data: gzip.compress(b"workload,model\n"), "lacks the column setting"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",2201.6,", b",fast,", 1)), "line 2: cpu"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",2201.6,", b",nan,", 1)), "line 2: cpu"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",2201.6,", b",-3,", 1)), "line 2: cpu"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",2201.6,", b",0,", 1)), "line 2: cpu"),
        (lambda data: gzip.compress(gzip.decompress(data) + b"BERT,x\n"), "line 29, has another number"),
        (lambda data: gzip.compress(gzip.decompress(data) + b'"BERT'), "is not a row of a table"),
    ],
)
def test_damaged_files(folder, damage, expected):
    path = folder / INFERENCE_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as caught:
        data_sources(folder)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_another_collection_than_the_pages_is_named(folder, caplog):
    data_sources(folder)
    assert f"{folder / XAVIER_FILE} is not the collection" in caplog.text


def test_a_sweep_that_is_not_there(folder):
    _write(folder / XAVIER_FILE, [row for row in _xavier_rows() if row["model"] != "resnet50"])
    with pytest.raises(InputError, match="no sweep of resnet50"):
        data_sources(folder)
    _write(folder / XAVIER_FILE, _xavier_rows())
    _write(folder / LLAMA_FILE, _llama_rows()[4:])
    with pytest.raises(InputError, match="variant iq4xs"):
        data_sources(folder)


# --- the AGX Xavier
# --------------------------------------------------------------------------------------------------------


def test_xavier_board():
    board = find_board_file("jetson-agx-xavier")
    assert board.calibrated
    assert len(board.clocks_hz) == 14
    assert [rail.label for rail in board.module_rails] == ["GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"]
    assert len(board.power_modes) == 8
    assert board.in_mode("MODE_15W").clocks_hz[-1] == 675_750_000


def test_xavier_reproduces_the_shape_of_training_time():
    folder = os.environ.get("WATTUNE_DATA")
    found = data_sources(Path(folder) if folder else None)["xavier_training_time"]
    if isinstance(found, str):
        pytest.skip("WATTUNE_DATA does not name a folder with the Xavier sweep")
    board = find_board_file("jetson-agx-xavier")
    for source in found:
        ratios = log_ratios(board, source)
        middle = sum(ratios) / len(ratios)
        assert max(abs(math.exp(r - middle) - 1) for r in ratios) <= 0.05
