"""Turnkeeper for MCP clients: tools, resources and prompts over stdio (`turnkeeper mcp`) and HTTP (`/mcp`)."""
