"""`start` and the scripts: what is printed where, and with which exit code."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lightrft.config import cli
from lightrft.config.cli import exit_status, start
from lightrft.config.launch import engine_environment, launcher_command, needs_launcher
from lightrft.config.resolve import resolve
from lightrft.errors import ConfigError, DataError
from tests.config.runs import QWEN_7B, QWEN_RM, QWEN_VL, h200, words, write_model

ROOT = Path(__file__).parents[2]
SPEECH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No launcher around the tests."""
    for name in SPEECH:
        monkeypatch.delenv(name, raising=False)


def run_script(*argv, script="train.py"):
    command = [sys.executable, str(ROOT / script), *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def children_seconds():
    """Processor seconds of ended child processes: unlike the clock's, the same on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def status(argv, modality="text"):
    return exit_status(lambda: start(argv, modality) and 0)


def test_a_good_run_is_handed_over(base):
    config = start(words(base), "text")
    assert config.train_batch_size == 16
    assert config.modality == "text"


def test_help_shows_every_flag_with_its_default(capsys):
    with pytest.raises(SystemExit) as stopped:
        start(["--help"], "text")
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "  --max_len N                     longest sequence, prompt + response, in tokens [4096]" in text
    assert "one of k1, k2, k3 [k3]" in text
    assert "one of vllm, sglang, hf [vllm]" in " ".join(text.split())
    assert "(planned: length, remote)" in " ".join(text.split())
    assert "local_rank" not in text
    assert max(map(len, text.splitlines())) <= 110
    positions = [text.index(f"\n{name}:") for name in ("model", "training", "batch size", "rewards")]
    assert positions == sorted(positions)


def test_a_plan_goes_to_stdout_and_remarks_to_stderr(base, capsys):
    line = words(base | {"dry_run": True, "train_batch_size": 4, "eps_clip": 0.1, "packing_samples": True})
    with pytest.raises(SystemExit) as stopped:
        start(line, "text")
    out, err = capsys.readouterr()
    assert stopped.value.code == 0
    assert out.startswith("LightRFT plan (dry run)\n")
    assert "lightrft: deprecated: --eps_clip is an old spelling: write --clip_range\n" in err
    assert "lightrft: note: not available yet: --packing_samples (packed sequences)" in err
    assert "lightrft: warning: batch_rule: train_batch_size >= " in err


def test_print_config_is_json_and_nothing_else(base, capsys):
    with pytest.raises(SystemExit):
        start(words(base | {"print_config": True, "adam_betas": "0.8,0.9"}), "text")
    values = json.loads(capsys.readouterr().out)
    assert values["train_batch_size"] == 16
    assert values["adam_betas"] == [0.8, 0.9]
    assert values["policy_loss"] == "ppo"


def test_all_violations_come_in_one_message(base, capsys):
    line = words(base | {"train_batch_size": 12, "prompt_data": "/nowhere.jsonl", "reward": "remote"})
    assert status(line) == 2
    err = capsys.readouterr().err
    assert err.startswith("lightrft: error: 3 problems:\n  - train_batch_size (12 samples)")
    assert "  - --prompt_data /nowhere.jsonl: there is no such file or folder" in err
    assert "  - not available yet: --reward remote (remote reward servers): give --reward " in err


def test_strict_validation_turns_warnings_into_errors(base, capsys):
    line = words(base | {"train_batch_size": 4})
    assert start(line, "text").train_batch_size == 4
    assert "lightrft: warning: batch_rule" in capsys.readouterr().err
    assert status([*line, "--strict_validation"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lightrft: error: batch_rule: ")
    assert "(a warning, an error by --strict_validation)" in err


def test_other_ranks_check_but_do_not_speak(base, capsys, monkeypatch):
    for name, value in zip(SPEECH, ("1", "2", "1", "2"), strict=False):
        monkeypatch.setenv(name, value)
    assert start(words(base | {"train_batch_size": 8}), "text").world.rank == 1
    assert status(words(base | {"train_batch_size": 12})) == 2
    assert capsys.readouterr().err == ""


def test_the_first_process_of_another_host_speaks_of_errors(base, capsys, monkeypatch):
    for name, value in zip(SPEECH, ("1", "2", "0", "1"), strict=False):
        monkeypatch.setenv(name, value)
    assert status(words(base | {"prompt_data": "/nowhere.jsonl"})) == 2
    assert "/nowhere.jsonl" in capsys.readouterr().err


def test_an_error_of_the_run_keeps_its_exit_code(capsys):
    def fails():
        raise DataError("the rows are bad")

    assert exit_status(fails) == 2
    assert capsys.readouterr().err == "lightrft: error: the rows are bad\n"
    assert exit_status(lambda: 5) == 5


def test_a_host_with_several_gpus_becomes_a_launcher(base, monkeypatch, capsys):
    gpus = h200(4)[1:]  # CUDA_VISIBLE_DEVICES=1,2,3
    started = []
    monkeypatch.setattr(cli, "resolve", lambda argv, modality, environ: resolve(argv, modality, {}, gpus))
    monkeypatch.setattr("os.execv", lambda path, command: started.append(command) or sys.exit(0))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    line = words(base | {"num_gpus": 2, "train_batch_size": 4})
    with pytest.raises(SystemExit):
        start(line, "text")
    (command,) = started
    assert command[:5] == [sys.executable, "-m", "deepspeed.launcher.runner", "--include", "localhost:1,2"]
    assert command[5] == "--master_port"
    assert command[7:] == [str(Path("train.py").resolve()), *line]
    err = capsys.readouterr().err
    assert err == (
        "lightrft: 3 GPUs are visible: starting 2 processes with `deepspeed --include localhost:1,2 train.py "
        "...`\n"
    )


def test_what_needs_a_launcher(make):
    assert needs_launcher(make(gpus=h200(2)))
    assert not needs_launcher(make(gpus=h200(2), num_gpus=1))
    assert not needs_launcher(make(gpus=h200(2), dry_run=True))
    assert not needs_launcher(make())
    launched = dict(zip(SPEECH, ("0", "2", "0", "2"), strict=False))
    assert not needs_launcher(make(gpus=h200(2), environ=launched))
    assert launcher_command(make(gpus=h200(2)), "/x/train.py", ["--a"])[-2:] == ["/x/train.py", "--a"]


def test_vllm_finds_its_environment_before_torch_is_imported(make):
    alone = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    assert engine_environment(make(engine_type="vllm", gpus=h200(1))) == alone
    assert engine_environment(make(engine_type="vllm")) == alone | {"OMP_NUM_THREADS": "1"}
    assert engine_environment(make(engine_type="sglang", gpus=h200(1))) == {}
    assert engine_environment(make()) == {}


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4")])
def test_a_run_sets_what_the_user_has_not(base, monkeypatch, given, threads):
    environ = {"PATH": "/bin", **given}
    monkeypatch.setattr(cli, "resolve", lambda argv, modality, environ: resolve(argv, modality, {}, ()))
    monkeypatch.setattr(cli, "_checked", lambda config: ([], []))  # vllm need not be installed
    monkeypatch.setattr("os.environ", environ)
    start(words(base | {"engine_type": "vllm"}), "text")
    assert environ["OMP_NUM_THREADS"] == threads
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


@pytest.mark.parametrize("script", ["train.py", "train_vl.py"])
def test_a_wrong_flag_answers_in_under_a_second(script):
    before = children_seconds()
    done = run_script("--train_bach_size", "8", script=script)
    assert children_seconds() - before < 1
    assert done.returncode == 2
    assert "--train_bach_size: unknown flag: did you mean --train_batch_size?" in done.stderr
    assert done.stderr.startswith("lightrft: error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_front_end_imports_no_tensor_library():
    modules = sorted(
        f"lightrft.config.{'.'.join(p.relative_to(ROOT / 'lightrft' / 'config').with_suffix('').parts)}"
        for p in (ROOT / "lightrft" / "config").rglob("*.py")
        if p.stem != "__init__"
    )
    code = f"import sys, {', '.join(modules)}; print(sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(eval(done.stdout, {"__builtins__": {}}))
    assert "lightrft" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "deepspeed", "datasets", "vllm", "sglang"}


def commands():
    text = (Path(__file__).parent / "reference_commands.txt").read_text()
    blocks = [[x for x in b.split("\n") if x and not x.startswith("#")] for b in text.strip().split("\n\n")]
    return [(block[0], " ".join(block[1:]).split()) for block in blocks]


@pytest.mark.parametrize(("script", "argv"), commands(), ids=[script for script, _ in commands()])
def test_the_complete_commands_of_the_reference_pass_a_dry_run(tmp_path, script, argv):
    places = {
        "text_model": write_model(tmp_path / "text", QWEN_7B),
        "vision_model": write_model(tmp_path / "vision", QWEN_VL),
        "reward_model": write_model(tmp_path / "reward", QWEN_RM),
        "out": tmp_path / "out",
    }
    line = [word.format(**places) for word in argv]
    planned = run_script(*line, "--dry_run", script=script)
    assert planned.returncode == 0, planned.stderr
    assert "lightrft: warning: batch_rule: train_batch_size >= " in planned.stderr
    assert "needed_to_train: --prompt_data is needed to train, not to plan" in planned.stderr
    assert "not available yet: --engine_type" not in planned.stderr
    assert "one optimizer step" in planned.stdout
    strict = run_script(*line, "--dry_run", "--strict_validation", script=script)
    assert strict.returncode == 2
    assert "  - batch_rule: train_batch_size >= " in strict.stderr
    assert strict.stdout == ""


def test_the_reference_has_two_complete_commands():
    assert [script for script, _ in commands()] == ["train.py", "train_vl.py"]


def test_the_front_doors_are_short():
    for script in ("train.py", "train_vl.py"):
        assert len((ROOT / script).read_text().splitlines()) <= 25


def test_config_errors_are_user_errors():
    assert ConfigError("x").exit_code == 2
