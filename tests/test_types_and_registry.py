"""The records' own promises, and finding components by name."""

import subprocess
import sys

import pytest
import torch

from lightrft import registry
from lightrft.errors import ConfigError
from lightrft.types import Experience, RewardResult


def experience(rows=3, length=6):
    mask = torch.zeros(rows, length, dtype=torch.long)
    for i in range(rows):
        mask[i, : 2 + i] = 1
    return Experience(
        input_ids=torch.arange(rows * length).view(rows, length),
        attention_mask=mask,
        response_mask=mask.float(),
        group_ids=torch.arange(rows),
        rewards=torch.arange(rows).float(),
        policy_version=torch.zeros(rows, dtype=torch.long),
        multimodal=[{"row": i} for i in range(rows)],
    )


def test_select_takes_every_role_along_and_trims():
    part = experience().select([1, 0])
    assert part.input_ids.tolist() == [[6, 7, 8], [0, 1, 2]]  # row 1 is three tokens long
    assert part.rewards.tolist() == [1.0, 0.0]
    assert part.multimodal == [{"row": 1}, {"row": 0}]
    assert part.advantages is None
    assert len(part) == 2


def test_a_short_list_of_parts_is_refused():
    with pytest.raises(ValueError, match="2 rewards but 1 values in 'answer'"):
        RewardResult([1.0, 0.0], {"answer": [1.0]})


@pytest.mark.parametrize("value", ["group_norm", "reinforce++", "cpgd"])
def test_flag_values_and_file_names_are_inverse(value):
    assert registry.flag_value(registry.module_name(value)) == value


def test_names_lists_without_importing():
    code = (
        "import sys; from lightrft import registry; print(registry.names('algorithms/losses'));"
        "assert 'torch' not in sys.modules and 'lightrft.algorithms' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'ppo'" in done.stdout


def test_load_built_in():
    module = registry.load("algorithms/advantages", "group_norm", "--advantage_estimator")
    assert module.NEEDS_GROUPS is True


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError, match=r"--policy_loss pppo: unknown; choose from .*ppo"):
        registry.load("algorithms/losses", "pppo", "--policy_loss")


def test_user_files(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def good(): return 1\n")
    assert registry.load("algorithms/losses", f"{path}:good", "--policy_loss")() == 1
    with pytest.raises(ConfigError, match="has no 'bad'; it has good"):
        registry.load_user_object(f"{path}:bad", "--reward")
    with pytest.raises(ConfigError, match="there is no file"):
        registry.load_user_object(f"{tmp_path}/none.py:x", "--reward")
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere_to_be_found\n")
    with pytest.raises(ConfigError, match="ModuleNotFoundError"):
        registry.load_user_object(f"{broken}:x", "--reward")


def test_two_user_files_of_one_name_do_not_shadow_each_other(tmp_path):
    values = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "reward.py"
        path.write_text(f"NAME = {folder!r}\n")
        values.append(registry.load_user_object(f"{path}:NAME", "--reward"))
    assert values == ["a", "b"]
