"""The place of a process, from what each launcher leaves in the environment."""

import pytest

from lightrft.config.world import World, expand_task_counts, first_host, free_port, read_world
from lightrft.errors import ConfigError

RANK_1_OF_2 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_alone():
    assert read_world({}) == World()
    assert World().environment()["WORLD_SIZE"] == "1"
    assert int(World().environment()["MASTER_PORT"]) > 0


def test_torchrun():
    environ = RANK_1_OF_2 | {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert read_world(environ) == World(2, 1, 1, 2, "torchrun", "n0", 29500)


def test_deepspeed_names_the_local_size_differently():
    environ = RANK_1_OF_2 | {"LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    assert read_world(environ) == World(2, 1, 1, 2, "deepspeed", "n0", 29500)


def test_the_environment_is_what_the_launcher_gave():
    environ = RANK_1_OF_2 | {"LOCAL_WORLD_SIZE": "2"}
    assert read_world(environ).environment() == environ


def test_a_cluster_that_numbers_its_nodes_started_no_process():
    assert read_world({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}) == World()


def test_srun_over_two_uneven_nodes():
    world = read_world(SRUN)
    assert (world.size, world.rank, world.local_rank, world.local_size) == (7, 5, 1, 3)
    assert (world.launcher, world.master_addr) == ("srun", "gpu07")


def test_all_tasks_of_a_step_agree_on_a_port_and_two_steps_differ():
    ports = {read_world(SRUN | {"SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}).master_port for i in range(7)}
    assert len(ports) == 1
    assert read_world(SRUN | {"SLURM_STEP_ID": "1"}).master_port not in ports
    assert read_world(SRUN | {"MASTER_PORT": "12345"}).master_port == 12345


def test_the_shell_of_an_sbatch_script_is_no_task():
    batch = {k: v for k, v in SRUN.items() if not k.startswith("SLURM_STEP")} | {"SLURM_PROCID": "0"}
    assert read_world(batch) == World()


def test_variables_that_are_no_numbers_are_named():
    with pytest.raises(ConfigError, match="WORLD_SIZE='two' in the environment is not a whole number"):
        read_world(RANK_1_OF_2 | {"WORLD_SIZE": "two"})


def test_a_rank_outside_its_world_is_refused():
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        read_world(RANK_1_OF_2 | {"RANK": "2"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[07-09,12],login", "gpu07"),
        ("gpu[3,5]", "gpu3"),
        ("rack1-n2", "rack1-n2"),
        ("a[1-2]b[05,7]", "a1b05"),
        ("cn-[0010-0020]", "cn-0010"),
    ],
)
def test_first_host_of_a_node_list(nodelist, host):
    assert first_host(nodelist) == host


def test_task_counts():
    assert expand_task_counts("4(x2),1") == [4, 4, 1]
    with pytest.raises(ConfigError, match="tasks per node"):
        expand_task_counts("four")


def test_a_free_port_can_be_bound():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", free_port()))
        assert s.getsockname()[1] > 0
