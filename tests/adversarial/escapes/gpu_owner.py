"""Run as a program: another process with memory of the GPU that is filled with a secret.

    gpu_owner.py SECRET BYTES [stay]

Standard output: one JSON object, the handle by which it is shared and its address. With ``stay`` it keeps the
memory until its standard input ends; without, it is gone then. Standard library only."""

import ctypes
import json
import sys

PAGE = 2**21


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def main() -> None:
    secret, size = sys.argv[1].encode().ljust(64), int(sys.argv[2])
    cuda = ctypes.CDLL("libcuda.so.1")

    def cu(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: {code}")

    context, at, handle = ctypes.c_void_p(), ctypes.c_uint64(), Handle()
    cu("cuInit", 0)
    cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    cu("cuCtxSetCurrent", context)
    cu("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    page = secret * (PAGE // len(secret))
    for begin in range(0, size, PAGE):
        cu("cuMemcpyHtoD_v2", ctypes.c_uint64(at.value + begin), page, ctypes.c_size_t(PAGE))
    cu("cuIpcGetMemHandle", ctypes.byref(handle), at)
    print(json.dumps({"handle": bytes(handle.bytes).hex(), "address": at.value}), flush=True)
    if sys.argv[3:] == ["stay"]:
        sys.stdin.read()


if __name__ == "__main__":
    main()
