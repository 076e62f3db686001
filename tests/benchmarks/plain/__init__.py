"""A Django project of one view without middleware or DRF, that says to PostgreSQL what the protocol's endpoints say."""
