"""A Django app that exists in benchmarks alone: what our jobs and the peers' tasks execute."""
