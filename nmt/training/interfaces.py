"""The network interface by which the processes of several machines reach each other."""

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
    raise ConfigError(
        f"this machine's name {name} {problem}, where other machines cannot reach it; set "
        "GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME on GPUs) to the network interface to use on "
        f"each machine, here one of: {', '.join(interfaces()) or 'none has an address'}"
    )


def interfaces() -> list[str]:
    """The names of the network interfaces that have an IPv4 address, but for loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        return [name for name in names if has_address(any_socket, name)]


def has_address(any_socket: socket.socket, name: str) -> bool:
    """Whether a network interface has an IPv4 address, as far as the system says."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError:
        return False
    return True
