"""The settings: where a value comes from, and what is refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcomm import ConfigError, _core
from hpcomm.config import TRANSPORTS, Config, resolve, settings, unknown_variables


def test_defaults_when_nothing_is_said() -> None:
    assert resolve({}, {}) == Config()


def test_argument_overrides_variable_overrides_default() -> None:
    environ = {"HPCOMM_TIMEOUT": "2.5", "HPCOMM_DEBUG": "info", "HPCOMM_YIELD": "1e-4"}
    config = resolve(environ, {"timeout": 4, "spin": None})
    assert (config.timeout, config.debug, config.yield_, config.spin) == (4.0, "INFO", 1e-4, -1.0)


def test_empty_variable_counts_as_unset() -> None:
    assert resolve({"HPCOMM_TIMEOUT": ""}, {}) == Config()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HPCOMM_TIMEOUT", "soon"),
        ("HPCOMM_TIMEOUT", "0"),
        ("HPCOMM_TIMEOUT", "-1"),
        ("HPCOMM_TIMEOUT", "nan"),
        ("HPCOMM_TRANSPORT", "carrier-pigeon"),
        ("HPCOMM_SPIN", "inf"),
        ("HPCOMM_LOOP_SEED", "-1"),
        ("HPCOMM_LOOP_SEED", "1.5"),
        ("HPCOMM_DEBUG", "LOUD"),
    ],
)
def test_bad_value_names_variable_and_value(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}='{value}'"):
        resolve({variable: value}, {})
    argument = next(setting.argument for setting in settings() if setting.variable == variable)
    with pytest.raises(ConfigError, match=f"{argument}='{value}'"):
        resolve({}, {argument: value})


def test_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'timeuot'; did you mean timeout\?"):
        resolve({}, {"timeuot": 1})


def test_unknown_variable_names_the_nearest() -> None:
    told = unknown_variables({"HPCOMM_TRANSPROT": "shm", "HPCOMM_TIMEOUT": "1", "PATH": "/bin"})
    assert told == ["HPCOMM_TRANSPROT is not a setting of hpcomm; did you mean HPCOMM_TRANSPORT?"]


def test_transports_are_those_of_the_library() -> None:
    assert set(TRANSPORTS) == set(_core.transports())


def test_each_setting_says_what_it_is() -> None:
    for setting in settings():
        assert setting.help
        assert setting.kind
        assert setting.variable.startswith("HPCOMM_")


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.lists(st.integers())))
def test_any_timeout_is_a_positive_finite_number_or_refused(value: Any) -> None:
    try:
        timeout = resolve({}, {"timeout": value}).timeout
    except ConfigError:
        return
    assert timeout > 0
    assert math.isfinite(timeout)
