"""Who may sign requests to the tests' store beside its administrator."""

from headrace.demo.identity import READ_ONLY, new_identity

READER = new_identity("reader", READ_ONLY)  # may read everything
NOBODY = new_identity("nobody", ("Read:another-bucket",))  # is known, and may do nothing that a test asks for
