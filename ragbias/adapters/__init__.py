"""What every framework integration needs: asyncio, missing documents, tool calls, fields settled by a given lm."""
