"""A runtime in Python that does what PROTOCOL.md says, for job type synthetic.extract_facts_runtime. Tests and `make run` use it.

    python -m tests.support.reference_runtime --base-url http://127.0.0.1:8000 --spool DIRECTORY   # until SIGTERM or Ctrl-C

It knows the server by PROTOCOL.md alone and imports nothing of it. Its token comes from RUNTIME_TOKEN, or from a file that is read again
when the server refuses the token.
"""
