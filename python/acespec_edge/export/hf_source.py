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
from acespec_edge.export.architecture import ModelSpec, layer_tensor
from acespec_edge.export.hf_config import HfConfig, TensorFacts
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
# Gemma norms what attention gives where others norm what the MLP takes.
_POST_NORMED_LAYER = {
    arch.POST_ATTN_NORM: "post_attention_layernorm.weight",
    arch.MLP_NORM: "pre_feedforward_layernorm.weight",
    arch.POST_MLP_NORM: "post_feedforward_layernorm.weight",
}
_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")  # recomputed from the config


def _phi3_layer(spec: ModelSpec) -> dict[str, tuple[str, slice]]:
    """Phi-3 keeps queries, keys and values in one tensor, gate and up in another, one below the other."""
    keys = spec.q_width + spec.kv_width
    qkv, gate_up = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"
    return {
        arch.Q: (qkv, slice(0, spec.q_width)),
        arch.K: (qkv, slice(spec.q_width, keys)),
        arch.V: (qkv, slice(keys, keys + spec.kv_width)),
        arch.GATE: (gate_up, slice(0, spec.intermediate)),
        arch.UP: (gate_up, slice(spec.intermediate, 2 * spec.intermediate)),
    }


class HfSource:
    """A `Source` over a model folder of a type in ARCHITECTURES. Tensors become float32 when asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = self._json("config.json")
        config = HfConfig(folder, self._config)
        self._files = self._open_weights()
        tokenizer_json = self._text("tokenizer.json")
        if tokenizer_json is None:
            raise UsageError(
                f"{folder}: there is no tokenizer.json. Save a fast tokenizer into the folder: "
                'AutoTokenizer.from_pretrained(...).save_pretrained("' + str(folder) + '")'
            )
        self.tokenizer_json: str = tokenizer_json
        vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
        self.spec = config.spec(self._tensor_facts(vocabulary.size))
        self._one_plus = config.is_gemma
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
        if name not in self._names:
            raise UsageError(f"{self._folder}: the weights have no tensor for {name!r}")
        theirs, rows = self._names[name]
        values = self._files[theirs].tensor(theirs)[rows]
        return values + np.float32(1) if self._one_plus and name.endswith("norm") else values

    def _tensor_facts(self, vocabulary: int) -> TensorFacts:
        embed = _OUTSIDE[arch.EMBED]
        if embed not in self._files:
            raise UsageError(f"{self._folder}: the weights have no tensor {embed}")
        return TensorFacts(
            vocabulary=vocabulary,
            logits_width=self._files[embed].shape(embed)[0],
            has_head=_OUTSIDE[arch.HEAD] in self._files,
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in self._files,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in self._files,
        )

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

    def _map_names(self) -> dict[str, tuple[str, slice]]:
        """Where each canonical tensor lies: a tensor's name, and which of its rows."""
        spec, whole = self.spec, slice(None)
        layer = {ours: (theirs, whole) for ours, theirs in _LAYER.items()}
        if spec.architecture == "phi3":
            layer |= _phi3_layer(spec)
        if spec.post_norms:
            layer |= {ours: (theirs, whole) for ours, theirs in _POST_NORMED_LAYER.items()}
        names = {ours: (theirs, whole) for ours, theirs in _OUTSIDE.items()}
        for index in range(spec.layers):
            names |= {
                layer_tensor(index, ours): (f"model.layers.{index}.{theirs}", rows)
                for ours, (theirs, rows) in layer.items()
            }
        names = {ours: place for ours, place in names.items() if place[0] in self._files}
        left_over = sorted(
            name
            for name in self._files.keys() - {theirs for theirs, _ in names.values()}
            if not _IGNORED.fullmatch(name)
        )
        if left_over:
            raise UsageError(
                f"{self._folder}: tensor {left_over[0]} has no place in a plain {spec.architecture} "
                f"decoder, so the model cannot be reproduced ({len(left_over)} such tensors)"
            )
        if spec.tied_head:
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
