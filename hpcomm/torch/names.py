"""Names of parameters and buffers without the prefixes of wrappers: _orig_mod of torch.compile, and module of
DataParallel and DistributedDataParallel. So a compiled model and a plain one have the same names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_COMPILED = "_orig_mod"
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def plain_name(model: nn.Module) -> Callable[[str], str]:
    """Returns a function that takes a name in the model and returns it without the prefixes of wrappers."""
    wrapped = set()
    for name, module in model.named_modules(remove_duplicate=False):
        inner = _COMPILED if _COMPILED in module._modules else "module" if _is_parallel(module) else None
        if inner is not None:
            wrapped.add(f"{name}.{inner}" if name else inner)

    def plain(name: str) -> str:
        parts = name.split(".")
        kept = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in wrapped]
        return ".".join(kept)

    return plain if wrapped else str


def _is_parallel(module: nn.Module) -> bool:
    """Returns whether a module is, or looks like, a wrapper of another module for several devices or ranks."""
    alone = list(module._modules) == ["module"] and not module._parameters and not module._buffers
    return alone or isinstance(module, _PARALLEL)


def plain_keys(model: nn.Module, given: Any) -> Any:
    """Returns the given mapping with plain names of parameters as keys. Returns any other value unchanged."""
    if not isinstance(given, Mapping):
        return given
    plain = plain_name(model)
    return {plain(name) if isinstance(name, str) else name: value for name, value in given.items()}


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers that torch saves, by plain name. Torch does not save buffers with persistent=False."""
    plain = plain_name(model)
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[plain(f"{prefix}.{name}" if prefix else name)] = buffer
    return found


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields model.named_parameters() with plain names."""
    plain = plain_name(model)
    for name, param in model.named_parameters():
        yield plain(name), param
