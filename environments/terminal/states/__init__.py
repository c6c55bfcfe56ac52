"""State of a task's folder: what a solution leaves, compared with what the agent left.

The modules ``tree`` and the comparers are text for examinations: functions on the standard library alone, which
``program`` puts together with a task's tests.
"""
