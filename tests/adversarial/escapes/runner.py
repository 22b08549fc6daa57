"""Run as a program: many cases of the corpus in one confined child, each in a fork of its own; one
alone in the child itself, which CUDA's driver asks for.

Standard input: one JSON object (see world.run). Standard output: one JSON object, case -> what came of it.
``forked`` confines itself as a zygote's child does, with layers switched off; ``launch`` goes through the entry,
which runs ``inside``.
"""

import asyncio
import contextlib
import ctypes
import errno
import json
import logging
import logging.handlers
import mmap
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from types import ModuleType

LIMIT_S = 10
MODULES = {
    module.__name__.partition(".")[0]: module
    for module in (
        ctypes,
        errno,
        logging,
        mmap,
        os,
        resource,
        signal,
        socket,
        struct,
        subprocess,
        threading,
        time,
    )
}


def main() -> None:
    asked = json.load(sys.stdin)
    if sys.argv[1] == "inside":
        print(json.dumps({"results": results(asked)}))
        return
    import confined_child  # before this is another user, who may not read where root's interpreter lies

    from kernel_lsp.confinement import entry, linux

    assert entry
    if asked["uid"] is not None:
        os.setgroups([])
        os.setresgid(asked["uid"], asked["uid"], asked["uid"])
        os.setresuid(asked["uid"], asked["uid"], asked["uid"])
        linux.prctl("dumpable", linux.PR_SET_DUMPABLE, 1)  # as a process that the user has started
    print(
        json.dumps(
            asyncio.run(launched(asked))
            if sys.argv[1] == "launch"
            else forked(asked, confined_child)
        )
    )


def forked(asked: dict, confined_child: ModuleType) -> dict:
    confine, namespaces = confined_child.confine, confined_child.namespaces
    for layer in set(asked["without"]) & confined_child.SWITCHES.keys():
        confined_child.SWITCHES[layer]()
    limits = {} if "limits" in asked["without"] else asked["limits"]
    tree = namespaces.enter_process_tree()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            layers = confine.confine(confine.Order(**asked["order"]), limits, tree=tree)
            said = {"layers": sorted(confine.names(layers)), "results": results(asked)}
        except BaseException as error:
            said = {"problem": f"{type(error).__name__}: {error}"}
        with open(writing, "w") as pipe:
            pipe.write(json.dumps(said))
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = json.loads(pipe.read())
    os.wait()
    return said


async def launched(asked: dict) -> dict:
    from kernel_lsp.confinement import Confinement, Limits, clean_environment, entry
    from kernel_lsp.confinement.layers import names

    order = asked["order"]
    sys.executable = os.environ.pop("LAUNCHER", sys.executable)
    begun = await entry.start(
        (asked["world"]["PYTHON"], "-I", "-B", __file__, "inside"),
        confinement=Confinement(
            scratch=order["scratch"],
            readable=(os.path.dirname(__file__), *order.get("readable", ())),
            hidden=tuple(order.get("hidden", ())),
            gpu=order["gpu"],
        ),
        limits=Limits(**asked["limits"]),
        environment=clean_environment(),
        stdin=entry.PIPE,
    )
    out, err = await begun.process.communicate(json.dumps(asked).encode())
    try:
        return {"layers": sorted(names(begun.layers)), **json.loads(out)}
    except ValueError:
        return {"problem": err.decode(errors="replace")[-500:]}


def results(asked: dict) -> dict:
    found = {}
    for number, case in enumerate(asked["cases"]):
        folder = os.path.join(asked["order"]["scratch"], f"{asked['run']}-{number}")
        os.mkdir(folder)
        if len(asked["cases"]) == 1:
            found[case["name"]] = tried(case, folder, asked["world"])
            break
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            attempt(case, folder, asked["world"], writing)
        os.close(writing)
        with open(reading) as pipe:
            heard = select.select([pipe], [], [], LIMIT_S)[0]
            said = pipe.readline() if heard else ""  # what it has forked may hold the pipe
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found[case["name"]] = (
            json.loads(said) if said else {"error": "it ended without a word", "errno": None}
        )
    return found


def attempt(case: dict, folder: str, world: dict, writing: int) -> None:
    begun = os.getpid()
    said = tried(case, folder, world)
    if os.getpid() == begun:  # not in a fork that it has made
        os.write(writing, json.dumps(said).encode() + b"\n")
    os._exit(0)


def tried(case: dict, folder: str, world: dict) -> dict:
    """What came of it."""
    said = {"error": "", "errno": None, "found": ""}
    signal.alarm(LIMIT_S)
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> int:
        if result == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def call(*numbers: int) -> int:
        return check(libc.syscall(*map(ctypes.c_long, numbers)))

    names = {**MODULES, **world, "libc": libc, "check": check, "call": call}
    names["TCP"], names["UDP"] = tuple(world["TCP"]), tuple(world["UDP"])
    try:
        os.chdir(folder)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        exec(case["code"], names)
        said["found"] = str(names.get("found", ""))[:2000]
    except BaseException as error:
        said["error"] = f"{type(error).__name__}: {error}"[:200]
        said["errno"] = getattr(error, "errno", None)
    return said


if __name__ == "__main__":
    main()
