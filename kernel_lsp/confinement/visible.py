"""What of the machine a confined child sees: an allow-list, wherever homes and projects lie.

Programs, libraries and what they read of /etc, the interpreter with its packages, a few device
files. Nothing of a home, of /mnt, /srv, /run or a folder that somebody made at the top: what a
child needs of those is named in its confinement. Mounts (mounts.py) and Landlock (landlock.py)
follow the same list. Standard library only."""

from __future__ import annotations

import os
import stat
import sys

from kernel_lsp.confinement import linux

if sys.platform != "win32":  # a server there imports this too, and confines nothing
    import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OPEN = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix", "gnu", "snap")
"""Top-level folders that are visible as a whole."""
PARTLY = ("etc", "proc", "sys")
"""Those that stay in their place and of which only the parts below may be read."""
PARTS = (
    "/opt/nvidia", "/opt/cuda*", "/opt/rocm*", "/opt/amdgpu*", "/opt/intel", "/opt/gcc*",
    "/run/opengl-driver",
    "/sys/devices", "/sys/class", "/sys/bus", "/sys/dev", "/sys/module", "/sys/fs/cgroup",
    "/sys/kernel/mm",
)  # fmt: skip
"""Further folders with software in them, and what tells about the hardware."""
ETC = (
    "alternatives", "bash.bashrc", "debian_version", "fonts", "gai.conf", "group", "host.conf",
    "hosts",
    "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "locale.alias",
    "locale.conf",
    "magic", "mime.types", "nsswitch.conf", "nvidia", "OpenCL", "os-release", "passwd", "profile",
    "profile.d", "protocols", "python3*", "redhat-release", "services", "shells", "ssl/certs",
    "ssl/openssl.cnf", "static", "terminfo", "timezone", "vulkan",
)  # fmt: skip
PROC = (
    "cpuinfo", "devices", "driver", "filesystems", "loadavg", "meminfo", "modules", "stat", "sys",
    "uptime",
    "version", "vmstat",
)  # fmt: skip
"""What is readable where /proc also shows the processes of others."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
GPU_DEVICES = frozenset({"nvidiactl", "nvidia-uvm", "dxg", "kfd"})
"""Device files that computing needs, beside one for each GPU (nvidia0). Not their neighbors, by
which memory of other processes is read (nvidia-uvm-tools), a display or a switch is set
(nvidia-modeset, nvidia-nvswitch), or disks are reached (nvidia-fs)."""
GPU_PARTS = "nvidia-caps"
"""Folder of a divided GPU's parts, each a file; who may divide it is a file there too, which only
root reads."""
NAMING = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "ROCM_HOME", "ROCM_PATH", "VIRTUAL_ENV")
"""Variables that hold a folder with software."""
LISTING = ("PATH", "LD_LIBRARY_PATH")


def matching(pattern: str, below: str = "") -> list[str]:
    """What glob.glob finds, which would take a launcher longer to import: paths with at most one
    ``*`` in each name. ``below``: a folder, in whose own name nothing counts as a pattern."""
    found = [below]
    for part in pattern.strip("/").split("/"):
        begin, star, end = part.partition("*")
        if not star:
            found = [f"{place}/{part}" for place in found]
            continue
        found = [
            f"{place}/{name}"
            for place in found
            for name in sorted(name for name in _listed(place) if name.startswith(begin))
            if name[len(begin) :].endswith(end) and (name[:1] != "." or begin)
        ]
    return [path for path in found if os.path.lexists(path)]


def _listed(folder: str) -> list[str]:
    with linux.Ignoring(OSError):
        return os.listdir(folder or "/")
    return []


def system(*, own_proc: bool) -> list[str]:
    """What every child may read; ``own_proc``: its /proc shows its own processes only."""
    found = [f"/{name}" for name in OPEN]
    patterns = [
        *PARTS,
        *(f"/etc/{name}" for name in ETC),
        *(() if own_proc else (f"/proc/{n}" for n in PROC)),
    ]
    for pattern in patterns:
        found += matching(pattern) if "*" in pattern else [pattern]
    return [*found, "/proc"] if own_proc else found


def software() -> list[str]:
    """What the list above holds outside the folders that are visible as a whole."""
    found = [
        path for pattern in PARTS for path in matching(pattern) if not path.startswith("/sys/")
    ]
    return [*found, *program_folders()]


def program_folders() -> list[str]:
    """Where Python, its packages and the compilers lie, wherever the user has put them."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {
        here,
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *sys.path,
        *_of_editable_packages(),
    }
    found |= {os.environ.get(name, "") for name in NAMING}
    for name in LISTING:
        found |= set(os.environ.get(name, "").split(":"))
    kept = private()
    return sorted(path for path in map(os.path.normpath, found - {""}) if is_program(path, kept))


def private() -> set[str]:
    """Folders that are never shown as a whole, nor what they lie in."""
    home = pwd.getpwuid(os.getuid()).pw_dir if _has_account() else "/"
    return {*map(os.path.normpath, (os.path.expanduser("~"), home)), "/", "/tmp", "/home", "/root"}


def _has_account() -> bool:
    with linux.Ignoring(KeyError):
        return bool(pwd.getpwuid(os.getuid()))
    return False


def is_program(path: str, private: Iterable[str]) -> bool:
    """A home is no folder of programs, although it may stand in somebody's PATH. All are
    normalized: os.path.commonpath takes 2 ms for what a launcher asks."""
    below = f"{path.rstrip('/')}/"
    return os.path.isabs(path) and not any(f"{place}/".startswith(below) for place in private)


def _of_editable_packages() -> list[str]:
    """Folders of packages that setuptools has installed by a finder instead of a line in a .pth
    file."""
    found: list[str] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", None)
            found += [str(path) for path in mapping.values()] if isinstance(mapping, dict) else []
    return found


def devices(*, gpu: bool) -> list[str]:
    """Device files that confined code may open and that are here; with `gpu` those of GPUs too."""
    found = [f"/dev/{name}" for name in DEVICES]
    return [path for path in (*found, *(gpu_devices() if gpu else ())) if os.path.exists(path)]


def gpu_devices(folder: str = "/dev") -> list[str]:
    """Device files that GPUs compute by, in the folder, sorted."""
    found = {f"{folder}/{name}" for name in os.listdir(folder) if _computes(name)}
    for part in matching(f"{folder}/{GPU_PARTS}/*"):
        with linux.Ignoring(OSError):
            if os.stat(part).st_mode & stat.S_IROTH:
                found.add(part)
    return sorted(found)


def _computes(name: str) -> bool:
    return name in GPU_DEVICES or (name[:6] == "nvidia" and name[6:].isdecimal())


def covered_folders() -> list[str]:
    """Top-level folders of which a child sees nothing but what it is shown."""
    found = (f"/{name}" for name in sorted(os.listdir("/")) if name not in (*OPEN, *PARTLY))
    return [path for path in found if os.path.isdir(path) and not os.path.islink(path)]
