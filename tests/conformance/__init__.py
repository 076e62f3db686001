"""A conformance suite for the runtime protocol: does a server, or a runtime in whatever language, do what PROTOCOL.md says?

    python -m tests.conformance --base-url http://127.0.0.1:8000 --token rt_…     # a server
    python -m tests.conformance --runtime "my-runtime --server {base_url}"        # a runtime

It knows both sides by the protocol alone. Each prints a table of scenarios; the exit code says whether all passed.
"""
