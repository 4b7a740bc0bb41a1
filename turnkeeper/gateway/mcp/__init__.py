"""Turnkeeper for MCP clients: tools, resources and prompts, on stdio (`turnkeeper mcp`) and over HTTP, under `/mcp`."""
