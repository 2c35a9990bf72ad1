"""asyncio: links that carry the protocol's messages."""
