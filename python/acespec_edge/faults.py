"""What a cloud's Fault is to the caller."""

from __future__ import annotations

from typing import NoReturn

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError, UsageError


def raise_fault(fault: _core.Fault) -> NoReturn:
    """UsageError for what is ours to fix, LinkError for busy, PeerError for the rest."""
    code = fault.code
    if code == _core.FaultCode.busy:
        raise LinkError(f"the cloud is busy: {fault.message}", retry_after=1e-3 * fault.retry_after_ms)
    if code in (_core.FaultCode.tokenizer, _core.FaultCode.request, _core.FaultCode.unauthorized):
        raise UsageError(fault.message)
    raise PeerError(f"the cloud reports a fault ({code.name}): {fault.message}")
