"""What the skill cuda-graph writes: replays with fresh inputs, notices moved weights, returns
copies."""

import operator
import weakref

import torch
import torch.nn as nn

_recordings = weakref.WeakKeyDictionary()  # module -> kinds of calls, forgotten with the module
MAX_KINDS = 4  # of one module: each keeps the memory of one whole call


class _Kind:
    """Calls with inputs of the same shapes: what was fixed at the last one, and recordings not in
    use."""

    def __init__(self, fixed):
        self.fixed, self.idle = fixed, None


class _Recording:
    """One call of ``steps`` as a CUDA graph, with the memory that it reads and writes."""

    def __init__(self, steps, arguments):
        self.arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        self.graph = torch.cuda.CUDAGraph()
        # Nothing runs here: running statistics and random numbers move when the graph is replayed.
        # What libraries set up in a first call is there, because the same call has run before.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = steps(*self.arguments)

    def replay(self, arguments):
        for kept, new in zip(self.arguments, arguments, strict=True):
            if isinstance(kept, torch.Tensor):
                kept.copy_(new)
        self.graph.replay()
        return self.result.clone()  # the next replay writes over it


def _recorded(steps, arguments):
    """A recording; None for steps that cannot be recorded, and inputs that a copy lays out
    differently."""
    try:
        with torch.cuda.device(arguments[0].device), torch.inference_mode(False), torch.no_grad():
            made = _Recording(steps, arguments)
    except RuntimeError:
        # They wait for the device, or there is no memory left: the usual path can say.
        return None
    pairs = [
        (a, b)
        for a, b in zip(made.arguments, arguments, strict=True)
        if isinstance(a, torch.Tensor)
    ]
    return made if all(a.stride() == b.stride() for a, b in pairs) else None


def _fixed(module):
    """What a replay does not look at again: settings of every layer, and where its weights lie.
    None when somebody listens to a layer, or a weight is of a kind whose place cannot be told."""
    settings, places, layers = [], [], [module]
    for layer in layers:  # grows on the way
        own = vars(layer)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return None
        settings += own.values()
        layers += [child for child in own["_modules"].values() if child is not None]
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            if tensor is not None:
                if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cuda:
                    return None
                places.append((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))
    return settings, places


def _same(fixed, before):
    """The same objects as settings and weights in the same places; what the weights are may
    change."""
    (settings, places), (old_settings, old_places) = fixed, before
    return (
        places == old_places
        and len(settings) == len(old_settings)
        and all(map(operator.is_, settings, old_settings))
    )


def _precision():
    """Switches that choose kernels, in whichever of torch's two sets is in use."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


def _taken(known, steps, arguments):
    """A recording for one thread alone; None while others use it, and where there is none."""
    if known.idle is None:
        known.idle = []
        return _recorded(steps, arguments)
    try:
        return known.idle.pop()
    except IndexError:
        return None


def _replayed(module, steps, *arguments):
    """``steps(*arguments)`` with one launch for all kernels, from the second call of a kind on.

    A CUDA graph repeats its kernels at fixed addresses: inputs are copied in, the result is copied
    out, and weights are read where they lie, so training steps and load_state_dict are seen. When
    a weight was moved or a setting changed, the steps run as usual, and are recorded again once
    two calls agree."""
    fixed = None if torch.cuda.is_current_stream_capturing() else _fixed(module)
    if fixed is None:
        return steps(*arguments)
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    kind = tuple((a.shape, a.stride(), a.dtype, a.device) for a in tensors)
    key = (kind, torch.cuda.current_stream(tensors[0].device), _precision())
    kinds = _recordings.setdefault(module, {})
    known = kinds.get(key)
    if known is None or not _same(fixed, known.fixed):
        if known is not None or len(kinds) < MAX_KINDS:
            kinds[key] = _Kind(fixed)
        return steps(*arguments)
    recording = _taken(known, steps, arguments)
    if recording is None:
        return steps(*arguments)
    result = recording.replay(arguments)
    known.idle.append(recording)
    return result


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def _forward_eager(self, x):
        return torch.relu(self.norm(self.linear(x)))

    def forward(self, x):
        if torch.is_grad_enabled() or not x.is_cuda:
            return self._forward_eager(x)
        return _replayed(self, self._forward_eager, x)
