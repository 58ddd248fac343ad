"""What every policy promises, held against the local one."""

from __future__ import annotations

import asyncio

import pytest
import torch

from sandbox.errors import VeriwardError
from tests.trainer.tiny import save_tiny, tiny_model
from trainer.local_policy import LocalPolicy
from trainer.policy import SampleRequest
from trainer.randomness import sample_key


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny("qwen3", tmp_path_factory.mktemp("model"))


@pytest.fixture
async def policy(folder):
    policy = LocalPolicy(folder, device="cpu")
    policy_stops = policy._sampler._is_stop
    policy_stops[:] = False  # random weights stop by chance; these tests choose their own lengths
    yield policy
    await policy.close()


def request(name, max_tokens=8, prefix=(1, 2, 3)):
    return SampleRequest(name, prefix, max_tokens, 1.0, sample_key(0, name, 0, 0))


async def collect(policy, requests):
    return {sample.request_id: sample async for sample in policy.sample(requests)}


def other_weights(kind="qwen3"):
    return list(tiny_model(kind, seed=1).named_parameters())


async def test_every_request_is_answered_once_as_it_finishes(policy):
    order = [sample.request_id async for sample in policy.sample([request("long", 30), request("short", 2)])]
    assert order == ["short", "long"]


async def test_calls_at_the_same_time_are_kept_apart(policy):
    one, two = await asyncio.gather(collect(policy, [request("a"), request("b")]), collect(policy, [request("c")]))
    assert (set(one), set(two)) == ({"a", "b"}, {"c"})


async def test_the_event_loop_stays_live_while_sampling(policy):
    turns = 0
    sampling = asyncio.ensure_future(collect(policy, [request("x", 40)]))
    while not sampling.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10


async def test_published_weights_are_the_ones_sampled_and_scored_from(policy):
    await policy.publish(other_weights(), 7)
    assert policy.policy_version == 7
    sample = (await collect(policy, [request("x", 20)]))["x"]
    assert sample.policy_versions == [7] * 20
    ids = torch.tensor([[1, 2, 3, *sample.token_ids]])
    logprobs = tiny_model("qwen3", seed=1)(ids).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected[2:], atol=1e-4, rtol=0)
    (scored,) = await policy.logprobs([ids[0].tolist()])
    torch.testing.assert_close(torch.tensor(scored), expected, atol=1e-4, rtol=0)


async def test_published_tensors_are_copied(policy):
    weights = other_weights()
    await policy.publish(weights, 1)
    before = await policy.logprobs([[1, 2, 3, 4]])
    with torch.no_grad():
        for _, value in weights:
            value.zero_()
    assert await policy.logprobs([[1, 2, 3, 4]]) == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda weights: weights[1:],
        lambda weights: [*weights, ("model.extra", torch.zeros(1))],
        lambda weights: [
            (name, value[:-1] if name.endswith("mlp.down_proj.weight") else value) for name, value in weights
        ],
        lambda weights: [],
    ],
)
async def test_weights_that_do_not_fit_change_nothing(policy, spoil):
    before = await policy.logprobs([[1, 2, 3, 4]])
    with pytest.raises(ValueError, match="publish"):
        await policy.publish(spoil(other_weights()), 1)
    assert policy.policy_version == 0
    assert await policy.logprobs([[1, 2, 3, 4]]) == before


async def test_tied_weights_may_come_under_both_names(policy):
    weights = list(tiny_model("qwen3", seed=1).named_parameters(remove_duplicate=False))
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= {name for name, _ in weights}
    await policy.publish(weights, 1)
    assert policy.policy_version == 1


async def test_weights_published_in_flight_show_in_the_versions(policy):
    """Nobody waits for the row to end: its first tokens are of version 0, its last of version 1."""
    sampling = asyncio.ensure_future(collect(policy, [request("x", 240)]))
    while (await policy.health())["requests_in_flight"] == 0:
        await asyncio.sleep(0)
    await policy.pause()
    await policy.publish(other_weights(), 1)
    await policy.resume()
    versions = (await sampling)["x"].policy_versions
    assert versions == sorted(versions)
    assert versions[-1] == 1


async def test_a_paused_policy_samples_nothing_until_it_is_resumed(policy):
    await policy.pause()
    assert (await policy.health())["is_paused"]
    sampling = asyncio.ensure_future(collect(policy, [request("x")]))
    while (await policy.health())["requests_in_flight"] == 0:
        await asyncio.sleep(0)
    await policy.publish(other_weights(), 1)  # the worker answers, so it has had its chance to sample
    await policy.logprobs([[1, 2]])
    assert not sampling.done()
    await policy.resume()
    assert (await sampling)["x"].policy_versions == [1] * 8


async def test_an_aborted_request_ends_with_what_it_has(policy):
    await policy.pause()
    sampling = asyncio.ensure_future(collect(policy, [request("x", 50), request("y", 5)]))
    while (await policy.health())["requests_in_flight"] < 2:
        await asyncio.sleep(0)
    await policy.abort(["x", "unknown"])
    await policy.resume()
    done = await sampling
    assert done["x"].finish_reason == "aborted"
    assert len(done["x"].token_ids) < 50
    assert (done["y"].finish_reason, len(done["y"].token_ids)) == ("length", 5)
    assert (await policy.health())["requests_in_flight"] == 0


async def test_leaving_the_iteration_early_frees_its_requests(policy):
    samples = policy.sample([request("short", 1), request("long", 240)])
    assert (await anext(samples)).request_id == "short"
    await samples.aclose()
    await collect(policy, [request("next", 1)])
    assert (await policy.health())["requests_in_flight"] == 0


async def test_a_request_id_in_flight_cannot_be_used_twice(policy):
    with pytest.raises(VeriwardError, match="same request_id"):
        await collect(policy, [request("x"), request("x")])
    assert set(await collect(policy, [request("x")])) == {"x"}


async def test_closing_tells_whoever_waits(folder):
    policy = LocalPolicy(folder, device="cpu")
    await policy.pause()
    sampling = asyncio.ensure_future(collect(policy, [request("x")]))
    while (await policy.health())["requests_in_flight"] == 0:
        await asyncio.sleep(0)
    await policy.close()
    with pytest.raises(VeriwardError, match="closed"):
        await sampling
    with pytest.raises(VeriwardError, match="closed"):
        await policy.logprobs([[1, 2]])
    assert not (await policy.health())["is_alive"]


async def test_a_failure_while_sampling_reaches_the_caller_and_the_next_call_works(policy, monkeypatch):
    def broken(_tokens):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(policy._sampler._decoder, "step", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        await collect(policy, [request("x")])
    monkeypatch.undo()
    assert set(await collect(policy, [request("x")])) == {"x"}


async def test_a_publish_whose_caller_gave_up_harms_nobody_else(policy):
    """The worker once answered a cancelled future, and every request in flight failed with that error."""
    await policy.pause()
    sampling = asyncio.ensure_future(collect(policy, [request("x", 20)]))
    while (await policy.health())["requests_in_flight"] == 0:
        await asyncio.sleep(0)
    policy._wakes.acquire()  # the worker cannot take the command before it is cancelled
    publishing = asyncio.ensure_future(policy.publish(other_weights(), 1))
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.sleep(0)
    policy._wakes.release()
    await policy.resume()
    assert (await sampling)["x"].policy_versions == [0] * 20
    assert publishing.cancelled()
