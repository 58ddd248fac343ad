"""The learner's step is exact: the same gradient however the work is cut, and the one the formula says."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.errors import VeriwardError
from tests.trainer.tiny import KINDS, save_tiny, tiny_model
from trainer.algorithm import AlgorithmSettings, OptimizerSettings
from trainer.batch import Batch, Row, build_batch, micro_batches, rollout_row
from trainer.learner import Learner
from trainer.local_policy import LocalPolicy
from trainer.logprobs import _packed_logits, _padded_logits
from trainer.policy import SampleRequest
from trainer.randomness import sample_key
from trainer.records import Group, Rollout, Segment

NO_CLIP = OptimizerSettings(max_grad_norm=1e9, lr=1e-3, warmup_steps=0)
ONE = {"minibatches_per_step": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_tiny(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def ragged_groups():
    """Three groups with unlike lengths; the second group's rollouts call a tool between two sampled stretches."""
    groups = []
    generator = torch.Generator().manual_seed(0)

    def ids(count):
        return torch.randint(0, 250, (count,), generator=generator).tolist()

    def sampled(count):
        logprobs = (torch.rand(count, generator=generator) * -6).tolist()
        return Segment(ids(count), logprobs, [0] * count)

    for number in range(3):
        prompt = Segment(ids(4 + 3 * number))
        rollouts = []
        for sample in range(4):
            segments = [prompt, sampled(1 + (5 * sample + 3 * number) % 11)]
            if number == 1:
                segments += [Segment(ids(3 + sample)), sampled(2 + sample)]
            rollouts.append(Rollout(f"t{number}", 0, sample, segments, "stop", reward=float((sample + number) % 3)))
        groups.append(Group(f"t{number}", 0, rollouts))
    return groups


def gradient(folder, groups, algorithm, dtype=torch.float64, temperature=1.0, max_tokens=8192):
    learner = Learner(folder, algorithm, NO_CLIP, "cpu", dtype, max_tokens)
    learner.step(build_batch(groups, algorithm, temperature))
    return {name: parameter.grad.clone() for name, parameter in learner.model.named_parameters()}


def dense_gradient(kind, groups, algorithm, temperature=1.0):
    """The formula, written again: one rollout at a time through transformers' own forward, in float64."""
    model = tiny_model(kind, dtype=torch.float64)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):  # theirs rounds to float32 inside
            module.forward = lambda x, norm=module: (
                norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
            )
    losses = []  # of each rollout, its tokens' losses
    for group in groups:
        rewards = [rollout.reward for rollout in group.rollouts]
        for rollout in group.rollouts:
            advantage = rollout.reward - sum(rewards) / len(rewards)
            ids = [token for segment in rollout.segments for token in segment.token_ids]
            logprobs = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
            own, place = [], 0
            for segment in rollout.segments:
                for offset, token in enumerate(segment.token_ids):
                    if segment.is_sampled:
                        ratio = (logprobs[place + offset - 1, token] - segment.logprobs[offset]).exp()
                        own.append(-torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
                place += len(segment.token_ids)
            losses.append(torch.stack(own))
    if algorithm.aggregation == "token_mean":
        loss = torch.cat(losses).mean()
    elif algorithm.aggregation == "sequence_mean":
        loss = torch.stack([own.mean() for own in losses]).mean()
    else:
        loss = torch.stack([own.sum() / algorithm.fixed_length_tokens for own in losses]).mean()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same_gradient(found, expected, tolerance):
    assert found.keys() == expected.keys()
    scale = max(float(value.abs().max()) for value in expected.values())
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], atol=tolerance * scale, rtol=0, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "algorithm",
    [
        AlgorithmSettings(**ONE),
        AlgorithmSettings(aggregation="sequence_mean", **ONE),
        AlgorithmSettings(aggregation="fixed_length", fixed_length_tokens=20, **ONE),
    ],
    ids=lambda algorithm: algorithm.aggregation,
)
def test_the_gradient_is_the_formulas(folders, kind, algorithm):
    """Fails when the loss mask is dropped: tool output stands between sampled tokens."""
    found = gradient(folders[kind], ragged_groups(), algorithm, temperature=0.7)
    assert_same_gradient(found, dense_gradient(kind, ragged_groups(), algorithm, 0.7), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_one_or_many_micro_batches_give_the_same_gradient(folders, kind, dtype, tolerance, aggregation):
    """PrimeIntellect-ai/prime-rl#2358, allenai/open-instruct#1161, modelscope/ms-swift#10117: per-part means."""
    algorithm = AlgorithmSettings(aggregation=aggregation, **ONE)
    whole = gradient(folders[kind], ragged_groups(), algorithm, dtype)
    for max_tokens in (1, 40, 100):
        parts = gradient(folders[kind], ragged_groups(), algorithm, dtype, max_tokens=max_tokens)
        assert_same_gradient(parts, whole, tolerance)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_packed_and_padded_rows_have_the_same_logits(kind, data):
    """pytorch/torchtitan#3347: the last token of one packed row predicted the first of the next."""
    model = tiny_model(kind)
    prompts = data.draw(st.lists(st.lists(st.integers(0, 250), min_size=1, max_size=9), min_size=1, max_size=3))
    rows = []
    for _ in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(st.sampled_from(prompts))
        reply = data.draw(st.lists(st.integers(0, 250), min_size=1, max_size=12))
        places = data.draw(st.sets(st.integers(0, len(reply) - 1), min_size=1))
        trained = tuple(sorted(len(prompt) + place for place in places | {0}))
        rows.append(Row((*prompt, *reply), len(prompt), trained, (0.0,) * len(trained), 0.0))
    torch.testing.assert_close(_packed_logits(model, rows), _padded_logits(model, rows), atol=1e-4, rtol=1e-4)


def test_the_order_of_rollouts_does_not_change_the_gradient(folders):
    algorithm = AlgorithmSettings(**ONE)
    turned = [Group(g.task_id, g.visit, g.rollouts[::-1]) for g in reversed(ragged_groups())]
    expected = gradient(folders["qwen3"], ragged_groups(), algorithm)
    assert_same_gradient(gradient(folders["qwen3"], turned, algorithm), expected, 1e-9)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_truncated_tokens_leave_numerator_and_denominator(folders, aggregation):
    """huggingface/trl#6369: a masked truncated rollout changes nothing, as if it had not been there."""
    algorithm = AlgorithmSettings(aggregation=aggregation, mask_truncated=True, **ONE)
    groups = ragged_groups()
    expected = gradient(folders["llama"], groups, algorithm)
    for group in groups:
        cut = dataclasses.replace(group.rollouts[0], finish_reason="length", reward=0.0)
        group.rollouts.append(cut)
    assert_same_gradient(gradient(folders["llama"], groups, algorithm), expected, 1e-12)


def test_unscored_and_aborted_rollouts_are_not_trained():
    groups = ragged_groups()
    groups[0].rollouts[0].reward = None
    groups[0].rollouts[1].finish_reason = "aborted"
    assert [len(rows) for rows in build_batch(groups, AlgorithmSettings()).groups] == [2, 4, 4]


def test_a_rows_trained_tokens_are_its_sampled_ones():
    rollout = Rollout(
        "t", 0, 0, [Segment([1, 2]), Segment([3], [-0.3], [0]), Segment([4, 5]), Segment([6, 7], [-0.6, -0.7], [0, 0])],
        "stop", reward=1.0,
    )  # fmt: skip
    row = rollout_row(rollout, 0.5)
    assert row == Row((1, 2, 3, 4, 5, 6, 7), 2, (2, 5, 6), (-0.3, -0.6, -0.7), 0.5)
    with pytest.raises(ValueError, match="give it a prompt"):
        rollout_row(dataclasses.replace(rollout, segments=rollout.segments[1:]), 0.0)


def test_micro_batches_keep_the_budget_and_every_row():
    rows = build_batch(ragged_groups(), AlgorithmSettings()).rows
    parts = micro_batches(rows, 50)
    assert sum(map(len, parts)) == len(rows)
    assert {id(row) for part in parts for row in part} == {id(row) for row in rows}
    assert all(len(part) == 1 or len(part) * max(len(row.token_ids) for row in part) <= 50 for part in parts)
    assert len(parts) > 1


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
async def test_two_steps_from_sampler_rollouts_begin_with_ratio_one(folders, kind):
    """What was sampled is what is trained: huggingface/trl#5312 never synced its weights, at ratio 0.0186."""
    algorithm = AlgorithmSettings()
    policy = LocalPolicy(folders[kind], device="cpu")
    learner = Learner(folders[kind], algorithm, OptimizerSettings(lr=1e-2), "cpu")
    for version in range(2):
        batch = build_batch(await sampled_groups(policy, version), algorithm)
        metrics = learner.step(batch)
        assert abs(metrics["mismatch_probability_error"] - 1) < 1e-4
        assert metrics["optimizer_steps"] == 2
        assert metrics["sampler_kl"] > metrics["mismatch_k3_mean"]  # the second minibatch is off-policy
        await policy.publish(learner.weights(), version + 1)
    await policy.close()


async def sampled_groups(policy, version):
    prompts = {str(task): (5, 6, 7 + task) for task in range(4)}
    requests = [
        SampleRequest(f"{task}/{sample}", prompt, 12, 1.0, sample_key(version, task, 0, sample))
        for task, prompt in prompts.items()
        for sample in range(4)
    ]
    groups = {task: Group(task, 0, []) for task in prompts}
    async for done in policy.sample(requests):
        task, sample = done.request_id.split("/")
        segments = [Segment(list(prompts[task])), Segment(done.token_ids, done.logprobs, done.policy_versions)]
        reward = float(sum(done.token_ids) % 2)
        groups[task].rollouts.append(Rollout(task, 0, int(sample), segments, done.finish_reason, reward=reward))
    return list(groups.values())


def test_a_step_moves_towards_the_better_rollouts(folders):
    algorithm = AlgorithmSettings()
    learner = Learner(folders["qwen3"], algorithm, OptimizerSettings(lr=1e-3, warmup_steps=0), "cpu")
    batch = on_policy(learner, build_batch(ragged_groups(), algorithm))

    def score():
        rows = zip(batch.rows, learner.logprobs(batch), strict=True)
        return sum(row.advantage * sum(logprobs) for row, logprobs in rows)

    before = score()
    learner.step(batch)
    assert score() > before


def on_policy(learner, batch):
    """The batch as if the learner itself had sampled it."""
    logprobs = iter(learner.logprobs(batch))
    groups = [[dataclasses.replace(row, logprobs=tuple(next(logprobs))) for row in group] for group in batch.groups]
    return Batch(groups, batch.temperature)


def test_learner_and_policy_agree_on_logprobs_in_the_batchs_order(folders):
    algorithm = AlgorithmSettings()
    batch = build_batch(ragged_groups(), algorithm)
    whole = Learner(folders["qwen2"], algorithm, device="cpu").logprobs(batch)
    in_parts = Learner(folders["qwen2"], algorithm, device="cpu", max_tokens_per_micro_batch=30).logprobs(batch)
    for row, one, other in zip(batch.rows, whole, in_parts, strict=True):
        assert len(one) == len(row.trained)
        assert one == pytest.approx(other, abs=1e-4)


def test_groups_are_dealt_to_minibatches_in_order(folders):
    batch = build_batch(ragged_groups(), AlgorithmSettings())
    for minibatches, steps in ((1, 1), (2, 2), (3, 3), (8, 3)):
        algorithm = AlgorithmSettings(minibatches_per_step=minibatches)
        metrics = Learner(folders["llama"], algorithm, device="cpu").step(batch)
        assert (metrics["optimizer_steps"], metrics["trained_tokens"]) == (
            steps,
            sum(len(r.trained) for r in batch.rows),
        )


def test_a_minibatch_whose_rollouts_are_all_alike_makes_no_optimiser_step(folders):
    """AdamW would move by its momentum on the zero gradient."""
    groups = ragged_groups()[:2]
    for rollout in groups[1].rollouts:
        rollout.reward = 1.0
    algorithm = AlgorithmSettings(minibatches_per_step=2)
    learner = Learner(folders["llama"], algorithm, device="cpu")
    assert learner.step(build_batch(groups, algorithm))["optimizer_steps"] == 1
    with pytest.raises(VeriwardError, match="all alike"):
        learner.step(build_batch(groups[1:], algorithm))
    assert learner.optimizer_steps == 1


def test_the_learning_rate_warms_up_and_stays(folders):
    algorithm = AlgorithmSettings(**ONE)
    learner = Learner(folders["llama"], algorithm, OptimizerSettings(lr=1e-3, warmup_steps=3), "cpu")
    batch = build_batch(ragged_groups(), algorithm)
    rates = [learner.step(batch)["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_nothing_moves_when_a_gradient_is_not_finite(folders):
    algorithm = AlgorithmSettings(**ONE)
    learner = Learner(folders["llama"], algorithm, device="cpu")
    batch = build_batch(ragged_groups(), algorithm)
    spoiled = [[dataclasses.replace(row, advantage=float("inf")) for row in group] for group in batch.groups]
    before = {name: value.clone() for name, value in learner.weights()}
    with pytest.raises(VeriwardError, match="did not move"):
        learner.step(Batch(spoiled))
    assert all(torch.equal(value, before[name]) for name, value in learner.weights())
    assert learner.optimizer_steps == 0


def test_a_batch_that_trains_nothing_is_an_error(folders):
    with pytest.raises(VeriwardError, match="trains no token"):
        Learner(folders["llama"], device="cpu").step(Batch([[], []]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_learner_goes_on_bit_for_bit(folders, kind, tmp_path):
    batch = build_batch(ragged_groups(), AlgorithmSettings())
    one = Learner(folders[kind], device="cpu")
    one.step(batch)
    one.save(tmp_path)
    other = Learner(folders[kind], device="cpu")
    other.load(tmp_path)
    assert one.step(batch) == other.step(batch)
    for (name, value), (_, same) in zip(one.weights(), other.weights(), strict=True):
        assert torch.equal(value, same), name


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(folders, tmp_path):
    Learner(folders["qwen2"], device="cpu").save(tmp_path / "qwen2")
    learner = Learner(folders["llama"], device="cpu")
    before = {name: value.clone() for name, value in learner.weights()}
    with pytest.raises(VeriwardError, match="another model"):
        learner.load(tmp_path / "qwen2")
    with pytest.raises(VeriwardError, match="no learner state"):
        learner.load(tmp_path / "absent")
    (tmp_path / "qwen2" / "learner.pt").write_bytes(b"cut")
    with pytest.raises(VeriwardError, match="no learner state"):
        learner.load(tmp_path / "qwen2")
    assert all(torch.equal(value, before[name]) for name, value in learner.weights())
