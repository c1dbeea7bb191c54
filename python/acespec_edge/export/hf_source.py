"""A model in a folder, as Hugging Face transformers saves them: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError
from acespec_edge.export import architecture as arch
from acespec_edge.export.architecture import Llama3Scaling, ModelSpec, layer_tensor
from acespec_edge.export.safetensors_file import SafetensorsFile
from acespec_edge.vocabulary import Vocabulary

_OUTSIDE = {
    arch.EMBED: "model.embed_tokens.weight",
    arch.FINAL_NORM: "model.norm.weight",
    arch.HEAD: "lm_head.weight",
}
_LAYER = {
    arch.ATTN_NORM: "input_layernorm.weight",
    arch.Q: "self_attn.q_proj.weight",
    arch.K: "self_attn.k_proj.weight",
    arch.V: "self_attn.v_proj.weight",
    arch.O: "self_attn.o_proj.weight",
    arch.Q_BIAS: "self_attn.q_proj.bias",
    arch.K_BIAS: "self_attn.k_proj.bias",
    arch.V_BIAS: "self_attn.v_proj.bias",
    arch.Q_NORM: "self_attn.q_norm.weight",
    arch.K_NORM: "self_attn.k_norm.weight",
    arch.MLP_NORM: "post_attention_layernorm.weight",
    arch.GATE: "mlp.gate_proj.weight",
    arch.UP: "mlp.up_proj.weight",
    arch.DOWN: "mlp.down_proj.weight",
}
_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")  # recomputed from the config


class HfSource:
    """A `Source` over a model folder of type llama, qwen2 or qwen3. Tensors become float32 when asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = self._json("config.json")
        self._check_config()
        self._files = self._open_weights()
        tokenizer_json = self._text("tokenizer.json")
        if tokenizer_json is None:
            raise UsageError(
                f"{folder}: there is no tokenizer.json. Save a fast tokenizer into the folder: "
                'AutoTokenizer.from_pretrained(...).save_pretrained("' + str(folder) + '")'
            )
        self.tokenizer_json: str = tokenizer_json
        vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
        self.spec = self._read_spec(vocabulary.size)
        self._names = self._map_names()
        self._tokenizer_config = self._json("tokenizer_config.json", optional=True)
        self.name: str = folder.resolve().name
        self.licence = self._read_licence()
        self.origin = str(folder)
        self.chat_template = self._read_chat_template()
        self.bos_id = self._read_bos(vocabulary)
        self.eos_ids = self._read_eos(vocabulary)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor of canonical `name`. Raises UsageError when the folder lacks it."""
        theirs = self._names.get(name)
        if theirs is None:
            raise UsageError(f"{self._folder}: the weights have no tensor for {name!r}")
        return self._files[theirs].tensor(theirs)

    def _check_config(self) -> None:
        kind = self._config.get("model_type")
        if kind not in arch.ARCHITECTURES:
            raise UsageError(
                f"{self._folder}: model_type {kind!r} is not supported; it must be one of "
                + ", ".join(arch.ARCHITECTURES)
            )
        if "quantization_config" in self._config:
            method = self._config["quantization_config"].get("quant_method", "unknown")
            raise UsageError(
                f"{self._folder}: the checkpoint is quantised ({method}); export from the original weights, "
                "--quant quantises them"
            )
        self._must_be("hidden_act", "silu")
        if kind != "llama":
            self._must_be("use_sliding_window", False)

    def _read_spec(self, vocabulary: int) -> ModelSpec:
        embedding = self._files.get(_OUTSIDE[arch.EMBED])
        if embedding is None:
            raise UsageError(f"{self._folder}: the weights have no tensor {_OUTSIDE[arch.EMBED]}")
        hidden, heads = self._number("hidden_size"), self._number("num_attention_heads")
        rope = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        spec = ModelSpec(
            architecture=self._config["model_type"],
            layers=self._number("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=self._number("num_key_value_heads", heads),
            head_dim=self._number("head_dim", hidden // heads),
            intermediate=self._number("intermediate_size"),
            vocabulary=vocabulary,
            logits_width=embedding.shape(_OUTSIDE[arch.EMBED])[0],
            max_positions=self._number("max_position_embeddings"),
            rope_theta=float(rope.get("rope_theta") or self._config.get("rope_theta") or 10000.0),
            rms_eps=float(self._config.get("rms_norm_eps", 1e-6)),
            tied_head=self._is_tied(),
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in self._files,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in self._files,
            rope_scaling=self._read_scaling(rope),
        )
        spec.validate()
        return spec

    def _is_tied(self) -> bool:
        has_head = _OUTSIDE[arch.HEAD] in self._files
        tied = self._config.get("tie_word_embeddings", not has_head)
        if not tied and not has_head:
            raise UsageError(
                f"{self._folder}: tie_word_embeddings is false, but there is no {_OUTSIDE[arch.HEAD]}"
            )
        return bool(tied)

    def _read_scaling(self, rope: dict[str, Any]) -> Llama3Scaling | None:
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return None
        if kind != "llama3":
            raise UsageError(
                f"{self._folder}: rope scaling {kind!r} is not supported; only 'default' and 'llama3' are"
            )
        try:
            return Llama3Scaling(
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_max_positions=int(rope["original_max_position_embeddings"]),
            )
        except KeyError as missing:
            raise UsageError(
                f"{self._folder}: rope scaling 'llama3' lacks {missing} in config.json"
            ) from None

    def _open_weights(self) -> dict[str, SafetensorsFile]:
        index = self._json("model.safetensors.index.json", optional=True)
        if index:
            parts = sorted(set(index["weight_map"].values()))
        else:
            parts = sorted(path.name for path in self._folder.glob("*.safetensors"))
        if not parts:
            raise UsageError(
                f"{self._folder}: there are no *.safetensors weights; pickled .bin weights are not read, "
                "because they can run code"
            )
        files: dict[str, SafetensorsFile] = {}
        for part in parts:
            file = SafetensorsFile(self._folder / Path(part).name)
            files |= dict.fromkeys(file.names, file)
        return files

    def _map_names(self) -> dict[str, str]:
        names = dict(_OUTSIDE)
        for layer in range(self.spec.layers):
            names |= {
                layer_tensor(layer, ours): f"model.layers.{layer}.{theirs}" for ours, theirs in _LAYER.items()
            }
        names = {ours: theirs for ours, theirs in names.items() if theirs in self._files}
        left_over = sorted(
            name for name in self._files.keys() - set(names.values()) if not _IGNORED.fullmatch(name)
        )
        if left_over:
            raise UsageError(
                f"{self._folder}: tensor {left_over[0]} has no place in a plain {self.spec.architecture} "
                f"decoder, so the model cannot be reproduced ({len(left_over)} such tensors)"
            )
        if self.spec.tied_head:
            names.pop(arch.HEAD, None)
        return names

    def _read_chat_template(self) -> str | None:
        template = self._text("chat_template.jinja")
        if template is not None:
            return template
        listed = self._tokenizer_config.get("chat_template")
        if isinstance(listed, list):
            return next((entry["template"] for entry in listed if entry["name"] == "default"), None)
        return listed

    def _read_bos(self, vocabulary: Vocabulary) -> int | None:
        if "bos_token" in self._tokenizer_config:
            return self._special(vocabulary, "bos_token")
        bos: int | None = self._config.get("bos_token_id")
        return bos

    def _read_eos(self, vocabulary: Vocabulary) -> list[int]:
        # The tokenizer's own token first: chat templates write that one.
        generation = self._json("generation_config.json", optional=True)
        found = [self._special(vocabulary, "eos_token")]
        for ids in (generation.get("eos_token_id"), self._config.get("eos_token_id")):
            found += ids if isinstance(ids, list) else [ids]
        return list(dict.fromkeys(token for token in found if token is not None))

    def _special(self, vocabulary: Vocabulary, key: str) -> int | None:
        entry = self._tokenizer_config.get(key)
        content = entry["content"] if isinstance(entry, dict) else entry
        return None if content is None else vocabulary.id_of(content)

    def _read_licence(self) -> str:
        front = re.match(r"---\n(.*?)\n---", self._text("README.md") or "", re.DOTALL)
        line = re.search(r"^license:\s*[\"']?([^\s\"'#]+)", front[1], re.MULTILINE) if front else None
        return line[1] if line else "unknown"

    def _number(self, key: str, default: int | None = None) -> int:
        value = self._config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value <= 0:
            raise UsageError(f"{self._folder}/config.json: {key} is {value!r}, it must be a number above 0")
        return value

    def _must_be(self, key: str, wanted: str | bool) -> None:
        value = self._config.get(key, wanted)
        if value != wanted:
            raise UsageError(f"{self._folder}/config.json: {key} is {value!r}; only {wanted!r} is supported")

    def _text(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{self._folder / name}: cannot be read ({problem})") from problem

    def _json(self, name: str, optional: bool = False) -> dict[str, Any]:
        text = self._text(name)
        if text is None and optional:
            return {}
        if text is None:
            raise UsageError(f"{self._folder}: there is no {name}, so this is not a model folder")
        try:
            document = json.loads(text)
        except ValueError as problem:
            raise UsageError(f"{self._folder / name}: not valid JSON ({problem})") from problem
        if not isinstance(document, dict):
            raise UsageError(f"{self._folder / name}: must hold a JSON object")
        return document
