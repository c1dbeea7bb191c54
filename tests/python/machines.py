"""The files by which some machines describe themselves, as their kernels write them."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def meminfo(total_gb: float, free_gb: float) -> dict[str, str]:
    lines = [f"MemTotal:       {int(total_gb * 1e9 / 1024)} kB", "MemFree:         100000 kB"]
    lines.append(f"MemAvailable:   {int(free_gb * 1e9 / 1024)} kB")
    return {"proc/meminfo": "\n".join(lines) + "\n"}


def arm_cores(parts: list[str], features: str) -> dict[str, str]:
    blocks = [
        f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU part\t: {part}\nCPU revision\t: 0\n"
        for number, part in enumerate(parts)
    ]
    return {"proc/cpuinfo": "\n".join(blocks)}


def jetson_orin(root: Path) -> Path:
    """A Jetson AGX Orin with JetPack 6."""
    files = arm_cores(["0xd42"] * 12, "fp asimd aes crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp")
    for number in range(12):
        cpu = f"sys/devices/system/cpu/cpu{number}"
        files[f"{cpu}/cpufreq/cpuinfo_max_freq"] = "2201600\n"
        files[f"{cpu}/cpufreq/scaling_governor"] = "schedutil\n"
    files |= {"sys/devices/system/cpu/online": "0-11\n", **meminfo(30.7, 24.5)}
    files |= {
        "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "etc/nv_tegra_release": "# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter\n",
        "usr/lib/aarch64-linux-gnu/libnvinfer.so.8.6.2": "",
        "usr/lib/aarch64-linux-gnu/libnvinfer.so.8": "",
        "usr/local/cuda/lib64/libcudart.so.12.2.140": "",
    }
    return write(root, files)


def rk3588(root: Path) -> Path:
    """A board with an RK3588: 4 little cores, 4 big ones."""
    features = (
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
    )
    files = arm_cores(["0xd05"] * 4 + ["0xd0b"] * 4, features)
    for number in range(8):
        cpu = f"sys/devices/system/cpu/cpu{number}"
        files[f"{cpu}/cpu_capacity"] = "530\n" if number < 4 else "1024\n"
        files[f"{cpu}/cpufreq/scaling_governor"] = "performance\n"
    files |= {"sys/devices/system/cpu/online": "0-7\n", **meminfo(16.4, 11.2)}
    files |= {
        "proc/device-tree/model": "Radxa ROCK 5B\0",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter\n",
        "sys/class/misc/rknpu/dev": "10:1\n",
    }
    return write(root, files)


def x86_server(root: Path, flags: str = "fpu sse4_2 avx avx2 fma avx512_vnni") -> Path:
    """Four virtual cores, in a container with 2 GB, of which 1.5 GB are taken."""
    blocks = [f"processor\t: {number}\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n" for number in range(4)]
    files = {"proc/cpuinfo": "\n".join(blocks), **meminfo(64.0, 60.0)}
    for number in range(4):
        files[f"sys/devices/system/cpu/cpu{number}/topology/core_id"] = f"{number}\n"
    files |= {
        "sys/devices/system/cpu/online": "0-3\n",
        "sys/fs/cgroup/memory.max": "2000000000\n",
        "sys/fs/cgroup/memory.current": "1500000000\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n",
    }
    return write(root, files)
