"""What every framework integration needs: asyncio, missing documents, tool calls, last reports, settled fields."""
