"""Queries of runs and rollouts, for the routes, the command line and the pages.

Each function takes a connection of ``RolloutStore.reading``, whose queries all see one state of the database::

    with store.reading() as connection:
        if connection is not None:  # None where nothing was ever stored
            page = list_rollouts(connection, RolloutFilter(run="my-run"))

``runs`` has the runs, ``listed`` rollouts without their conversations, ``conversations`` those with them, ``tasks`` and
``curve`` the tasks and the rewards of a run, ``reports`` its report and figures like it, ``paging`` the pages of their
lists, and ``counterparts`` the one filter that leaves out recorded sessions which were uploaded too. Where ``owner`` is
given, only rollouts that this key made exist. Times are in UTC, by the clients' clocks. A rollout's ``max_reward`` is
the highest reward of its messages, its ``total_reward`` their sum, its ``reward`` what it earned by the rule of its run
(``reward_rule``); all are None where no message has a reward and where the rollout was lost. A lost one is in no mean
and in no rate.
"""
