from __future__ import annotations

import pytest

from splitfl.planning import DEVICES, LINKS, device, link


def test_the_named_devices_and_links_are_there():
    assert {"raspberry-pi-3", "raspberry-pi-4", "raspberry-pi-5", "jetson-nano", "laptop", "gpu-server"} <= set(DEVICES)
    assert {"phone-low", "phone-mid", "phone-high"} <= set(DEVICES)
    assert set(LINKS) == {
        *("wifi-10", "wifi-50", "wifi-100", "4g", "5g"),
        *("ethernet-100", "ethernet-1000", "lan", "lora-like", "loopback"),
    }


def test_every_entry_is_plausible_and_says_where_it_comes_from():
    for known in DEVICES.values():
        assert known.source
        assert 1e9 < known.flops < 1e14
        assert known.memory >= 2**29
        assert 0 < known.idle < known.busy
    for known in LINKS.values():
        assert known.source
        for each in (known.up, known.down):
            assert each.bandwidth > 0
            assert 0 < each.latency <= 1
    pis = [DEVICES[f"raspberry-pi-{model}"].flops for model in (3, 4, 5)]
    assert pis == sorted(pis)


def test_rates_are_bytes_per_second():
    assert link("wifi-50").up.transfer(6_250_000) == 1.0


def test_an_unknown_name_lists_the_names_and_the_closest():
    with pytest.raises(
        ValueError, match=r"device = 'rasberry-pi-4', expected one of raspberry-pi-3, .*; did you mean ra"
    ):
        device("rasberry-pi-4")
    with pytest.raises(ValueError, match=r"link = 'wifi50', expected one of wifi-10, .*; did you mean wifi-50"):
        link("wifi50")
    with pytest.raises(ValueError, match=r"link = 'zzz', expected one of .*loopback$"):
        link("zzz")
