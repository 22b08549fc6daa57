"""The gate on another machine: its processes there, its verdicts here.

    machines.py     what the setting `judge_on` names: a machine reached by ssh, a node of Slurm
    shipping.py     our own code as one line of text; nothing of ours is installed there
    shim.py         unpacks it there, runs the gate server, removes it again
    gate_server.py a gate there, asked in lines of text (messages.py)
    connection.py   this end: starts ssh or srun, asks, notices when nobody answers any more
    link.py         one connection for all who ask, made when it is needed
    remote_gate.py  a `Gate` whose verdicts come over the link

Who may log in, and how, is the business of the user's own ssh and Slurm. Candidates are confined
there as here, and refused where they cannot be. Not covered: whole programs, which are timed
here."""
