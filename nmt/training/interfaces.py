"""The network interface by which the processes of several machines reach each other."""

import fcntl
import os
import socket
import struct

from nmt.errors import ConfigError

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def check_interface() -> None:
    """Raise ConfigError if other machines could not reach the address that gloo would choose.

    Without GLOO_SOCKET_IFNAME gloo takes the address of the host name, or loopback if the name has
    none.
    """
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if machines == 1 or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        problem = "has no address"
    else:
        if not address.startswith("127."):
            return
        problem = f"has the loopback address {address}"
    interface = interface_towards(os.environ.get("MASTER_ADDR", "")) or "NAME"
    raise ConfigError(
        f"this machine's name {name} {problem}, where other machines cannot reach it; set "
        f"GLOO_SOCKET_IFNAME={interface} (and NCCL_SOCKET_IFNAME on GPUs) to the network "
        "interface to use, on every machine"
    )


def interface_towards(host: str) -> str | None:
    """The name of the interface that leads to a host, if it can be found out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
            own = probe.getsockname()[0]
        except OSError:
            return None
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        return next((name for name in names if interface_address(probe, name) == own), None)


def interface_address(any_socket: socket.socket, name: str) -> str | None:
    """The IPv4 address of a network interface."""
    request = struct.pack("256s", name.encode())
    try:
        answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
