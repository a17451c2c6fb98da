"""Options of an object store: which there are, and which of their values are secret.

Owns the names. They are those of obstore, without the prefix of the service. Must not know what they do.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tidelake.errors import UsageError
from tidelake.store.objects.address import Service

_CLIENT = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only"),
        *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes"),
        *("proxy_url", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
    }
)
_S3 = frozenset(
    {
        *("access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint"),
        *("container_credentials_relative_uri", "container_credentials_full_uri", "metadata_endpoint"),
        *("container_authorization_token_file", "imdsv1_fallback", "role_arn", "role_session_name"),
        *("web_identity_token_file", "sts_endpoint", "checksum_algorithm", "disable_bulk_delete"),
        *("disable_tagging", "request_payer", "server_side_encryption", "sse_bucket_key_enabled"),
        *("sse_customer_key_base64", "sse_kms_key_id", "skip_signature", "unsigned_payload"),
        "virtual_hosted_style_request",
    }
)
_GS = frozenset(
    {
        *("service_account", "service_account_key", "application_credentials", "base_url", "bearer_token"),
        "skip_signature",
    }
)
_AZ = frozenset(
    {
        *("account_name", "account_key", "client_id", "client_secret", "credential_type", "tenant_id"),
        *("authority_host", "sas_key", "token", "use_emulator", "use_fabric_endpoint", "encryption_key"),
        *(
            "endpoint",
            "msi_endpoint",
            "object_id",
            "msi_resource_id",
            "federated_token_file",
            "use_azure_cli",
        ),
        *("skip_signature", "disable_tagging", "fabric_token_service_url", "fabric_workload_host"),
        *("fabric_session_token", "fabric_cluster_identifier"),
    }
)
NAMES: dict[Service, frozenset[str]] = {"s3": _S3, "gs": _GS, "az": _AZ, "abfss": _AZ}
"""The options of each service, besides `_CLIENT` and `credential_provider`, which all have."""

_PROVIDER = "credential_provider"
_SECRET = ("key", "secret", "token", "proxy_url", "credentials", "service_account")
_SECRET_CHARS_MIN = 4


class StoreOptions:
    """Options of a store, sorted by where the driver takes them.

    Attributes:
        config: those of the service and of its HTTP client.
        provider: a function that gives credentials, as obstore calls it; None if there is none.

    Raises:
        UsageError: a name is unknown. The message names all, and no value.
    """

    def __init__(self, service: Service, given: Mapping[str, object]) -> None:
        known = NAMES[service] | _CLIENT | {_PROVIDER}
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise UsageError(
                f"unknown store_options {', '.join(unknown)}: for {service}:// there are "
                f"{', '.join(sorted(known))}"
            )
        self.config: dict[str, Any] = {name: given[name] for name in given if name != _PROVIDER}
        if str(given.get("endpoint", "")).startswith("http://"):
            self.config.setdefault("allow_http", True)
        provider = given.get(_PROVIDER)
        if provider is not None and not callable(provider):
            raise UsageError("store_options: credential_provider must be a function, as obstore calls it")
        self.provider: Callable[..., object] | None = provider
        self.secrets: tuple[str, ...] = tuple(
            value
            for name, value in given.items()
            if isinstance(value, str)
            and len(value) >= _SECRET_CHARS_MIN
            and any(part in name for part in _SECRET)
        )

    def __repr__(self) -> str:
        return "StoreOptions(…)"
