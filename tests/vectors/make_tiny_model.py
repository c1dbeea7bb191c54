"""Writes the tiny model that the engine's tests run, and answers what it should say.

    python -m tests.vectors.make_tiny_model

writes tiny_model.onnx (keys and values in float32), tiny_model_kv16.onnx (in float16) and tiny_model.txt (a
prompt and its logits, for the C++ tests) beside this file. Two layers of grouped-query attention and gated
MLP over 64 tokens, with seeded random weights, in standard operators of opset 17.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 64
LAYERS = 2
HIDDEN = 32
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 8
KV_WIDTH = KV_HEADS * HEAD_DIM
INNER = 48
POSITIONS = 512
EPSILON = 1e-5

HERE = Path(__file__).parent
Array = npt.NDArray[np.float32]


def weights() -> dict[str, Array]:
    """All parameters by name. Scaled so that logits span some ten units and depend on every earlier token."""
    random = np.random.default_rng(20)

    def matrix(rows: int, columns: int, gain: float = 1.5) -> Array:
        return np.asarray(random.standard_normal((rows, columns)) * gain / np.sqrt(rows), np.float32)

    out = {"embedding": random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)}
    for layer in range(LAYERS):
        out[f"q.{layer}"] = matrix(HIDDEN, HEADS * HEAD_DIM, 2.0)
        out[f"k.{layer}"] = matrix(HIDDEN, KV_WIDTH, 2.0)
        out[f"v.{layer}"] = matrix(HIDDEN, KV_WIDTH)
        out[f"o.{layer}"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        out[f"gate.{layer}"] = matrix(HIDDEN, INNER)
        out[f"up.{layer}"] = matrix(HIDDEN, INNER)
        out[f"down.{layer}"] = matrix(INNER, HIDDEN)
    out["head"] = matrix(HIDDEN, VOCABULARY, 2.0)
    angles = np.arange(POSITIONS)[:, None] * 100.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    out["cos"] = np.cos(angles).astype(np.float32)
    out["sin"] = np.sin(angles).astype(np.float32)
    return out


def reference(tokens: list[int]) -> Array:
    """Logits float32[T, VOCABULARY] of plain causal attention over ``tokens`` at positions 0..T-1."""
    w = {name: value.astype(np.float64) for name, value in weights().items()}
    count = len(tokens)
    hidden_future = np.triu(np.full((count, count), -np.inf), 1)

    def norm(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON))

    def rotated(x: npt.NDArray[np.float64], heads: int) -> npt.NDArray[np.float64]:
        x = x.reshape(count, heads, HEAD_DIM)
        low, high = np.split(x, 2, axis=-1)
        cos, sin = w["cos"][:count, None], w["sin"][:count, None]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    x = w["embedding"][tokens]
    for layer in range(LAYERS):
        h = norm(x)
        q = rotated(h @ w[f"q.{layer}"], HEADS)
        k = rotated(h @ w[f"k.{layer}"], KV_HEADS).repeat(HEADS // KV_HEADS, axis=1)
        v = (h @ w[f"v.{layer}"]).reshape(count, KV_HEADS, HEAD_DIM).repeat(HEADS // KV_HEADS, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(HEAD_DIM) + hidden_future
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hts,shd->thd", scores, v).reshape(count, HIDDEN) @ w[f"o.{layer}"]
        h = norm(x)
        gate = h @ w[f"gate.{layer}"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"up.{layer}"])) @ w[f"down.{layer}"]
    return (norm(x) @ w["head"]).astype(np.float32)


class _Graph:
    """Collects nodes; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        result = result or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.constants[name] = numpy_helper.from_array(value, name)
        return name

    def shape(self, *dimensions: int) -> str:
        name = "shape" + "".join(f"_{d}" for d in dimensions)
        return self.constant(name, np.array(dimensions, np.int64))

    def norm(self, x: str) -> str:
        mean = self.op("ReduceMean", self.op("Mul", x, x), axes=[-1], keepdims=1)
        root = self.op(
            "Sqrt", self.op("Add", mean, self.constant("epsilon", np.array([EPSILON], np.float32)))
        )
        return self.op("Div", x, root)

    def rotated(self, x: str, heads: int) -> str:
        x = self.op("Reshape", x, self.shape(-1, heads, HEAD_DIM))
        low, high = f"{x}_low", f"{x}_high"
        self.nodes.append(helper.make_node("Split", [x], [low, high], axis=-1))
        first = self.op("Sub", self.op("Mul", low, "row_cos"), self.op("Mul", high, "row_sin"))
        second = self.op("Add", self.op("Mul", high, "row_cos"), self.op("Mul", low, "row_sin"))
        return self.op("Concat", first, second, axis=-1)

    def stored(self, kind: str, layer: int, rows: str, kv_type: int) -> str:
        """Writes ``rows`` to the ring and returns it as [KV_HEADS, 1, S, HEAD_DIM]."""
        rows = self.op("Reshape", rows, self.shape(-1, KV_WIDTH))
        if kv_type != TensorProto.FLOAT:
            rows = self.op("Cast", rows, to=kv_type)
        past, present = f"past_{kind}.{layer}", f"present_{kind}.{layer}"
        ring = self.op("ScatterND", past, "slot_column", rows, result=present)
        if kv_type != TensorProto.FLOAT:
            ring = self.op("Cast", ring, to=TensorProto.FLOAT)
        split = self.op("Reshape", ring, self.shape(-1, KV_HEADS, 1, HEAD_DIM))
        return self.op("Transpose", split, perm=[1, 2, 0, 3])

    def layer(self, x: str, layer: int, kv_type: int) -> str:
        h = self.norm(x)
        q = self.rotated(self.op("MatMul", h, f"q.{layer}"), HEADS)
        q = self.op("Reshape", q, self.shape(-1, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM))
        q = self.op("Transpose", q, perm=[1, 2, 0, 3])
        k = self.stored("k", layer, self.rotated(self.op("MatMul", h, f"k.{layer}"), KV_HEADS), kv_type)
        v = self.stored("v", layer, self.op("MatMul", h, f"v.{layer}"), kv_type)
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant("scale", np.array([HEAD_DIM**-0.5], np.float32)))
        scores = self.op("Softmax", self.op("Add", scores, "attention_bias"), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", scores, v), perm=[2, 0, 1, 3])
        mixed = self.op("Reshape", mixed, self.shape(-1, HEADS * HEAD_DIM))
        x = self.op("Add", x, self.op("MatMul", mixed, f"o.{layer}"))
        h = self.norm(x)
        gate = self.op("MatMul", h, f"gate.{layer}")
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        inner = self.op("Mul", gate, self.op("MatMul", h, f"up.{layer}"))
        return self.op("Add", x, self.op("MatMul", inner, f"down.{layer}"))


def build(kv_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The model by the graph contract that OrtEngine reads."""
    graph = _Graph()
    for name, parameter in weights().items():
        graph.constant(name, parameter)
    axis = graph.constant("middle", np.array([1], np.int64))
    ids = graph.op("Reshape", "input_ids", graph.shape(-1))
    places = graph.op("Reshape", "position_ids", graph.shape(-1))
    graph.op("Unsqueeze", graph.op("Gather", "cos", places), axis, result="row_cos")
    graph.op("Unsqueeze", graph.op("Gather", "sin", places), axis, result="row_sin")
    graph.op("Unsqueeze", "kv_slots", axis, result="slot_column")
    x = graph.op("Gather", "embedding", ids)
    for layer in range(LAYERS):
        x = graph.layer(x, layer, kv_type)
    graph.op("MatMul", graph.norm(graph.op("Gather", x, "rows")), "head", result="logits")

    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, list(shape))

    rings = [f"{kind}.{layer}" for layer in range(LAYERS) for kind in "kv"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "tiny",
            [
                value("input_ids", TensorProto.INT64, 1, "T"),
                value("position_ids", TensorProto.INT64, 1, "T"),
                value("kv_slots", TensorProto.INT64, "T"),
                value("attention_bias", TensorProto.FLOAT, "T", "S"),
                value("rows", TensorProto.INT64, "R"),
                *(value(f"past_{ring}", kv_type, "S", KV_WIDTH) for ring in rings),
            ],
            [
                value("logits", TensorProto.FLOAT, "R", VOCABULARY),
                *(value(f"present_{ring}", kv_type, "S", KV_WIDTH) for ring in rings),
            ],
            list(graph.constants.values()),
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="acespec-tests",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    onnx.save(build(), str(HERE / "tiny_model.onnx"))
    onnx.save(build(TensorProto.FLOAT16), str(HERE / "tiny_model_kv16.onnx"))
    prompt = [int(token) for token in np.random.default_rng(21).integers(0, VOCABULARY, 24)]
    lines = [" ".join(map(str, prompt))]
    lines += [" ".join(f"{logit:.6f}" for logit in row) for row in reference(prompt)]
    (HERE / "tiny_model.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
