"""Samples are what the model says they are: their log-probs, their stops, their independence."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.errors import VeriwardError
from tests.trainer.tiny import KINDS, VOCABULARY, save_tiny, tiny_model
from trainer.decoder import CacheDecoder, FusedDecoder, decoder_for
from trainer.model import load_model, render_prompt
from trainer.policy import SampleRequest
from trainer.randomness import sample_key
from trainer.sampler import Sampler, draw

STOPS = (257, 259)


def requests_of(lengths, max_tokens=20, temperature=1.0):
    return [
        SampleRequest(
            str(number), tuple((7 * place) % 250 for place in range(length)), max_tokens, temperature,
            sample_key(0, "t", 0, number),
        )
        for number, length in enumerate(lengths)
    ]  # fmt: skip


def sampled(model, requests, stops=STOPS, **options):
    return {sample.request_id: sample for sample in Sampler(model, stops, **options).sample(requests)}


@torch.no_grad()
def full_forward_logprobs(model, request, sample):
    ids = torch.tensor([[*request.prefix_ids, *sample.token_ids]])
    logprobs = (model(ids).logits[0].float() / (request.temperature or 1.0)).log_softmax(-1)
    start = len(request.prefix_ids)
    return logprobs[start - 1 : -1].gather(-1, ids[0, start:, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_agree_with_a_full_forward(kind, temperature):
    model = tiny_model(kind)
    requests = requests_of([3, 9, 3, 17, 1, 9, 9], 40, temperature)
    for name, sample in sampled(model, requests).items():
        expected = full_forward_logprobs(model, requests[int(name)], sample)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kind):
    """Alone, in waves of two, and all together: the same tokens."""
    model = tiny_model(kind)
    requests = requests_of([3, 9, 3, 17, 1, 9], 12)
    together = sampled(model, requests)
    in_pairs = sampled(model, requests, max_rows=2)
    for request in requests:
        alone = sampled(model, [request])[request.request_id]
        assert alone.token_ids == together[request.request_id].token_ids == in_pairs[request.request_id].token_ids


def test_samples_of_a_group_differ_and_repeat_with_their_keys():
    """A fixed seed duplicated over a group makes it identical (vllm-project/vllm#11898)."""
    model = tiny_model("qwen3")
    prefix = tuple(range(5))
    group = [SampleRequest(str(n), prefix, 10, 1.0, sample_key(0, "t", 0, n)) for n in range(8)]
    first, second = sampled(model, group), sampled(model, group)
    assert len({tuple(sample.token_ids) for sample in first.values()}) == 8
    assert first == second


def test_a_completion_continued_from_its_prefix_goes_on_as_it_would_have():
    model = tiny_model("llama")
    (whole,) = sampled(model, requests_of([6], 16), stops=()).values()
    request = requests_of([6], 16)[0]
    resumed = SampleRequest("0", request.prefix_ids + tuple(whole.token_ids[:7]), 9, 1.0, request.key)
    assert sampled(model, [resumed], stops=())["0"].token_ids == whole.token_ids[7:]


def test_greedy_takes_the_likeliest_token():
    model = tiny_model("qwen2")
    (sample,) = sampled(model, requests_of([4], 10, 0.0)).values()
    ids = torch.tensor([[*requests_of([4])[0].prefix_ids, *sample.token_ids]])
    assert model(ids).logits[0, 3:-1].argmax(-1).tolist() == sample.token_ids


def test_any_stop_token_ends_a_row_and_is_part_of_it():
    """huggingface/trl#7039: only one of several EOS ids was honoured."""
    model = tiny_model("llama")
    stops = tuple(range(0, 200, 2))
    ended = sampled(model, requests_of([5] * 12, 30), stops=stops)
    for sample in ended.values():
        assert sample.finish_reason == "stop"
        assert sample.token_ids[-1] in stops
        assert not set(sample.token_ids[:-1]) & set(stops)
    assert len({sample.token_ids[-1] for sample in ended.values()}) > 1


def test_every_row_has_its_own_limit():
    requests = [
        SampleRequest(str(limit), (1, 2, 3), limit, 1.0, sample_key(0, "t", 0, limit)) for limit in (1, 2, 7, 30)
    ]
    done = sampled(tiny_model("qwen3"), requests, stops=())
    assert {name: len(sample.token_ids) for name, sample in done.items()} == {"1": 1, "2": 2, "7": 7, "30": 30}
    assert {sample.finish_reason for sample in done.values()} == {"length"}


def test_the_cache_grows_beyond_its_first_allocation(monkeypatch):
    monkeypatch.setattr("trainer.decoder._GROWTH_COLUMNS", 4)
    model = tiny_model("qwen3")
    requests = requests_of([3, 8], 40)
    for name, sample in sampled(model, requests, stops=()).items():
        expected = full_forward_logprobs(model, requests[int(name)], sample)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def test_the_llama_family_is_fused_and_the_rest_is_not():
    assert [type(decoder_for(tiny_model(kind))) for kind in KINDS] == [FusedDecoder] * 3 + [CacheDecoder]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_fused_and_generic_decoders_agree(kind):
    model = tiny_model(kind)
    logits = []
    for decoder in (FusedDecoder(model), CacheDecoder(model)):
        first = decoder.start([(1, 2, 3), (4,)], [0, 1, 0, 1], 3)
        second = decoder.step(torch.tensor([5, 6, 7, 8]))
        decoder.keep(torch.tensor([0, 3]))
        logits.append((first, second, decoder.step(torch.tensor([9, 10]))))
    for fused, generic in zip(*logits, strict=True):
        torch.testing.assert_close(fused, generic, atol=1e-4, rtol=1e-4)


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, float("-inf")]]).expand(20000, 4)
    middle_of_each_slice = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    tokens, logprobs = draw(logits, torch.full((20000,), 0.5), middle_of_each_slice)
    expected = (logits[0] / 0.5).softmax(-1)
    assert (torch.bincount(tokens, minlength=4) / 20000).tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    torch.testing.assert_close(logprobs, expected.log()[tokens])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-53]))
def test_a_token_of_probability_zero_is_never_drawn(values, uniform):
    logits = torch.tensor([[float("-inf"), *values, float("-inf")]])
    token, logprob = draw(logits, torch.ones(1), torch.tensor([uniform], dtype=torch.float64))
    assert 1 <= token.item() <= len(values)
    assert torch.isfinite(logprob).all()


def test_a_request_that_does_not_fit_is_refused_before_sampling():
    sampler = Sampler(tiny_model("gpt2"), STOPS)
    with pytest.raises(VeriwardError, match="256 positions"):
        next(sampler.sample(requests_of([10, 250])))
    with pytest.raises(VeriwardError, match="temperature >= 0"):
        next(sampler.sample(requests_of([10], temperature=-1)))
    with pytest.raises(VeriwardError, match="give a prefix"):
        next(sampler.sample(requests_of([0])))
    with pytest.raises(VeriwardError, match="token 260 is beyond the model's 260 embeddings"):
        next(sampler.sample([SampleRequest("x", (1, 260), 2, 1.0, 0)]))


def test_weights_that_became_nan_are_an_error_not_a_sample():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(VeriwardError, match="not finite"):
        list(Sampler(model, STOPS).sample(requests_of([3, 5])))


def test_stop_tokens_come_from_the_config_and_the_chat_template(tmp_path):
    """The tiny tokenizer's EOS is <|end|> (257); only its chat template knows <|im_end|> (259)."""
    loaded = load_model(save_tiny("qwen3", tmp_path))
    assert loaded.stop_ids == STOPS
    loaded.model.generation_config.eos_token_id = [3, 257]
    prompt = render_prompt(loaded.tokenizer, [{"role": "user", "content": "hi"}])
    assert loaded.tokenizer.decode(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path):
    with pytest.raises(VeriwardError, match="no model at"):
        load_model(tmp_path / "absent")
    folder = save_tiny("llama", tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(VeriwardError, match="no chat template"):
        load_model(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"LlamaForCausalLM"', '"LlamaForSequenceClassification"'))
    with pytest.raises(VeriwardError, match="not a causal language model"):
        load_model(folder)


def test_cut_off_weights_are_refused(tmp_path):
    folder = save_tiny("llama", tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(VeriwardError, match="cannot be loaded"):
        load_model(folder)


def test_vocabulary_of_the_tiny_models_covers_their_tokenizer(tmp_path):
    assert len(load_model(save_tiny("gpt2", tmp_path)).tokenizer) == VOCABULARY


def changed(**keys):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return change


def template(text):
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (changed(vocab_size=100), "other shapes than its config.json says"),
        (changed(num_hidden_layers=3), "lacks weights"),
        (changed(model_type="gpt2", architectures=["GPT2LMHeadModel"]), "lacks weights"),
        (changed(num_attention_heads=0), "config.json .* cannot be read"),
        (changed(num_attention_heads=3), "config.json .* multiple of the number of attention heads"),
        (changed(hidden_size="x"), "config.json .* cannot be read"),
        (changed(model_type="mine", auto_map={"AutoConfig": "mine.Mine"}), "config.json .* custom code"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model": {}}'), "no tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (template("{% for %}"), "chat template fails .* TemplateSyntaxError"),
        (template("{{ raise_exception('no such role') }}"), "chat template fails .* no such role"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_one_line(spoil, words, tmp_path, capfd):
    spoil(save_tiny("llama", tmp_path))
    capfd.readouterr()
    with pytest.raises(VeriwardError, match=words) as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_a_template_that_renders_nothing_is_said_so(tmp_path):
    folder = save_tiny("llama", tmp_path)
    template("{# nothing #}")(folder)
    with pytest.raises(VeriwardError, match="renders a conversation to nothing"):
        render_prompt(load_model(folder).tokenizer, [{"role": "user", "content": "?"}])
