"""Several machines and a host name that leads nowhere: one line that says what to set."""

import socket

import pytest

from nmt.errors import ConfigError
from nmt.training.interfaces import check_interface


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    return monkeypatch


@pytest.mark.usefixtures("two_machines")
def test_a_host_name_of_the_loopback_interface_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"localhost has the loopback address 127.*set GLOO_SO"):
        check_interface()


def test_a_host_name_without_address_is_refused(two_machines: pytest.MonkeyPatch) -> None:
    two_machines.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    with pytest.raises(ConfigError, match=r"invalid has no address.*GLOO_SOCKET_IFNAME"):
        check_interface()


def test_the_interface_that_the_user_names_is_taken(two_machines: pytest.MonkeyPatch) -> None:
    two_machines.setenv("GLOO_SOCKET_IFNAME", "eth0")
    check_interface()


def test_one_machine_may_have_any_name(two_machines: pytest.MonkeyPatch) -> None:
    two_machines.setenv("GROUP_WORLD_SIZE", "1")
    check_interface()
