"""The settings: where a value comes from, and what is refused."""

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcomm
from hpcomm import ConfigError, _core, _ffi
from hpcomm.config import TCP_STREAMS, Config, read_secret, resolve, settings, unknown_variables


def test_defaults_when_nothing_is_said() -> None:
    assert resolve({}, {}) == Config()


def test_argument_overrides_variable_overrides_default() -> None:
    environ = {"HPCOMM_TIMEOUT": "2.5", "HPCOMM_DEBUG": "info", "HPCOMM_YIELD": "1e-4"}
    config = resolve(environ, {"timeout": 4, "spin": None})
    assert (config.timeout, config.debug, config.yield_, config.spin) == (4.0, "INFO", 1e-4, -1.0)


def test_transports_are_asked_by_their_properties() -> None:
    kinds = ("", "default", "mapped", "socket")
    assert [",".join(_core.transports(of)) for of in kinds] == ["shm,verbs,tcp,loop", "shm,verbs,tcp", "shm", "tcp"]


def test_empty_variable_counts_as_unset() -> None:
    assert resolve({"HPCOMM_TIMEOUT": ""}, {}) == Config()


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("HPCOMM_TIMEOUT", "soon", "must be a number of seconds"),
        ("HPCOMM_TIMEOUT", "0", "must be a number of seconds, more than 0"),
        ("HPCOMM_TIMEOUT", "-1", "must be a number of seconds, more than 0"),
        ("HPCOMM_TIMEOUT", "nan", "must be a finite number of seconds"),
        ("HPCOMM_TRANSPORT", "carrier-pigeon", "there is no transport 'carrier-pigeon'; there are shm"),
        ("HPCOMM_SPIN", "inf", "must be a finite number of seconds"),
        ("HPCOMM_LOOP_SEED", "-1", "must be an integer from 0 to 2"),
        ("HPCOMM_LOOP_SEED", "1.5", "must be an integer from 0 to 2"),
        ("HPCOMM_DEBUG", "LOUD", "must be one of WARN, INFO, TRACE"),
        ("HPCOMM_SILENCE", "0", "must be a number of seconds, more than 0"),
        ("HPCOMM_TCP_STREAMS", "0", "must be an integer from 1 to 8"),
        ("HPCOMM_TCP_STREAMS", "9", "must be an integer from 1 to 8"),
        ("HPCOMM_TCP_STREAMS", "two", "must be an integer from 1 to 8"),
        ("HPCOMM_MASTER_PORT", "65536", "must be an integer from 0 to 65535"),
        ("HPCOMM_OVERLAP", "yes", "must be 0 or 1"),
        ("HPCOMM_WAY", "fast", "must be auto or paper"),
    ],
)
def test_bad_value_names_variable_value_and_kind(variable: str, value: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}='{value}': {wanted}"):
        resolve({variable: value}, {})
    argument = next(setting.argument for setting in settings() if setting.variable == variable)
    with pytest.raises(ConfigError, match=f"^{argument}='{value}': {wanted}"):
        resolve({}, {argument: value})


def test_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'timeuot'; did you mean timeout\?"):
        resolve({}, {"timeuot": 1})
    with pytest.raises(ConfigError, match="no setting 'backend': give transport, as in transport=\"shm,tcp\""):
        resolve({}, {"backend": "gloo"})
    with pytest.raises(ConfigError, match=r"timeout=datetime.timedelta.*: must be a number of seconds"):
        resolve({}, {"timeout": timedelta(seconds=1)})
    with pytest.raises(ConfigError, match="timeline=5: must be the path of a file"):
        resolve({}, {"timeline": 5})


def test_unknown_variable_names_the_nearest() -> None:
    told = unknown_variables({"HPCOMM_TRANSPROT": "shm", "HPCOMM_TIMEOUT": "1", "PATH": "/bin"})
    assert told == ["HPCOMM_TRANSPROT is not a setting of hpcomm; did you mean HPCOMM_TRANSPORT?"]


def test_defaults_are_those_of_the_library() -> None:
    c = _ffi.ffi.new("hpc_config *")
    _ffi.lib.hpc_config_init(c)
    config = Config()
    names = ("timeout", "spin", "loop_seed", "silence", "tcp_streams", "tcp_window")
    assert {name: getattr(config, name) for name in names} == {name: getattr(c, name) for name in names}
    assert _ffi.lib.HPC_TCP_STREAMS == TCP_STREAMS


def test_wrong_lists_of_users_are_refused() -> None:
    c, out = _ffi.ffi.new("hpc_config *"), _ffi.ffi.new("hpc_context **")
    for users, n, sentence in (([1] * 33, 33, "n_users is 33; it must be 0 to 32"), (None, 1, "users is NULL while")):
        _ffi.lib.hpc_config_init(c)
        kept = _ffi.ffi.NULL if users is None else _ffi.ffi.new("uint32_t[]", users)
        c.users, c.n_users = kept, n
        assert _ffi.lib.hpc_context_create(0, 1, c, out) < 0
        assert sentence in _ffi.ffi.string(_ffi.lib.hpc_last_error().message).decode()


@pytest.mark.parametrize("value", [1.5, None, "1.5", [1]])
def test_integers_are_not_rounded(value: object) -> None:
    if value is None:
        assert resolve({}, {"tcp_streams": value}).tcp_streams == 1
        return
    with pytest.raises(ConfigError, match="tcp_streams="):
        resolve({}, {"tcp_streams": value})


def test_a_congestion_control_that_the_kernel_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'tcp_congestion is "nocontrol"; this process may choose: .*reno'):
        hpcomm.init(tcp_congestion="nocontrol")
    with hpcomm.init(tcp_congestion="reno") as ctx:  # which every kernel has
        assert ctx.config.tcp_congestion == "reno"


def test_a_window_has_bytes() -> None:
    with pytest.raises(ConfigError, match="tcp_window="):
        resolve({}, {"tcp_window": -1})
    with hpcomm.init(tcp_window=65536) as ctx:
        assert ctx.config.tcp_window == 65536


# ---- the secret ----------------------------------------------------------------------------------------------------


def secret_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"0123456789abcdef", b"0123456789abcdef"),
        (b"0123456789abcdef\n", b"0123456789abcdef"),
        (b"0123456789abcde\n\n", b"0123456789abcde\n"),
        (b"\0" * 4096 + b"\n", b"\0" * 4096),
    ],
)
def test_secret_is_the_file_without_its_last_newline(tmp_path: Path, content: bytes, secret: bytes) -> None:
    assert read_secret(secret_file(tmp_path, content)) == secret


def test_no_file_is_no_secret() -> None:
    assert read_secret("") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o644])
def test_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, b"0123456789abcdef", mode)
    with pytest.raises(ConfigError, match=rf"HPCOMM_SECRET_FILE={path} .*mode {mode:04o}.*chmod 600 {path}"):
        read_secret(path)


@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n", b"x" * 4098])
def test_secret_of_a_wrong_length_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="must be 16 to 4096"):
        read_secret(secret_file(tmp_path, content))


def test_secret_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"Is a directory|not a regular file"):
        read_secret(str(tmp_path))
    with pytest.raises(ConfigError, match="not a regular file"):
        read_secret("/dev/zero")


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
