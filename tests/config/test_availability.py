"""What is not built is refused by name, and nothing that is built is."""

import pytest

from lightrft.config.availability import available_choices, missing_part, refusals
from lightrft.config.flags import FLAGS
from lightrft.registry import names

# A value of each flag that asks for something.
ASKING = {
    "int": 3,
    "float": 0.5,
    "str": "some/thing",
    "flag": True,
    "words": ["a"],
    "numbers": ["0.5", "0.5"],
    "pair": ["0.5", "0.6"],
    "json": '{"a": 1}',
}


def test_the_base_run_asks_for_nothing_that_is_missing(make):
    assert refusals(make()) == []


@pytest.mark.parametrize("name", [f.name for f in FLAGS.values() if f.planned])
def test_a_planned_flag_is_refused_by_name(make, name):
    flag = FLAGS[name]
    text = "\n".join(refusals(make(**{name: ASKING[flag.kind]})))
    assert f"not available yet: --{name}" in text
    assert flag.planned in text


@pytest.mark.parametrize("name", [f.name for f in FLAGS.values() if f.planned and f.off is not None])
def test_a_planned_flag_that_is_turned_off_asks_for_nothing(make, name):
    assert refusals(make(**{name: FLAGS[name].off})) == []


CHOICES = [(f.name, choice) for f in FLAGS.values() for choice in f.choices]


@pytest.mark.parametrize(("name", "choice"), CHOICES)
def test_every_choice_works_or_is_refused_by_name(make, name, choice):
    refused = [text for text in refusals(make(**{name: choice})) if f"--{name} " in text]
    if choice in FLAGS[name].planned_choices:
        (message,) = refused
        assert message.startswith(f"not available yet: --{name} {choice} (")
        for other in available_choices(FLAGS[name]):
            assert str(other) in message.rpartition(": give --")[2]
    elif not missing_part(FLAGS[name]):
        assert refused == []


def test_the_default_engine_is_there(make):
    assert make(engine_type=None).engine_type == "vllm"
    assert refusals(make(engine_type=None)) == []


def test_flags_that_wait_for_a_refused_one_are_named_with_it(make):
    (message,) = refusals(make(lora_rank=8, lora_alpha=16, lora_dropout=0.1))
    assert "; with it --lora_alpha, --lora_dropout)" in message
    (message,) = refusals(make(fsdp=True, fsdp_cpu_offload=True))
    assert message == "not available yet: --fsdp (the FSDP backend; with it --fsdp_cpu_offload)"


def test_a_derived_reward_is_refused_with_its_reason(make):
    (message,) = refusals(make(remote_rm_url="http://host:5000"))
    assert message.startswith("not available yet: --reward remote, because remote_rm_url is given (remote")
    assert message.endswith("give --reward gsm8k, math, exact_match, format, geo3k, multiple_choice or model")


def test_components_of_your_own_are_available(make):
    assert refusals(make(advantage_estimator="a.py:Mine", policy_loss="a.py:mine")) == []
    assert refusals(make(reward="a.py:score:0.5")) == []


def test_arguments_of_the_engine_are_no_choices(make):
    assert refusals(make(engine_type="vllm", engine_kwargs='{"enforce_eager": true}')) == []


def test_plots_are_refused_only_when_asked_for(make):
    assert refusals(make()) == []
    assert refusals(make(plot_every=10)) == [
        "not available yet: --plot_every 10 (plots of generation lengths)"
    ]


def test_vision_runs(make):
    assert refusals(make(modality="vision", images_key="image", freeze_prefix=True)) == []


@pytest.mark.parametrize(
    ("flag", "package"),
    [
        ("advantage_estimator", "algorithms/advantages"),
        ("policy_loss", "algorithms/losses"),
        ("reward", "rewards/rules"),
    ],
)
def test_available_choices_are_the_files_that_exist(flag, package):
    built = sorted([*names(package), *["model"] * (flag == "reward")])
    assert sorted(available_choices(FLAGS[flag])) == built


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("max_len", ""),
        ("adam_offload", ""),  # acts without --fsdp
        ("kl_estimator", ""),  # acts with a KL coefficient
        ("lora_alpha", "LoRA adapters"),
        ("engine_mem_util", ""),
        ("critic_learning_rate", ""),
        ("rm_engine_cudagraph", "reward models on an engine"),  # through --rm_use_engine
    ],
)
def test_what_a_flag_waits_for(name, part):
    assert missing_part(FLAGS[name]) == part
