"""The stubs of the contract in `protos/turnkeeper/v1`; `make protos` generates them."""
