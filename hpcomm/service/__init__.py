"""The hub as a service: one set of servers for the jobs of many tenants (PHub, sections 3.1, 3.3 and 3.4).

`hpcomm hub serve` runs a hub (hub.py). A tenant calls create_service once, connect_service on each worker, and
parameter_hub(ctx, params, servers="hub"). docs/service.md is the guide to both.
"""

from .client import connect_service, create_service
from .config import ADMIN
from .connection import HubConnection
from .context import ServiceContext
from .exchange import HubExchange, hub_exchange, is_hub
from .handle import HubAddress, ServiceHandle, address

__all__ = [
    "ADMIN",
    "HubAddress",
    "HubConnection",
    "HubExchange",
    "ServiceContext",
    "ServiceHandle",
    "address",
    "connect_service",
    "create_service",
    "hub_exchange",
    "is_hub",
]
