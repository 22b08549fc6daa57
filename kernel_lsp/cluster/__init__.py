"""Jobs on the nodes of a Ray cluster, one GPU (or one node's CPUs) for each process that does
them.

    async with Cluster(address="10.0.0.1:6379", make=make) as cluster:
        result = await cluster.do("its id", work)

Every job has an id; its result is kept once. What a lost node had under way is done again
elsewhere.

connection.py  Ray itself: is it here, does anybody answer, which nodes there are
node_worker.py what runs on a node: one worker that ``make`` made, and what it stands on
jobs.py        jobs by id: who waits, what comes next, each result once
ranks.py       processes that compute together, a few on each node
pool.py        actors come and go with their nodes, and do the jobs

Only commands and the trainer use this; the server never does. Not covered: starting nodes (`ray
start`), and handing out anything but the work: kernel-lsp is installed on every node, in the same
version."""

from kernel_lsp.cluster.node_worker import About, JobWorker
from kernel_lsp.cluster.pool import Cluster

__all__ = ["About", "Cluster", "JobWorker"]
