"""The endpoints: each reads its DTO, asks one service, and answers with a DTO. What they mean stands in PROTOCOL.md."""
