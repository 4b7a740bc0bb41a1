"""An MCP server over stdio with the two tools."""

from mcp.server.fastmcp import FastMCP
from tools import search, send_mail

server = FastMCP("web")
server.tool()(search)
server.tool()(send_mail)

if __name__ == "__main__":
    server.run("stdio")
