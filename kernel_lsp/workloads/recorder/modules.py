"""Calls of the workspace's ``nn.Module`` classes, and how their instances were constructed.

Stands in for ``Module.__call__`` and ``Module.__init__`` and calls them. Both are replaced before
torch._dynamo is imported, which therefore takes ours for torch's own and traces past it; what
torch.compile has compiled as a whole is seen once, from outside. Where snapshots are kept, it also
stands in for the ``forward`` of each class that is constructed, to see ``module.forward(x)``
called by itself. Not covered: modules inside a compiled one, scripted modules."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, cast

from . import describe, imports, memos
from .calls import named_arguments
from .derivatives import DerivativeRecorder
from .functions import FunctionRecorder
from .recording import ProcessRecording
from .sites import (
    OWN_PACKAGES,
    CallSite,
    CallWay,
    Glance,
    Look,
    is_hidden,
    target_class,
    written_class,
)

UNKNOWN: Any = object()
MAX_FRAMES = 12
"""Between ``Module.__init__`` and the constructor that a program has called."""
KINDS = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def install(torch: Any, recording: ProcessRecording) -> None:
    """Watches all calls of modules from now on, for the recording."""
    recording.torch = torch
    _ModuleObserver(torch, recording).install()


class _ModuleObserver:
    def __init__(self, torch: Any, recording: ProcessRecording) -> None:
        self.torch, self.recording = torch, recording
        self.sites: dict[type, CallSite | None] = {}
        """None: of no interest."""
        self.made = _ByIdentity()
        """Module -> specs of its constructor's arguments, None where one is unknown."""
        self.last_made: dict[type, list[Any]] = {}
        """What is taken for copies, where all that was constructed was alike."""
        self.coming = threading.local()
        """``module``: whose ``forward`` is about to be called by its ``__call__``."""
        self.wrapped: set[type] = set()
        """Classes whose own ``forward`` is watched."""
        self.functions = FunctionRecorder(torch, recording)
        self.derivatives = DerivativeRecorder(torch, recording)

    def install(self) -> None:
        """Put a recording `__call__` and `__init__` in the place of torch.nn.Module's own."""
        module = self.torch.nn.Module
        call, construct, sites = module.__call__, module.__init__, self.sites
        is_compiling, watch = self.torch.compiler.is_compiling, self.recording.watch
        tensor, coming, functions = self.torch.Tensor, self.coming, self.functions

        def find(kind: type) -> CallSite | None:
            return cast("CallSite | None", self.recording.safely(lambda: self.site_of(kind)))

        def look_at_files() -> None:
            prior = self.recording.compile_frames(None)  # as in Recording.watch
            self.recording.safely(functions.scan)
            self.recording.safely(self.derivatives.scan)
            self.recording.compile_frames(prior)

        def seldom(
            site: CallSite,
            glance: Glance,
            self_: Any,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> Any:
            if len(sys.modules) != functions.modules:
                look_at_files()
            return watch(
                site,
                glance,
                lambda: _ObservedCall(self, self_, args, kwargs),
                lambda: call(self_, *args, **kwargs),
            )

        @functools.wraps(call)
        def recorded_call(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            # Runs at every call of every module: 0.2 us for others' modules, 0.6 us for the
            # workspace's.
            site = sites.get(type(self_), UNKNOWN)
            if site is None or is_compiling():
                return call(self_, *args, **kwargs)
            if site is UNKNOWN:
                site = find(type(self_))
                if site is None:
                    return call(self_, *args, **kwargs)
            key = (
                getattr(self_, "training", None),
                args[0].shape if args and type(args[0]) is tensor else None,
            )
            glance = site.glances.get(key)
            if glance is None:
                glance = site.glance(key)
            glance.calls += 1
            coming.module = self_
            if glance.calls < glance.due:
                return call(self_, *args, **kwargs)
            return seldom(site, glance, self_, args, kwargs)

        self.recording.look_at_files = look_at_files
        recorded_init = self._recorded_init(construct, look_at_files)
        module.__call__, module.__init__ = recorded_call, recorded_init
        self._stay_out_of_graphs(
            recorded_call, seldom, look_at_files, find, ProcessRecording.watch, CallSite.glance
        )

    def _recorded_init(self, construct: Any, look_at_files: Callable[[], None]) -> Any:
        """What stands in for ``Module.__init__``."""
        is_compiling, sites, functions = (
            self.torch.compiler.is_compiling,
            self.sites,
            self.functions,
        )

        @functools.wraps(construct)
        def recorded_init(self_: Any, /, *args: Any, **kwargs: Any) -> None:
            construct(self_, *args, **kwargs)
            if len(sys.modules) != functions.modules and not is_compiling():
                look_at_files()
            if not is_compiling() and sites.get(type(self_), UNKNOWN) is not None:
                self.recording.safely(lambda: self.constructed(self_))
                if self.recording.calls is not None:
                    self.recording.safely(lambda: self.watch_forward(type(self_)))

        return recorded_init

    def watch_forward(self, kind: type) -> None:
        """See direct calls of the ``forward`` that this class or one of its bases defines."""
        owner = next((base for base in kind.__mro__ if "forward" in vars(base)), None)
        forward = vars(owner).get("forward") if owner is not None else None
        if owner is None or owner in self.wrapped or not isinstance(forward, FunctionType):
            return
        self.wrapped.add(owner)
        if owner.__module__.partition(".")[0] in OWN_PACKAGES:
            return
        is_compiling, coming, sites = self.torch.compiler.is_compiling, self.coming, self.sites
        watch = self.recording.watch

        @functools.wraps(forward)
        def watched_forward(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return forward(self_, *args, **kwargs)
            if getattr(coming, "module", None) is self_:  # its __call__ has counted this one
                coming.module = None
                return forward(self_, *args, **kwargs)
            site = sites.get(type(self_))
            if site is None or type(self_).forward is not watched_forward:
                # None of ours, or super().forward.
                return forward(self_, *args, **kwargs)
            glance = site.glance((self_.training, "forward"))
            glance.calls += 1
            if glance.calls < glance.due:
                return forward(self_, *args, **kwargs)
            return watch(
                site,
                glance,
                lambda: _ObservedCall(self, self_, args, kwargs),
                lambda: forward(self_, *args, **kwargs),
            )

        owner.forward = watched_forward  # type: ignore[attr-defined]

    def _stay_out_of_graphs(self, *functions: Any) -> None:
        """A graph must begin at the module's frames, as without us, and not at ours around them."""
        self.recording.compile_frames = self.torch._C._dynamo.eval_frame.set_eval_frame
        codes = [function.__code__ for function in functions]
        codes += [
            const for code in codes for const in code.co_consts if isinstance(const, CodeType)
        ]

        def skip(eval_frame: Any) -> None:
            for code in codes:
                eval_frame.skip_code(code)

        imports.after("torch._dynamo.eval_frame", skip)

    def site_of(self, kind: type) -> CallSite | None:
        """The class's place in the recording; None where it lies outside of what is recorded."""
        if kind in self.sites:
            return self.sites[kind]
        named = target_class(kind)
        file = getattr(sys.modules.get(named.__module__), "__file__", None)
        path = self.recording.within(file) or self.recording.library(file, named.__module__)
        site = None
        if path is not None and is_hidden(named):
            self.recording.note(
                f"{path} defines {named.__qualname__} twice: calls of the first are left out"
            )
        elif path is not None and "<locals>" not in named.__qualname__:
            site = self.recording.site("module", path, named.__qualname__, kind)
        self.sites[kind] = site
        return site

    # --- constructors ----------------------------------------------------------------------------

    def constructed(self, module: Any) -> None:
        """Note the arguments that a module was made with; of a class the first two kinds."""
        if self.site_of(type(module)) is None:
            return
        found = self._arguments(module, sys._getframe(2))
        self.made.set(module, found)
        known = self.last_made.setdefault(type(module), [])
        if found not in known and len(known) < 2:
            known.append(found)

    def _arguments(self, module: Any, frame: Any) -> list[dict[str, Any]] | None:
        """From the frame of the class's own ``__init__``, which has just begun."""
        if type(module).__init__ is self.torch.nn.Module.__init__:
            return []
        code = getattr(inspect.unwrap(type(module).__init__), "__code__", None)
        for _ in range(MAX_FRAMES):
            if frame is None or frame.f_code is code:
                break
            frame = frame.f_back
        if (
            frame is None
            or frame.f_code is not code
            or frame.f_locals.get(code.co_varnames[0]) is not module
        ):
            return None
        found = []
        for parameter in list(inspect.signature(type(module).__init__).parameters.values())[1:]:
            value = frame.f_locals.get(parameter.name, UNKNOWN)
            if parameter.kind not in KINDS:
                if value:  # *args and **kwargs that hold something
                    return None
                continue
            if value is UNKNOWN:
                return None
            if not _same(value, parameter.default):
                found.append({"name": parameter.name, **describe.spec(value, self.torch)})
        return found

    def init_of(self, module: Any) -> list[dict[str, Any]] | None:
        """None: unknown, as of an instance that was unpickled, or of a class that inherits what is
        called: its constructor is not the target's."""
        if target_class(type(module)) is not written_class(type(module)):
            return None
        if module in self.made:
            return cast("list[dict[str, Any]] | None", self.made.get(module))
        known = self.last_made.get(type(module), [])
        return known[0] if len(known) == 1 else None


class _ByIdentity:
    """What is known of live objects, whose own hash and equality may do anything, or fail while
    they are being made."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __contains__(self, one: Any) -> bool:
        found = self._known.get(id(one))
        return found is not None and found[0]() is one

    def get(self, one: Any) -> Any:
        """None: nothing, or None itself."""
        return self._known[id(one)][1] if one in self else None

    def set(self, one: Any, value: Any) -> None:
        """Keep a value for this very object, until the object is gone."""
        number = id(one)
        gone = weakref.ref(one, lambda _: self._known.pop(number, None))
        self._known[number] = (gone, value)


class _ObservedCall(Look):
    """One call of one module."""

    def __init__(
        self, owner: _ModuleObserver, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        torch = owner.torch
        self.owner, self.module, self.args, self.kwargs = owner, module, args, kwargs
        self.named = named_arguments(module.forward, args, kwargs)
        self.specs = [describe.spec(value, torch) for _, value in self.named]
        self.tensors = {
            name: value for name, value in self.named if name and describe.is_ordinary(value, torch)
        }
        self.on_cuda = any(value.is_cuda for value in self.tensors.values())
        self.training = bool(getattr(module, "training", True))
        self.autocast = self._autocast(torch)
        self.init = owner.init_of(module)
        init = (
            None
            if self.init is None
            else tuple((one["name"], describe.key(one)) for one in self.init)
        )
        arguments = tuple(
            (name, describe.key(one)) for (name, _), one in zip(self.named, self.specs, strict=True)
        )
        self.key = (self.training, self.autocast, torch.is_grad_enabled(), init, arguments)
        self.gradients = bool(torch.is_grad_enabled())
        self.state: memos.ModuleAttributes | None = None
        """Of the module before this call, where it was kept."""

    def _autocast(self, torch: Any) -> str | None:
        kind = "cuda" if self.on_cuda else "cpu"
        if not torch.is_autocast_enabled(kind):
            return None
        return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    def about(self) -> dict[str, Any]:
        """What is kept of a call of a module, as a way of its site."""
        arguments = [
            {**({"name": name} if name else {}), **spec}
            for (name, _), spec in zip(self.named, self.specs, strict=True)
        ]
        return {
            "training": self.training,
            "autocast": self.autocast,
            "gradients": self.gradients,
            "init": self.init,
            "arguments": arguments,
            **self._kept(),
        }

    def after(self, way: CallWay, result: Any) -> None:
        """A call that has filled caches is kept again when they are full."""
        if self.state is not None and self.state != memos.state_of(self.module):
            way.cold.append(weakref.ref(self.module))
        self.state = None

    def look_again(self, way: CallWay) -> None:
        """Another instance, whose first call this may be, has to fill its own."""
        if not way.cold:
            return
        if not any(known() is self.module for known in way.cold):
            way.cold.append(weakref.ref(self.module))
            return
        way.cold.clear()
        kept = self._kept(again=True)
        if "snapshot" in kept:
            way.about["snapshot"] = kept["snapshot"]

    def _kept(self, *, again: bool = False) -> dict[str, Any]:
        """The snapshot of this call, where such are kept. ``again``: in another one's place."""
        calls = self.owner.recording.calls
        if calls is None:
            return {}
        device = "cuda" if self.on_cuda else "cpu"
        kept = calls.keep(
            self.module, self.args, self.kwargs, device, training=self.training, again=again
        )
        if "snapshot" in kept and not again:
            self.state = memos.state_of(self.module)
        return kept


def _same(value: Any, default: Any) -> bool:
    """Is it the parameter's default? Compared only where comparing is harmless."""
    return value is default or (
        type(value) is type(default) and type(value) in (int, str) and value == default
    )
