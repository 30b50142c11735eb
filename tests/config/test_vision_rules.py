"""Rules of vision-language runs."""

import pytest

from lightrft.config.flags.model import MULTIMODAL
from tests.config.runs import QWEN_7B, QWEN_VL, write_model

VALUES = {"min_pixels": 784, "max_pixels": 7840, "limit_mm_image_per_prompt": 2, "processor": "X"}


@pytest.mark.parametrize("flag", [flag.name for flag in MULTIMODAL.flags])
def test_vision_flags_have_no_effect_on_text_and_say_so(found, flag):
    value = VALUES.get(flag, True if flag in ("mixed_mm_data", "freeze_prefix") else "column")
    message = found(**{flag: value})["multimodal_flags_act"]
    assert message.startswith(f"warning: --{flag} has no effect with train.py")
    assert "multimodal_flags_act" not in found(**{flag: value}, modality="vision")


def test_vision_pixel_limits_fit_each_other(found):
    changes = {"modality": "vision", "min_pixels": 900, "max_pixels": 800}
    assert found(**changes)["pixel_limits_fit"] == (
        "error: min_pixels (900) must be at most max_pixels (800): use --min_pixels 800"
    )
    assert "pixel_limits_fit" not in found(modality="vision", min_pixels=800, max_pixels=800)


def test_vision_critic_and_teacher_must_see(found, tmp_path):
    sees = write_model(tmp_path / "vl", QWEN_VL)
    blind = write_model(tmp_path / "text", QWEN_7B)
    run = {"modality": "vision", "pretrain": sees, "advantage_estimator": "gae"}
    assert "text model (qwen2)" in found(**run, critic_pretrain=blind)["other_models_see"]
    assert "other_models_see" not in found(**run, critic_pretrain=sees)
    distil = run | {"advantage_estimator": "on_policy_distillation"}
    assert (
        "sent token ids and no pictures" in found(**distil, teacher_model_url="http://x")["other_models_see"]
    )
    assert "text model" in found(**distil, teacher_pretrain=blind)["other_models_see"]
