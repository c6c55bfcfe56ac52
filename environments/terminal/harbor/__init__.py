"""Folders of Harbor tasks: the format, where its folders lie, and the rule of rewards."""
