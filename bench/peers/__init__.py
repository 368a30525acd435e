"""The gateway beside gateways that other people have written."""
