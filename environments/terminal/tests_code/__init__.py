"""The text of tests, read: what they import and start, and how they are run."""
