"""How fast this is, and how that compares: `make bench`, or `python -m tests.benchmarks [measure …] [--quick]`.

All figures of a run come from one throw-away PostgreSQL (fsync on, pinned settings, a folder of its own) on the machine that runs the
workers and the load too. Rounds alternate between the systems that are compared; the table gives the median, the range and the load average
that the machine had. Absolute figures say little about another machine, so nothing fails because of one: read the ratios.

- pickup    from the commit of a job to the call of its executor, both by the database's clock; Poisson arrivals that wait for nothing.
- drain     no-op jobs that wait already, two worker processes each; completions are counted in the database. Ours does all its
            bookkeeping (claim, usage row before and after the call, attempt, result, events); only the provider's HTTP is left out.
            Once as it is, where attempts that come together share a commit, and once with a commit for each.
- ceiling   what PostgreSQL itself can do with the very statements of our engine, one job at a time: recorded from it, replayed by pgbench.
- inflight  provider calls of 10 s at the same time: memory (PSS of all engine processes), database connections, time until all are done.
- admin     the server's time for pages of the back office, with 1,000 jobs and with 1,000,000; nothing that open pages share is reused.
- protocol  full cycles of the runtime protocol over HTTP (poll with autoLock, snapshot, key, invocation log, result), beside a Django view
            without middleware and DRF that executes the recorded statements of each call, and beside pgbench with all of them; and the
            processor time of the web server for each call.

The peers are set up as their documentation says: procrastinate with its psycopg connector and LISTEN, and as many jobs at once as it is
fastest with; django-q2 with its ORM broker, as it comes (results kept) and with `save_limit = -1`. All log warnings only. Each system has
a database of its own, copied from a prepared one before every round, so that no round finds another's dead rows.

Layout: `peers` says how each system is started and counted, `load` (a process with that system's settings) creates its jobs, `app` holds
our job definitions and what peers execute; one module per measure. `--smoke` is for the test: seconds, and figures that mean nothing.
"""
