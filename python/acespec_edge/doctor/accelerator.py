"""What runs the drafter: ONNX Runtime, its execution providers, and what there is beside the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from acespec_edge.doctor.finding import Finding
from acespec_edge.doctor.system import System

_WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")
_LEAST: Final = (1, 23)
_SUFFIX: Final = "ExecutionProvider"


def installed_runtime() -> tuple[str, list[str]]:
    """The version of the installed ONNX Runtime and its execution providers; empty without one."""
    for wheel in _WHEELS:
        try:
            found = version(wheel)
        except PackageNotFoundError:
            continue
        try:
            import onnxruntime
        except ImportError:
            return found, []
        return found, [name.removesuffix(_SUFFIX) for name in onnxruntime.get_available_providers()]
    return "", []


def probe_accelerator(system: System, runtime: str, providers: Sequence[str]) -> Finding:
    """``runtime``: version of ONNX Runtime, empty without one; ``providers``: its execution providers."""
    tensorrt = _library(system, "libnvinfer.so")
    cuda = _library(system, "libcudart.so")
    driver = re.search(r"\b(\d{3}\.\d+[.\d]*)\b", system.text("proc/driver/nvidia/version"))
    jetpack = system.text("etc/nv_tegra_release").partition(",")[0].removeprefix("# ")
    npu = bool(system.found("sys/class/misc/rknpu") or system.found("sys/kernel/debug/rknpu"))
    facts = {
        "onnxruntime": runtime,
        "providers": list(providers),
        "tensorrt": tensorrt,
        "cuda": cuda,
        "nvidia_driver": driver[1] if driver else "",
        "jetson_linux": jetpack,
        "rockchip_npu": npu,
    }
    if not runtime:
        advice = "pip install 'onnxruntime>=1.23'"
        return Finding("runtime", "bad", "ONNX Runtime is not installed", facts, advice)
    words = f"ONNX Runtime {runtime}, providers: {', '.join(providers) or 'none'}"
    numbers = tuple(int(part) for part in re.findall(r"\d+", runtime)[:2])
    if numbers < _LEAST:
        advice = "bundles need 1.23 or newer: pip install --upgrade onnxruntime"
        return Finding("runtime", "bad", words, facts, advice)
    has_gpu = bool(driver or jetpack)
    if has_gpu and not {"CUDA", "Tensorrt"} & set(providers):
        advice = "there is an NVIDIA GPU that this ONNX Runtime does not use; its CPU kernels run the drafter"
        return Finding("runtime", "ok", f"{words} (GPU not used)", facts, advice)
    if not tensorrt and not npu:
        words += " (no TensorRT: not installed)" if has_gpu else ""
    if npu:
        words += " (the NPU is not used)"
    return Finding("runtime", "ok", words, facts)


def _library(system: System, name: str) -> str:
    """The version in the name of an installed library; empty without one."""
    folders = ("usr/lib/*-linux-gnu", "usr/local/cuda/lib64", "usr/local/cuda*/targets/*/lib", "usr/lib")
    for folder in folders:
        # The longest name has the whole version.
        for path in sorted(system.found(f"{folder}/{name}*"), key=lambda path: -len(path.name)):
            return path.name.removeprefix(name).lstrip(".") or "unknown"
    return ""
