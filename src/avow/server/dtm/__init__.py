"""dtm's API on top of pledges: HTTP, JSON-RPC and gRPC."""
