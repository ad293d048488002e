"""The server's configuration: flags, OPFERRY_* variables and a TOML file say the same things.

A flag beats a variable, a variable beats the file, the file beats the default.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import exceptions as settings_exceptions

from opferry.core.limits import LimitsConfig
from opferry_server.access.options import (
    AuthOptions,
    ConnectionOptions,
    TlsOptions,
    check_access,
)
from opferry_server.backends.base import BackendSettings
from opferry_server.packages import LIBRARY, VENDOR, Packages
from opferry_server.tenants import TenantLimits
from opferry_server.workers.starts import Bounds

ENV_PREFIX = "OPFERRY_"
"""Every option is also a variable: this, then its name in capitals, "__" for the dot."""


PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a package may be called."""

HEADER_BYTES = 16 * 1024
"""More than what a unary message takes beside its tensor data."""


MOST_JUDGES = 16
"""The most judges that are not asked for: each takes some tens of megabytes."""


class ConfigError(Exception):
    """The configuration is wrong; the text has one line for each fault."""


_LIMIT_FIELDS: dict[str, Any] = {
    item.name: (
        int,
        Field(
            item.default,
            ge=item.metadata["least"],
            le=item.metadata["most"],
            description=item.metadata["help"],
        ),
    )
    for item in fields(LimitsConfig)
}

LimitOptions: Any = create_model(
    "LimitOptions", __config__=ConfigDict(extra="forbid"), **_LIMIT_FIELDS
)
"""`LimitsConfig` as options, with its own sentences as their help."""


_DEVICE_FIELDS: dict[str, Any] = {
    item.name: (type(item.default), Field(item.default, description=item.metadata["help"]))
    for item in fields(BackendSettings)
    if item.metadata
}

DeviceOptions: Any = create_model(
    "DeviceOptions", __config__=ConfigDict(extra="forbid"), **_DEVICE_FIELDS
)
"""`BackendSettings`, but for the device's number, as options."""


class TenantOptions(BaseModel):
    """What one tenant may have."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(1.0, gt=0, description="its share of the devices' time")
    requests_in_flight: int | None = Field(
        None, ge=1, description="requests for which it may hold memory at a time"
    )
    bytes_in_flight: int | None = Field(
        None, ge=1, description="bytes of inputs and outputs for which it may hold memory"
    )
    queue_count: int | None = Field(
        None, ge=1, description="requests that may wait, in place of limits.queue_count"
    )
    tensor_bytes: int | None = Field(None, ge=1, description="the largest tensor")
    requests_per_s: float | None = Field(
        None, gt=0, description="requests that it may begin in a second"
    )
    device_leases: int = Field(1, ge=0, description="devices that it may lease at a time")


class TraceOptions(BaseModel):
    """Where traces go."""

    model_config = ConfigDict(extra="forbid")

    endpoint: str = Field(
        default="",
        pattern="^(https?://.+)?$",
        description="the URL of a collector that takes traces by OTLP over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces; empty: as the variables OTEL_* say, or nowhere",
    )


class ServerConfig(BaseSettings):
    """Run the opferry server: it runs NPU operators for remote callers."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        cli_prog_name="opferry-server",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    config: Path | None = Field(None, description="a TOML file with these options")
    address: str = Field("127.0.0.1:50051", description="where to listen; port 0 takes a free one")
    server_id: str = Field(
        "",
        pattern="^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?$",
        description="what the ids of its requests begin with; each server of a farm has its own. "
        "Empty: the host's name and four random digits",
    )
    insecure: bool = Field(
        False,
        description="listen on an address that others can reach, without credentials or TLS",
    )
    admin_address: str = Field(
        "",
        description="where metrics and the status page are, by HTTP and without credentials: "
        "host:port, such as 127.0.0.1:9464; empty: nowhere",
    )
    audit_log: str = Field(
        "",
        description="a file that gets a line for each request, of who ran what; SIGHUP opens it "
        "again. Empty: none",
    )
    trace: TraceOptions = Field(
        default_factory=TraceOptions, description="where traces go, for OpenTelemetry"
    )
    backend: str = Field(
        "cpu", description="what runs the operators: cpu, aclnn, torch-npu, or module:Class"
    )
    workers: int = Field(1, ge=1, le=256, description="worker processes, one for each device")
    judges: int = Field(
        0,
        ge=0,
        le=256,
        description="processes that make inputs, compute goldens and compare, for validations; "
        "0: as many as there are processors, at most 16",
    )
    reference_kernel: Literal["auto", "numpy-blocked"] = Field(
        "auto",
        description="what computes the reference: auto compiles it if numba is there, which takes "
        "some seconds the first time",
    )
    grace_s: float = Field(
        20.0, ge=0, description="seconds that running requests get to end when the server stops"
    )
    start_timeout_s: float = Field(
        60.0, gt=0, description="seconds that the workers get to become ready at the start"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="what to log"
    )
    log_format: Literal["json", "console"] = Field("json", description="how to log, to stderr")
    parent_fd: int | None = Field(
        None,
        description="a socket of the process that started the server: told the address, "
        "and the server ends with it",
    )
    packages: Annotated[dict[str, Path], NoDecode] = Field(
        default_factory=dict,
        description="operator packages beside the built-in one: NAME=FOLDER,NAME=FOLDER with "
        "op_api/lib in each folder",
    )
    default_package: str = Field(
        VENDOR, description="the package that runs requests which name none"
    )
    shm: bool = Field(
        True, description="let clients on this host exchange tensors through shared memory"
    )
    shm_users: Annotated[list[int], NoDecode] = Field(
        default_factory=list,
        description="users beside the server's own that may do so: names or numbers, commas "
        "between several",
    )
    recycle_count: int = Field(
        100_000, ge=1, description="requests after which a worker process is replaced"
    )
    recycle_memory_bytes: int = Field(
        16 * 2**30,
        ge=2**28,
        description="memory of its own with which a worker process is replaced",
    )
    device_lease_s: float = Field(
        3600.0, gt=0, description="seconds that a lease of a device may last"
    )
    tenants: Annotated[dict[str, TenantOptions], NoDecode] = Field(
        default_factory=dict,
        description="what each tenant may have, in tables [tenants.NAME] of the file alone; "
        "default: those without one",
    )
    device: DeviceOptions = Field(
        default_factory=DeviceOptions, description="for a backend with a device"
    )
    limits: LimitOptions = Field(default_factory=LimitOptions, description="what is allowed")
    tls: TlsOptions = Field(default_factory=TlsOptions, description="encryption")
    auth: AuthOptions = Field(default_factory=AuthOptions, description="who calls")
    connections: ConnectionOptions = Field(
        default_factory=ConnectionOptions, description="what connections may do"
    )

    @field_validator("shm_users", mode="before")
    @classmethod
    def _users_of_words(cls, given: Any) -> Any:
        """Read names and numbers: with commas between them, as a flag has them, or a list."""
        words = given.split(",") if isinstance(given, str) else given
        if not isinstance(words, list):
            words = [words]
        return [_user_number(str(word).strip()) for word in words if word != ""]

    @field_validator("packages", mode="before")
    @classmethod
    def _packages_of_words(cls, given: Any) -> Any:
        """Read NAME=FOLDER,NAME=FOLDER, as a flag or a variable has it."""
        if not isinstance(given, str):
            return given
        pairs = [pair.partition("=") for pair in given.split(",") if pair]
        if not all(name and folder for name, _, folder in pairs):
            raise ValueError("give NAME=FOLDER, commas between several")
        return {name.strip(): folder.strip() for name, _, folder in pairs}

    @field_validator("tenants", mode="before")
    @classmethod
    def _tenants_of_tables(cls, given: Any) -> Any:
        """Refuse words: there are too many numbers for a flag or a variable."""
        if isinstance(given, str):
            raise ValueError("give tables [tenants.NAME] in the file of --config")
        return given

    @model_validator(mode="after")
    def _may_be_reached(self) -> ServerConfig:
        if not _is_host_port(self.address) and not self.address.startswith("unix:"):
            raise ValueError(f"address {self.address!r} is not host:port, such as 127.0.0.1:50051")
        check_access(self.address, self.insecure, self.tls, self.auth)
        return self

    @field_validator("admin_address")
    @classmethod
    def _host_port_or_none(cls, given: str) -> str:
        if given and not _is_host_port(given):
            raise ValueError("give host:port, such as 127.0.0.1:9464, or nothing")
        return given

    @model_validator(mode="after")
    def _unary_fits_message(self) -> ServerConfig:
        limits = self.limits_config
        if limits.unary_bytes + HEADER_BYTES > limits.message_bytes:
            raise ValueError(
                f"limits.unary_bytes is {limits.unary_bytes}; with {HEADER_BYTES} bytes of header "
                f"it must fit limits.message_bytes, {limits.message_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _timeouts_in_order(self) -> ServerConfig:
        times = {
            "device.operator_timeout_ms": self.device.operator_timeout_ms,
            "device.sync_timeout_ms": self.device.sync_timeout_ms,
            "limits.run_ms": self.limits_config.run_ms,
        }
        if self.backend in ("aclnn", "torch-npu") and sorted(set(times.values())) != list(
            times.values()
        ):
            said = ", ".join(f"{name} is {value}" for name, value in times.items())
            raise ValueError(f"{said}; each must be less than the next")
        return self

    @model_validator(mode="after")
    def _packages_are_there(self) -> ServerConfig:
        self.packages = {name: path.expanduser() for name, path in self.packages.items()}
        for name, folder in self.packages.items():
            if name == VENDOR or not PACKAGE_NAME.fullmatch(name):
                raise ValueError(
                    f"packages: {name!r} is no name for a package; allowed are letters, digits, "
                    f"dot, dash and underscore, and not {VENDOR}"
                )
            if not (folder / LIBRARY).is_file():
                raise ValueError(f"packages.{name}: {folder} has no {LIBRARY}")
        if self.default_package not in (VENDOR, *self.packages):
            raise ValueError(
                f"default_package is {self.default_package!r}; packages are "
                f"{', '.join((VENDOR, *self.packages))}"
            )
        return self

    @classmethod
    def options(cls) -> Iterator[tuple[str, FieldInfo]]:
        """Yield all options, those of a table as "table.name"."""
        for name, field in cls.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                for inner, inner_field in field.annotation.model_fields.items():
                    yield f"{name}.{inner}", inner_field
            else:
                yield name, field

    @property
    def tenant_limits(self) -> dict[str, TenantLimits]:
        """What each tenant may have."""
        return {name: TenantLimits(**each.model_dump()) for name, each in self.tenants.items()}

    @property
    def operator_packages(self) -> Packages:
        """The operator packages, the default first."""
        folders = {name: str(folder.resolve()) for name, folder in self.packages.items()}
        return Packages(folders, self.default_package)

    @property
    def judge_count(self) -> int:
        """How many judges there are once somebody validates."""
        return self.judges or min(MOST_JUDGES, _processors())

    @property
    def bounds(self) -> Bounds:
        """How long workers may take, and how old they may become."""
        return Bounds(
            run_s=self.limits_config.run_ms / 1000,
            start_s=self.start_timeout_s,
            job_count=self.recycle_count,
            memory_bytes=self.recycle_memory_bytes,
        )

    def backend_settings(self, device: int, packages: Packages) -> dict[str, BackendSettings]:
        """Return what the backend of a device's worker is told to serve each package."""
        options = self.device.model_dump()
        return {
            name: BackendSettings(
                device=device,
                package=name,
                package_folder=packages.folder(name),
                reference_kernel=self.reference_kernel,
                thread_count=max(1, _processors() // self.workers),
                **options,
            )
            for name in packages.names
        }

    @property
    def judge_settings(self) -> list[BackendSettings]:
        """What the backend of each judge is told."""
        threads = max(1, _processors() // self.judge_count)
        return [
            BackendSettings(
                device=number,
                reference_kernel=self.reference_kernel,
                judge=True,
                thread_count=threads,
            )
            for number in range(self.judge_count)
        ]

    @property
    def limits_config(self) -> LimitsConfig:
        """The limits as both sides know them."""
        return LimitsConfig(**self.limits.model_dump())


def _is_host_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) < 65536


def _user_number(word: str) -> int:
    """Return the number of a user.

    Raises:
        ValueError: if the host has no user of that name.
    """
    if word.isdecimal():
        return int(word)
    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ValueError(f"this host has no user {word!r}; give a name or a number") from None


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def load_config(arguments: Sequence[str]) -> ServerConfig:
    """Return the configuration from command line, environment and file.

    Args:
        arguments: the command line without the program's name.

    Raises:
        ConfigError: for anything unknown or out of range, naming it.
        SystemExit: after --help, and for a command line that cannot be parsed.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", default=os.environ.get(f"{ENV_PREFIX}CONFIG"))
    path = first.parse_known_args(arguments)[0].config
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"config: there is no file {path}")

    class Settings(ServerConfig):
        """Run the opferry server: it runs NPU operators for remote callers.

        `opferry-server doctor` says whether this host can run the backend aclnn; `opferry-server
        token` makes a token.
        """

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            toml = TomlConfigSettingsSource(settings_cls, toml_file=path)
            return init_settings, env_settings, toml

    try:
        command_line: CliSettingsSource[Any] = CliSettingsSource(
            Settings, cli_parse_args=list(arguments)
        )
        # a private argument of the settings' constructor that their type does not show
        build: Any = Settings
        return cast(ServerConfig, build(_cli_settings_source=command_line))
    except ValidationError as err:
        lines = [
            _line(fault["type"], fault["loc"], fault["msg"], fault["input"])
            for fault in err.errors()
        ]
        raise ConfigError("\n".join(lines)) from err
    except (settings_exceptions.SettingsError, ValueError) as err:
        raise ConfigError(str(err)) from err


def _line(kind: str, place: Sequence[int | str], message: str, given: object) -> str:
    """Return one fault in one line: the option, what was given, what is wrong."""
    where = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        known = [name for name, _ in ServerConfig.options()]
        near = get_close_matches(where, known, 1)
        hint = f"; did you mean {near[0]}" if near else ""
        return f"{where}: there is no such option{hint}"
    if not where:
        return message.removeprefix("Value error, ")
    message = message.removeprefix("Value error, ")
    return f"{where} is {given!r}: {message[:1].lower()}{message[1:]}"
