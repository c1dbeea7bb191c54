"""Where the shared library of the installed ``onnxruntime`` wheel is. The wheel is not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from acespec_edge.errors import EngineError


def ort_library() -> str:
    """Path of ``libonnxruntime.so*`` of the installed ``onnxruntime`` (or ``onnxruntime-gpu``) wheel.

    Raises EngineError, saying what to install, when there is no such wheel or it holds no shared library.
    """
    spec = find_spec("onnxruntime")
    folders = [Path(folder, "capi") for folder in (spec.submodule_search_locations or ())] if spec else []
    if not folders:
        raise EngineError("ONNX Runtime is not installed: pip install 'onnxruntime>=1.23'")
    for folder in folders:
        # A wheel holds one; should an unversioned link lie beside it, both are the same file.
        for library in sorted(folder.glob("libonnxruntime.so*")):
            return str(library)
    raise EngineError(
        f"ONNX Runtime's package holds no libonnxruntime.so in {', '.join(map(str, folders))}: "
        "install it again, pip install --force-reinstall 'onnxruntime>=1.23'"
    )
