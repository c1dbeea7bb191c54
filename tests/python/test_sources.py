"""Opening models: every tensor under its canonical name, every fact the runtime needs, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from acespec_edge import model_registry, models
from acespec_edge.errors import UsageError
from acespec_edge.export.architecture import Llama3Scaling, Source
from acespec_edge.export.sources import open_source
from acespec_edge.vocabulary import Vocabulary
from tests.python.model_kit import (
    SIZES,
    random_model,
    random_tensors,
    save_folder,
    shape_fields,
    tokenizer_fields,
    write_gguf,
)
from tests.python.tokenizer_kit import byte_level_json

ARCHITECTURES = ("llama", "qwen2", "qwen3")
BYTES = Vocabulary.from_tokenizer_json(byte_level_json())

OUTSIDE = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
LAYER = {
    "attn_norm": "input_layernorm.weight", "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight", "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias", "v_bias": "self_attn.v_proj.bias", "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
}  # fmt: skip


def assert_same_weights(source: Source, model: PreTrainedModel, *, tied: bool = False) -> None:
    """Every tensor of `model` is in `source`, equal, and nothing that the model lacks is."""
    theirs = {name: values.float().numpy() for name, values in model.state_dict().items()}
    names = dict(OUTSIDE)
    for layer in range(SIZES["num_hidden_layers"]):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{name}" for ours, name in LAYER.items()}
    for ours, name in names.items():
        if name not in theirs or (tied and ours == "head"):
            with pytest.raises(UsageError, match="no tensor"):
                source.tensor(ours)
            continue
        values = source.tensor(ours)
        assert values.dtype == np.float32 and values.flags.c_contiguous
        np.testing.assert_array_equal(values, theirs.pop(name), err_msg=ours)
    assert not theirs.keys() - ({OUTSIDE["head"]} if tied else set())


def test_both_kinds_are_sources(tmp_path: Path) -> None:
    assert isinstance(open_source(save_folder(random_model("llama"), tmp_path / "folder")), Source)
    fields = shape_fields("llama") | tokenizer_fields()
    assert isinstance(open_source(write_gguf(tmp_path / "m.gguf", fields, random_tensors("llama"))), Source)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_folder_weights(tmp_path: Path, architecture: str, tied: bool) -> None:
    model = random_model(architecture, tied=tied)
    source = open_source(save_folder(model, tmp_path))
    assert_same_weights(source, model, tied=tied)
    spec = source.spec
    assert (spec.architecture, spec.tied_head, spec.layers, spec.hidden) == (architecture, tied, 2, 64)
    assert (spec.heads, spec.kv_heads, spec.intermediate, spec.max_positions) == (4, 2, 96, 128)
    assert spec.head_dim == model.config.to_dict().get("head_dim", 16)
    assert (spec.vocabulary, spec.logits_width) == (BYTES.size, 352)
    assert (spec.qkv_bias, spec.qk_norm) == (architecture == "qwen2", architecture == "qwen3")
    assert (spec.rope_theta, spec.rms_eps, spec.rope_scaling) == (10000.0, 1e-5, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_folders_in_shards(tmp_path: Path, dtype: torch.dtype) -> None:
    model = random_model("qwen2", dtype=dtype)
    save_folder(model, tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_weights(open_source(tmp_path), model)


def test_folder_facts(tmp_path: Path) -> None:
    folder = save_folder(random_model("llama", bos_token_id=5), tmp_path / "my-model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0 # as upstream\n---\n# Model\n")
    source = open_source(str(folder))
    special = BYTES.id_of("<|end|>")
    assert (source.name, source.licence, source.origin) == ("my-model", "apache-2.0", str(folder))
    assert source.chat_template == "{{ messages }}"
    assert source.bos_id is None  # the tokenizer's own word
    assert source.eos_ids[:3] == [special, 3, 4]
    assert Vocabulary.from_tokenizer_json(source.tokenizer_json).fingerprint == BYTES.fingerprint
    (folder / "chat_template.jinja").write_text("other")
    (folder / "tokenizer_config.json").unlink()
    source = open_source(folder)
    assert (source.chat_template, source.bos_id) == ("other", 5)


def test_a_folder_below_the_home_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(random_model("llama"), tmp_path / "my-model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_source("~/my-model").origin == str(folder)


def test_old_and_new_ways_to_write_rotary_scaling(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    expected = Llama3Scaling(8.0, 1.0, 4.0, 64)
    new = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    spec = open_source(save_folder(random_model("llama"), tmp_path / "new", rope_parameters=new)).spec
    assert (spec.rope_theta, spec.rope_scaling) == (500000.0, expected)
    old = {
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", **scaling},
        "rope_parameters": None,
    }
    spec = open_source(save_folder(random_model("llama"), tmp_path / "old", **old)).spec
    assert (spec.rope_theta, spec.rope_scaling) == (500000.0, expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model_type": "mamba"},
            "model_type 'mamba' is not supported; it must be one of llama, qwen2, qwen3",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' is supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"the checkpoint is quantised \(gptq\)"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, "rope scaling 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope scaling 'llama3' lacks 'factor'"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two', it must be a number above 0"),
        ({"num_hidden_layers": 1}, r"tensor model.layers.1.\S+ has no place"),
        ({"num_key_value_heads": 3}, "kv_heads: 3 must divide heads"),
    ],
)
def test_a_folder_that_cannot_be_reproduced_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        open_source(save_folder(random_model("llama"), tmp_path, **changes))


def test_sliding_windows_and_output_biases_are_refused(tmp_path: Path) -> None:
    folder = save_folder(random_model("qwen2"), tmp_path / "window", use_sliding_window=True)
    with pytest.raises(UsageError, match="use_sliding_window is True; only False"):
        open_source(folder)
    with pytest.raises(UsageError, match=r"o_proj.bias has no place in a plain llama decoder"):
        open_source(save_folder(random_model("llama", attention_bias=True), tmp_path / "bias"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "there is no config.json, so this is not a model folder"),
        ("tokenizer.json", "there is no tokenizer.json. Save a fast tokenizer"),
        ("model.safetensors", r"no \*.safetensors weights; pickled"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, words: str) -> None:
    (save_folder(random_model("llama"), tmp_path) / name).unlink()
    with pytest.raises(UsageError, match=words):
        open_source(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_cut_off_safetensors_are_refused(tmp_path: Path, keep: int) -> None:
    file = save_folder(random_model("llama"), tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"model\.safetensors: not a complete safetensors file"):
        open_source(tmp_path)


def test_quantised_safetensors_are_refused(tmp_path: Path) -> None:
    file = save_folder(random_model("llama"), tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = np.ones(64, np.int8)
    save_file(tensors, file)
    with pytest.raises(
        UsageError, match=r"tensor model.norm.weight has type I8; F64, F32, F16, BF16 are supported"
    ):
        open_source(tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gguf_weights_are_those_that_transformers_loads(tmp_path: Path, architecture: str) -> None:
    """The independent reader undoes the row order of llama files by itself."""
    head_dim = 32 if architecture == "qwen3" else 16
    explicit = {"attention.key_length": head_dim, "attention.value_length": head_dim}
    fields = shape_fields(architecture, **explicit) | tokenizer_fields(padding=20)
    path = write_gguf(tmp_path / "m.gguf", fields, random_tensors(architecture, head_dim=head_dim))
    loaded = random_model(architecture, head_dim=head_dim)
    loaded.load_state_dict(load_gguf_checkpoint(str(path), True, loaded)["tensors"])
    source = open_source(path)
    assert_same_weights(source, loaded)
    assert (source.spec.head_dim, source.spec.vocabulary, source.spec.logits_width) == (
        head_dim,
        BYTES.size,
        352,
    )
    assert (source.spec.qkv_bias, source.spec.qk_norm) == (architecture == "qwen2", architecture == "qwen3")


def test_gguf_facts(tmp_path: Path) -> None:
    extra = {"general.license": "mit", "tokenizer.chat_template": "{{ messages }}"}
    fields = shape_fields("llama", **{"attention.head_count_kv": None}) | tokenizer_fields() | extra
    tensors = random_tensors("llama", tied=True)
    for layer in range(2):
        for name in ("attn_k", "attn_v"):
            tensors[f"blk.{layer}.{name}.weight"] = tensors[f"blk.{layer}.attn_q.weight"]
    tensors["rope_freqs.weight"] = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", fields, tensors)
    source = open_source(path)
    assert (source.name, source.licence, source.origin) == ("Tiny", "mit", str(path))
    assert source.chat_template == "{{ messages }}"
    assert (source.spec.kv_heads, source.spec.tied_head) == (4, True)
    assert source.spec.rope_factors == tuple(range(1, 9))
    with pytest.raises(UsageError, match="no tensor for 'head'"):
        source.tensor("head")


@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
def test_a_tied_table_that_a_gguf_file_holds_twice_is_taken_once(noise: float, tmp_path: Path) -> None:
    tensors = random_tensors("llama")
    head = tensors["output.weight"]
    error = np.random.default_rng(3).standard_normal(head.shape).astype(np.float32) * head.std()
    tensors["token_embd.weight"] = head + np.float32(noise) * error
    path = write_gguf(tmp_path / "m.gguf", shape_fields("llama") | tokenizer_fields(), tensors)
    source = open_source(path)
    assert source.spec.tied_head == (noise < 1)
    table = head if noise < 1 else tensors["token_embd.weight"]
    np.testing.assert_array_equal(source.tensor("embed"), table)


def test_quantised_gguf_tensors_are_dequantised(tmp_path: Path) -> None:
    tensors = random_tensors("qwen2")
    kinds = {
        "token_embd.weight": gguf.GGMLQuantizationType.Q8_0,
        "output.weight": gguf.GGMLQuantizationType.Q4_1,
        "blk.0.ffn_up.weight": gguf.GGMLQuantizationType.BF16,
    }
    tensors["blk.1.ffn_up.weight"] = tensors["blk.1.ffn_up.weight"].astype(np.float16)
    source = open_source(
        write_gguf(tmp_path / "m.gguf", shape_fields("qwen2") | tokenizer_fields(), tensors, kinds)
    )
    for ours, (name, kind) in zip(("embed", "head", "layers.0.up"), kinds.items(), strict=True):
        expected = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], kind), kind)
        np.testing.assert_array_equal(source.tensor(ours), expected)
    np.testing.assert_array_equal(
        source.tensor("layers.1.up"), tensors["blk.1.ffn_up.weight"].astype(np.float32)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"general.architecture": "gemma"},
            "architecture 'gemma' is not supported; it must be one of llama, qwen2",
        ),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'; only 'none' is supported"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8; only 0 is supported"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length is 8; only 16 is supported"),
        (
            {"llama.attention.head_count_kv": [2, 4]},
            r"head_count_kv is \[2, 4\], it must be one number above 0",
        ),
        ({"llama.block_count": 1}, r"tensor blk.1.\S+ has no place in a plain llama decoder"),
    ],
)
def test_a_gguf_that_cannot_be_reproduced_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    fields = shape_fields("llama") | tokenizer_fields() | changes
    with pytest.raises(UsageError, match=words):
        open_source(write_gguf(tmp_path / "m.gguf", fields, random_tensors("llama")))


def test_an_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    tensors: dict[str, Any] = random_tensors("llama")
    tensors["output_norm.weight"] = np.ones(64, np.int8)
    with pytest.raises(UsageError, match="tensor type I8 is not supported"):
        open_source(write_gguf(tmp_path / "m.gguf", shape_fields("llama") | tokenizer_fields(), tensors))


def test_damaged_gguf_files_are_refused_wherever_they_end(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", shape_fields("llama") | tokenizer_fields(), random_tensors("llama")
    )
    whole = path.read_bytes()
    for keep in (0, 3, 4, 8, 23, *range(24, len(whole), len(whole) // 60), len(whole) - 100):
        path.write_bytes(whole[:keep])
        with pytest.raises(UsageError, match=r"m\.gguf"):
            open_source(path)
    path.write_bytes(b"XXXX" + whole[4:])
    with pytest.raises(UsageError, match="not a GGUF file"):
        open_source(path)
    path.write_bytes(whole[:4] + b"\x01" + whole[5:])
    with pytest.raises(UsageError, match="GGUF version 1 is not supported"):
        open_source(path)


def test_a_registry_name_carries_its_title_licence_and_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", shape_fields("llama") | tokenizer_fields(), random_tensors("llama")
    )
    monkeypatch.setattr(models, "pull", lambda name, progress=None: path)
    source = open_source("smollm2-135m")
    assert (source.name, source.licence) == ("SmolLM2-135M-Instruct", "Apache-2.0")
    assert source.origin == f"smollm2-135m, sha256 {model_registry.MODELS['smollm2-135m'].sha256}"


def test_a_hub_id_carries_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(random_model("llama"), tmp_path / "0123abc")
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **options: asked.update(options) or str(folder)
    )
    source = open_source("someone/tiny-model")
    assert (source.name, source.origin) == ("tiny-model", "someone/tiny-model, revision 0123abc")
    assert not any(pattern.endswith((".bin", ".pt", ".pkl")) for pattern in asked["allow_patterns"])
