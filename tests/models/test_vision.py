"""The forward of models with a vision tower: positions, fillers, banned tokens, the frozen tower."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from lightrft.data.batching import collate
from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.errors import ModelError
from lightrft.models.critic import load_critic
from lightrft.models.loading import ModelOptions, load_causal_lm, load_model_config, load_processor
from lightrft.models.multimodal import Filler, freeze_tower, rope_positions, vision_token_ids
from lightrft.models.policy import Policy
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.hf import HFEngine
from lightrft.tools.tiny_vision import FAMILIES, make_random_vlm
from lightrft.types import RewardResult, Rollout

VISION = [261, 262, 264, 265]  # the tiny models' tokens for pictures: start, end, image, video


@pytest.fixture(scope="module", params=FAMILIES)
def seer(request, tmp_path_factory):
    """Folder, model, processor, three prompts: two pictures, one, none."""
    folder = make_random_vlm(tmp_path_factory.mktemp("vlm") / "model", request.param)
    for name, size in (("a", (84, 56)), ("b", (56, 84))):
        noise = Image.effect_noise(size, 80).convert("RGB")
        noise.save(folder.parent / f"{name}.png")
    rows = [
        {"input": "<image>which?<image>", "images": ["a.png", "b.png"]},
        {"input": "<image>", "images": ["b.png"]},
        {"input": "nothing to see here at all"},
    ]
    path = folder.parent / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    processor = VisionProcessor(load_processor(str(folder)))
    options = PromptOptions(apply_chat_template=True, media=MediaOptions(mixed=True))
    model = load_causal_lm(ModelOptions(str(folder), vision=True))
    return folder, model, processor, list(load_prompts(str(path), options, processor))


def policy_of(model, processor):
    fillers = [Filler(*processor.filler("image"))]
    return Policy(model, 1.0, "cpu", vision_token_ids(model.config), fillers)


def batch_of(prompts, processor, response=(70, 71, 72)):
    rollouts = [Rollout(p, 0, list(response), "", "stop") for p in prompts]
    return collate(rollouts, RewardResult([0.0] * len(prompts)), 0, processor.features)


def score(policy, batch, **more):
    return policy(
        batch.input_ids, batch.attention_mask, batch.response_mask, multimodal=batch.multimodal, **more
    )


def test_vision_samples_score_alike_in_any_batch_and_with_given_positions(seer):
    _, model, processor, prompts = seer
    policy, batch = policy_of(model, processor), batch_of(prompts, processor)
    with torch.no_grad():
        whole = score(policy, batch).logprobs
        batch.position_ids = policy.positions(batch)
        for i in range(3):
            part = batch.select([i])
            alone = score(policy, part, position_ids=part.position_ids).logprobs
            torch.testing.assert_close(alone[0], whole[i, : alone.shape[1]], rtol=0, atol=1e-5)
    assert whole[2].abs().sum() > 1


def test_vision_positions_of_prompt_and_response_are_the_models_own(seer):
    _, model, processor, prompts = seer
    batch = batch_of([prompts[0], prompts[0], prompts[1]], processor)
    ours = rope_positions(model, batch.input_ids, batch.attention_mask, batch.multimodal)
    for i in range(3):
        n = int(batch.attention_mask[i].sum())
        row = dict(batch.multimodal[i])
        pad = n - row["mm_token_type_ids"].shape[1]
        row["mm_token_type_ids"] = torch.nn.functional.pad(row["mm_token_type_ids"], (0, pad))
        row.pop("pixel_values")
        own = model.model.get_rope_index(batch.input_ids[i : i + 1, :n], **row)[0]
        assert torch.equal(ours[i, :n].T, own[:, 0])
        assert not ours[i, n:].any()


def test_vision_pictures_matter_and_so_does_their_order(seer):
    _, model, processor, prompts = seer
    policy, batch = policy_of(model, processor), batch_of(prompts[:1], processor)
    with torch.no_grad():
        right = score(policy, batch).logprobs
        pixels = batch.multimodal[0]["pixel_values"]
        batch.multimodal = [{**batch.multimodal[0], "pixel_values": pixels.roll(1, 0)}]
        assert (score(policy, batch).logprobs - right).abs().max() > 1e-4


def test_vision_engine_draws_what_the_policy_scores(seer):
    _, model, processor, prompts = seer
    policy = policy_of(model, processor)
    engine = HFEngine(model, processor.tokenizer, 4, policy.banned_token_ids, False, processor.features)
    rollouts = engine.generate(prompts, SamplingOptions(n=2, max_new_tokens=6, temperature=0.8))
    policy.temperature = 0.8
    batch = collate(rollouts, RewardResult([0.0] * 6), 0, processor.features)
    with torch.no_grad():
        gap = (score(policy, batch).logprobs - batch.rollout_logprobs)[batch.response_mask.bool()]
    assert gap.abs().max() < 1e-4


def test_vision_banned_tokens_are_no_part_of_the_distribution(seer):
    _, model, processor, prompts = seer
    policy = policy_of(model, processor)
    assert policy.banned_token_ids == VISION
    batch = batch_of(prompts[:1], processor, (70,))
    position = len(prompts[0].token_ids)
    total, entropy = 0.0, score(policy, batch, with_entropy=True).entropy
    assert torch.isfinite(entropy).all()
    with torch.no_grad():
        for token in range(model.config.get_text_config().vocab_size):
            if token not in VISION:
                batch.input_ids[0, position] = token
                total += float(score(policy, batch).logprobs[0, position].exp())
    assert total == pytest.approx(1.0, abs=1e-5)


def test_vision_a_batch_of_text_takes_a_filler_and_gives_every_weight_a_gradient(seer):
    _, model, processor, prompts = seer
    text = batch_of(prompts[2:], processor)
    gradients = {}
    for name, policy in (("with", policy_of(model, processor)), ("without", Policy(model))):
        policy.banned_token_ids = VISION
        policy.zero_grad()
        score(policy, text).logprobs.sum().backward()
        gradients[name] = {n: p.grad for n, p in policy.named_parameters()}
    tower = [n for n in gradients["with"] if ".visual." in n]
    assert tower
    assert all(gradients["without"][n] is None for n in tower)
    assert all(gradients["with"][n] is not None and not gradients["with"][n].any() for n in tower)
    for n, gradient in gradients["without"].items():
        if gradient is not None:
            torch.testing.assert_close(gradients["with"][n], gradient, rtol=1e-4, atol=1e-5)


def test_vision_the_critic_sees_the_pictures(seer):
    folder, _, processor, prompts = seer
    critic = load_critic(ModelOptions(str(folder), vision=True), fillers=[Filler(*processor.filler("image"))])
    torch.nn.init.normal_(critic.value_head.weight)
    batch = batch_of(prompts, processor)
    inputs = batch.input_ids, batch.attention_mask, batch.response_mask
    with torch.no_grad():
        values = critic(*inputs, None, batch.multimodal)
        dark = [{k: v * 0 if k == "pixel_values" else v for k, v in row.items()} for row in batch.multimodal]
        changed = (critic(*inputs, None, dark) - values).abs().sum(-1)
    assert changed[:2].min() > 1e-4
    assert changed[2] == 0


def test_vision_freezing_leaves_the_language_model_to_train(seer):
    folder, _, _, _ = seer
    model = load_causal_lm(ModelOptions(str(folder), vision=True))
    count = freeze_tower(model)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters() if n.startswith("model.visual.")}
    assert count == sum(p.numel() for p in model.model.visual.parameters())


def test_vision_a_text_model_is_refused_by_name_and_has_nothing_to_freeze(tiny_model, seer):
    with pytest.raises(ModelError, match="is no vision-language model"):
        load_model_config(str(tiny_model), vision=True)
    with pytest.raises(ModelError, match="takes no images"):
        load_processor(str(tiny_model))
    with pytest.raises(ValueError, match="no vision tower"):
        freeze_tower(load_causal_lm(ModelOptions(str(tiny_model))))


def test_vision_a_processor_class_can_be_named(seer):
    folder, _, _, _ = seer
    named = load_processor(str(folder), kind="Qwen2VLProcessor")
    assert type(named).__name__ == "Qwen2VLProcessor"
    with pytest.raises(
        ModelError, match="--processor Nonsense: no folder, no hub name and no processor class"
    ):
        load_processor(str(folder), kind="Nonsense")


def test_vision_text_after_a_video_begins_behind_its_last_position(tmp_path):
    """By hand: a clip of 3 x 1 x 1 positions, 4 tokens a second, 1 second each: 0, 4, 8; then text at 9."""
    model = load_causal_lm(ModelOptions(str(make_random_vlm(tmp_path / "m")), vision=True))
    types = torch.tensor([[0, 2, 2, 2, 0, 0]])
    ids = torch.tensor([[70, 265, 265, 265, 71, 72]])
    row = {
        "mm_token_type_ids": types,
        "video_grid_thw": torch.tensor([[3, 2, 2]]),
        "second_per_grid_ts": torch.tensor([1.0]),
    }
    positions = rope_positions(model, ids, torch.ones_like(ids), [row])
    assert positions[0].T.tolist() == [[0, 1, 5, 9, 10, 11], [0, 1, 1, 1, 10, 11], [0, 1, 1, 1, 10, 11]]
