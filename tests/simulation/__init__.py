"""Both daemons, and the process that delivers, in one process, in virtual time, under faults that a seed chooses.

What is real: the assemblies of the runner and the runtime with all their parts, LangGraph, the checkpointer, SQLite and
its files, the files of envelopes, the bytes on the wire. What is not: time (:mod:`loop`), threads (a batch of a store
is a step of the loop, :mod:`processes`), sockets (:mod:`transport`), the answers of the graph. A process dies at any
await and starts again; connections break, hang, and lose answers; writes and syncs fail (:mod:`disk`); clocks step. Many faults aim at points of the protocol (:mod:`points`):
send, accept, claim, tool, checkpoint, outcome, archive. A power cut loses what was not synced (:mod:`power`).

    python -m tests.simulation --seeds 0:100                    all kinds of faults, some forty in five minutes
    python -m tests.simulation --seeds 0:9 --minutes 30 --between 40 --works 360   the same number in half an hour
    python -m tests.simulation --seeds 0:100 --faults writes    only writes that fail
    make simulate SEEDS=0:100
    make simulate SEEDS=0:100 SIMULATE_ARGS=--replay         each seed in two new processes, whose logs are compared
    python -m tests.simulation.guards                           guards taken out, and the seeds until that is found

A run is a script (:mod:`script`): tasks and faults, drawn from a seed. The same script gives the same log, byte for byte,
in any process (:mod:`replay`): each event, statement, message and change of a file of envelopes. After the faults all is
healed: tasks run on, are paused, and everything must come to its end. Then :mod:`checking` holds what is left against what was promised. Each of its rules is proved by planted violations.

If a seed fails, the smallest script that breaks the same promise is printed as Python. Paste it into `scenarios.py`
before the defect is mended: the tests run each scenario there.

The load: tasks by the clock, by events, after other tasks and in loops; turns that propose, and turns that ask their
author, who approves, rejects or is silent; messages, runs, cancels (:mod:`people`, :mod:`graph`).

In half of the seeds a third process delivers results (:mod:`delivering`), and dies, too. Its target fails, hangs, and loses
its answers.

What is not simulated: the gateway with its hooks, one attempt of a delivery (HTTP, mail, commands), servers of MCP, a process that dies inside a commit of
SQLite, two runners, PostgreSQL. Kills of real processes and chaos test these.
"""
