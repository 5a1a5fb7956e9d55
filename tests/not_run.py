"""The commands of the pages that the test of the pages does not run as they stand, each with its reason: the only such list.

What stands here is parsed all the same (`test_page_commands.py`); an entry must be on a page, and the test it names must exist.
A command that is not here is run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Left:
    """A command that is not run as it stands.

    Attributes:
        command: as on the page, without its comment.
        why: the reason.
        test: the test that runs the same thing, ``path::function``.
        instead: what the session runs in its place.
        page: the one page where that holds; elsewhere the command is run.
    """

    command: str
    why: str
    test: str = ""
    instead: str = ""
    page: str = ""


NET = "fetches packages"
MACHINE = "changes the machine as root, or asks a Jetson's own programs"
FETCHED = "tests/integration/test_finetune_hub.py::test_what_was_fetched_trains_without_a_network"
HUB = "fetches a model or data of somebody else"
LONG = "takes minutes"
ELSEWHERE = "another test runs it"

E2E = "tests/e2e/test_pipeline.py::"
RECORDED = E2E + "test_recorded_sweeps_run_from_features_to_publish"
FOREIGN = "tests/integration/test_recorded_data.py::test_the_published_optima_come_out"
CLOCKD = "tests/integration/test_clockd_emulated.py::"
LOCAL_STORE = 'export MLFLOW_TRACKING_URI="sqlite:///$PWD/mlflow.db"'

NOT_RUN = (
    # The pipeline and the tests themselves
    Left("make repro", ELSEWHERE, E2E + "test_every_output_is_there_and_says_simulated"),
    Left("make test", "is what runs this"),
    Left("make ui", "serves until Ctrl-C", "tests/integration/test_mlflow_pages.py::test_the_comparison_opens_ready_to_read"),
    Left("make repro EXPERIMENT=smoke", ELSEWHERE, E2E + "test_a_clone_without_git_history",
         "make params EXPERIMENT=smoke", page="conf/README.md"),
    Left("make repro ARGS='sweep.repeats=5'", LONG, E2E + "test_changing_one_workload_profiles_that_workload_alone",
         "make params ARGS='sweep.repeats=5'"),
    Left("dvc exp run -S sweep.repeats=5", LONG, instead="dvc exp run --queue -S sweep.repeats=5"),
    Left("dvc repro features", ELSEWHERE, E2E + "test_every_output_is_there_and_says_simulated"),
    Left("make repro EXPERIMENT=recorded DATA=my_sweep.csv", ELSEWHERE, RECORDED),
    Left("make repro EXPERIMENT=recorded DATA=my.csv", ELSEWHERE, RECORDED, "make params EXPERIMENT=recorded DATA=my.csv"),
    Left("make repro EXPERIMENT=recorded DATA=folder BOARD=my-board", ELSEWHERE, RECORDED,
         "make params EXPERIMENT=recorded DATA=folder BOARD=my-board"),
    Left("make repro EXPERIMENT=jetson", "measures a real board for hours",
         "tests/integration/test_jetson_board.py::test_a_sweep_in_random_order_resumed_after_a_reboot_feeds_the_features",
         "make params EXPERIMENT=jetson"),
    Left("make repro EXPERIMENT=jetson ARGS='accuracy.workloads=[bert-base-sst2] accuracy.clocks_mhz=[510]'",
         "trains on a real board for hours",
         "tests/integration/test_accuracy.py::test_a_real_training_learns_the_same_at_every_clock",
         "make params EXPERIMENT=jetson ARGS='accuracy.workloads=[bert-base-sst2] accuracy.clocks_mhz=[510]'"),
    Left("make repro EXPERIMENT=emulated", LONG, "tests/slow/test_finetune_sweep.py::test_a_real_training_from_sweep_to_judgement",
         "make params EXPERIMENT=emulated"),
    Left("WATTUNE_ROOT=/tmp/board make repro EXPERIMENT=emulated", LONG,
         "tests/slow/test_finetune_sweep.py::test_a_real_training_from_sweep_to_judgement",
         "WATTUNE_ROOT=/tmp/board make params EXPERIMENT=emulated"),
    Left("make repro EXPERIMENT=diverse", LONG,
         "tests/integration/test_bench_diverse.py::test_the_experiment_composes_and_its_workloads_are_the_drawn_ones",
         "make params EXPERIMENT=diverse"),
    Left("make repro EXPERIMENT=paper-protocol", LONG),
    Left("make repro EXPERIMENT=paper-protocol ARGS='sweep.baseline=left-pinned'", LONG,
         instead="make params EXPERIMENT=paper-protocol ARGS='sweep.baseline=left-pinned'"),
    # Benchmarks
    Left("wattune bench diverse", LONG, "tests/integration/test_bench_diverse.py::test_figures_of_the_part_and_their_bars"),
    Left("wattune bench studies", LONG, "tests/integration/test_bench_studies.py::test_the_figures_of_a_small_seeded_study"),
    Left("wattune bench probe", LONG, "tests/unit/test_bench_probe.py::test_a_curve_is_judged_with_and_without_noise"),
    Left("wattune bench paper-protocol", LONG, "tests/unit/test_whole_log.py::test_set_up_scales"),
    # Packages, servers, models and data from elsewhere
    Left("pip install .", NET),
    Left("pip install '.[pull]'", NET),
    Left("pip install ~/wattune", NET),
    Left("pip install -c constraints.txt transformers accelerate datasets", NET),
    Left("git clone REPOSITORY wattune && cd wattune", "the session lies in a clone already"),
    Left("export MLFLOW_TRACKING_URI=http://my-server:5000", "a server elsewhere",
         "tests/integration/test_pull.py::test_pull_over_http_from_another_folder_and_environment", LOCAL_STORE),
    Left("pip install '.[pull]'; export MLFLOW_TRACKING_URI=http://my-server:5000", NET,
         "tests/integration/test_pull.py::test_pull_over_http_from_another_folder_and_environment", LOCAL_STORE),
    Left("wattune finetune bert-small sst2 --data made-up --random-weights --batch-size 4 --steps 20", LONG,
         "tests/integration/test_finetune_worker.py::test_made_up_sentences_need_no_file_at_all"),
    Left("wattune finetune bert-base sst2", HUB, FETCHED),
    Left("HF_HUB_OFFLINE=1 wattune finetune bert-base sst2", HUB,
         FETCHED),
    Left("wattune finetune Qwen/Qwen2.5-0.5B --data chats.jsonl --method lora --precision bf16 --batch-size 4", HUB,
         "tests/integration/test_finetune_worker.py::test_every_method_begins_anew_bit_for_bit_and_moves_only_what_it_trains"),
    Left("wattune fetch bert-base sst2", HUB, FETCHED),
    Left("wattune fetch owner/model --task-path owner/data", HUB,
         FETCHED),
    Left("wattune fetch owner/model", HUB, "tests/integration/test_finetune_hub.py::test_a_model_alone_is_fetched"),
    Left("wattune choose --config Qwen/Qwen2.5-0.5B --task mnli", HUB),
    # A real board, and root on it
    Left("tegrastats --interval 1000 --logfile board.log", MACHINE),
    Left("ssh board 'tegrastats --interval 1000' | timeout 60 cat | wattune import tegrastats -", MACHINE),
    Left("sudo jetson_clocks --show | wattune import jetson-clocks - --json", MACHINE,
         "tests/unit/test_jetson_clocks.py::test_one_document_in_mhz"),
    Left("sudo apt-get install -y python3-venv git", MACHINE),
    Left("sudo python3 -m venv /opt/wattune && sudo /opt/wattune/bin/pip install .", MACHINE),
    Left("sudo python3 -m venv /opt/wattune", MACHINE),
    Left("sudo /opt/wattune/bin/pip install .", MACHINE),
    Left("sudo ln -s /opt/wattune/bin/wattune /usr/local/bin/wattune", MACHINE),
    Left('python -c "import torch; print(torch.__version__, torch.cuda.is_available())"', "asks the torch of JetPack"),
    Left("sudo nvpmodel -q", MACHINE),
    Left("sudo nvpmodel -m 0", MACHINE),
    Left("sudo groupadd --system wattune; sudo usermod -aG wattune $USER", MACHINE),
    Left("sudo groupadd --system wattune", MACHINE),
    Left("sudo usermod -aG wattune $USER", MACHINE),
    Left("sudo cp packaging/wattune-clockd.socket packaging/wattune-clockd.service /etc/systemd/system/", MACHINE),
    Left("sudo systemctl daemon-reload && sudo systemctl enable --now wattune-clockd.socket", MACHINE),
    Left("sudo systemctl daemon-reload", MACHINE),
    Left("sudo systemctl enable --now wattune-clockd.socket", MACHINE),
    Left("sudo systemctl disable --now wattune-clockd.socket wattune-clockd.service wattune-training 2>/dev/null", MACHINE),
    Left("sudo systemctl disable --now wattune-clockd.socket wattune-clockd.service", MACHINE),
    Left("sudo rm -f /etc/systemd/system/wattune-*; sudo systemctl daemon-reload", MACHINE),
    Left("sudo rm -rf /opt/wattune /usr/local/bin/wattune /run/wattune; sudo groupdel wattune", MACHINE),
    Left("sudo rm /etc/systemd/system/wattune-clockd.*; sudo systemctl daemon-reload", MACHINE),
    Left("sudo cp packaging/60-wattune.rules /etc/udev/rules.d/", MACHINE),
    Left("sudo udevadm control --reload; sudo udevadm trigger --action=change --subsystem-match=devfreq", MACHINE),
    Left("sudo visudo -cf packaging/wattune.sudoers && sudo install -m 0440 packaging/wattune.sudoers /etc/sudoers.d/wattune",
         MACHINE),
    Left("sudo -n /opt/wattune/bin/wattune pin 612", MACHINE),
    Left(
        "python3 - <<'END' import socket s = socket.socket(socket.AF_UNIX); s.connect(\"/run/wattune/clockd.sock\")"
        " s.sendall(b'{\"do\": \"status\"}\\n'); print(s.recv(65536).decode()) END",
        "asks the daemon of a board", CLOCKD + "test_a_member_of_the_group_pins_moves_verifies_and_restores",
    ),
)  # fmt: skip

STARTS = (
    Left(
        'wattune import sweep "$WATTUNE_DATA',
        "reads measurements of others that may not be copied here",
        FOREIGN,
    ),
)
"""Commands of which the beginning is enough."""

NEEDS = {
    "wattune finetune": "transformers",
    "wattune choose --config": "transformers",
    "jq": "jq",
}
"""Beginnings of commands that are run where that module (`make setup EXTRAS=train`) or program is installed, and parsed elsewhere."""

WITHOUT_END = {
    r"(sudo )?wattune pin \S+( --root \S+)?": r"Held until Ctrl-C",
    r"wattune emulate [^&]*": r"^ready: ",
}
"""Commands that go on until Ctrl-C, and what they print once they do: then they get it, and have to end with 0."""


def left(page: str, name: str) -> Left | None:
    """The entry of a command of a page, where it has one."""
    for entry in NOT_RUN:
        if entry.command == name and entry.page in ("", page):
            return entry
    return next((entry for entry in STARTS if name.startswith(entry.command)), None)
