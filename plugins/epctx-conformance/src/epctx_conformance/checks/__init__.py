"""Checks of the kit: functions with `@check(group, title)`, which the table imports
when it is asked for.
"""
