"""The databases of each test: SQLite for all, and PostgreSQL for each test with a store, except the modules below.

A test has a store if one of its fixtures requests the server: `place_of`, or a constellation, which is two machines
on a server. A single test that cannot run on a server has the mark `sqlite_only`, with the reason.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest

# Folders and modules with no test on PostgreSQL, and why. A module in an exempt folder that could run is listed itself.
SQLITE_ALONE: Mapping[str, str] = {
    "tests/test_": "read the repository; there is no store",
    "tests/public_projects/": "reads what was recorded of public projects; there is no store",
    "tests/simulation/": "one home, in virtual time; a server has a clock of its own",
    "tests/unit/agent_runtime/": "functions and classes by themselves; there is no store",
    "tests/unit/turnkeeper/constellation/": "functions and classes by themselves; what reads a store reads a file that it makes",
    "tests/unit/turnkeeper/gateway/": "functions and classes by themselves; there is no store",
    "tests/unit/examples/": "the checker of histories by itself; there is no store",
    "tests/unit/task_runner/": "functions and classes by themselves; there is no store",
    "tests/unit/turnkeeper/bus/": "the format of envelope files",
    "tests/unit/turnkeeper/client/": "functions and classes by themselves; there is no store",
    "tests/unit/turnkeeper/config/": "functions and classes by themselves; there is no store",
    "tests/unit/turnkeeper/rpc/": "functions and classes by themselves; there is no store",
    "tests/unit/turnkeeper/test_": "functions and classes by themselves; there is no store",
    "tests/acceptance/test_answers_like_langgraphs.py": "the form of answers; what they hold, on a server too: test_langgraph_api.py",
    "tests/acceptance/test_reads_of_older_homes.py": "files of homes of earlier versions",
    "tests/acceptance/test_unseen_texts.py": "plants texts into each column of a file",
    "tests/unit/turnkeeper/storage/server/test_url.py": "the text of a URL; no connection is made",
    "tests/unit/turnkeeper/storage/test_damage.py": "damages pages of SQLite files",
    "tests/unit/turnkeeper/storage/test_damage_of_logs.py": "damages write-ahead logs of SQLite files",
    "tests/unit/turnkeeper/storage/test_database_worker_thread.py": "a file has one writer thread; a server has a pool",
    "tests/unit/turnkeeper/storage/test_locking.py": "the lock files of a home",
    "tests/unit/turnkeeper/storage/test_files.py": "small files of a home",
    "tests/conformance/bus/": "envelope files; as rows they are held to the same by conformance/stores/test_leases.py",
    "tests/integration/bus/": "envelope files, and folders of agents in terminals",
    "tests/integration/cluster/test_checking.py": "checks histories that it writes itself; there is no store",
    "tests/integration/workspace/test_folder.py": "reads a folder of the author's; there is no store",
    "tests/integration/lifecycle/test_damaged_stores.py": "damages pages of SQLite files",
    "tests/integration/lifecycle/test_lost_stores.py": "takes files of stores away; a database: test_restored_database.py",
    "tests/integration/lifecycle/test_lost_commits.py": "puts an older file of a store back",
    "tests/integration/lifecycle/test_mixed_builds.py": "processes of one machine; of several: integration/cluster/",
    "tests/integration/lifecycle/test_machine_trouble.py": "disks and files of one home",
    "tests/integration/lifecycle/test_moved_home.py": "a home's folder goes to another place",
    "tests/integration/lifecycle/test_real_daemons.py": "backups of one home, and its processes; of several: integration/cluster/",
    "tests/integration/lifecycle/test_restart.py": "restarts one machine's daemons, by files",
    "tests/integration/lifecycle/test_restored_home.py": "the files of a backup; a database: test_restored_database.py",
    "tests/integration/lifecycle/test_setup.py": "commands that make a home",
    "tests/integration/lifecycle/test_supervisor.py": "processes of one machine; of several: integration/cluster/test_nodes.py",
    "tests/integration/lifecycle/test_unreachable_daemons.py": "sockets and locks of one machine",
    "tests/integration/delivery/": "the courier by itself; its rows on a server: acceptance/test_deliveries.py",
    "tests/integration/loops/": "what may be said of loops; how a runner keeps them: integration/runner/test_self_paced_*",
    "tests/integration/peers/": "keys and files of the one home that speaks with peers",
    "tests/integration/web/": "the gateway without daemons",
    "tests/integration/runner/test_bad_input.py": "commands without a daemon, which open the file of the store",
    "tests/integration/runner/test_daemon_process.py": "dies between steps of a file's way; of a server's: cluster/",
    "tests/integration/runner/test_event_commands.py": "commands without a daemon, which open the file of the store",
    "tests/integration/runner/test_event_daemon_kills.py": "dies between steps of a file's way; of a server's: cluster/",
    "tests/integration/runner/test_export_watch.py": "a folder of files beside the store",
    "tests/integration/runner/test_loop_commands.py": "commands without a daemon, which open the file of the store",
    "tests/integration/runner/test_pauses_of_many.py": "commands without a daemon, which open the file of the store",
    "tests/integration/runner/test_task_commands.py": "commands without a daemon, which open the file of the store",
    "tests/integration/runner/test_trail_first.py": "locks the file of a store",
    "tests/integration/runtime/test_answers_at_the_command_line.py": "words of commands; as rows: test_decision_rows.py",
    "tests/integration/runtime/test_attacks.py": "what the guard lets a call do, which is decided before any store",
    "tests/integration/runtime/test_continuity.py": "counts what a model is sent",
    "tests/integration/runtime/test_cost_of_a_turn.py": "counts commits and syncs of files",
    "tests/integration/runtime/test_daemon_process.py": "starts the daemon of one home from a shell",
    "tests/integration/runtime/test_foreign_graphs.py": "forms of graphs; their checkpoints: conformance/checkpointer/",
    "tests/integration/runtime/test_graph_check.py": "a command that reads graphs; there is no store",
    "tests/integration/runtime/test_guarded_": "what the guard lets a call do; its questions as rows: test_approvals.py",
    "tests/integration/runtime/test_handoff_and_shutdown.py": "handoffs and shutdowns are files of one machine",
    "tests/integration/runtime/test_inputs_of_clients.py": "inputs of an author's graph; crashes of turns: test_turns.py",
    "tests/integration/runtime/test_interrupt_dialects.py": "forms of answers; as rows: test_decision_rows.py",
    "tests/integration/runtime/test_mcp_servers.py": "the servers and kept descriptions of one home",
    "tests/integration/runtime/test_messages_from_terminals.py": "folders of agents in terminals",
    "tests/integration/runtime/test_models.py": "what is sent to models, and answered by them",
    "tests/integration/runtime/test_models_of_tasks.py": "what is sent to models",
    "tests/integration/runtime/test_one_approval.py": "what the guard lets a call do; as rows: test_decision_rows.py",
    "tests/integration/runtime/test_project_forms.py": "forms of graphs; their checkpoints: conformance/checkpointer/",
    "tests/integration/runtime/test_rehearse_command.py": "a command that reads turns by the daemon",
    "tests/integration/runtime/test_remembering_graph.py": "one graph; memory: integration/workspace/test_memory_store.py",
    "tests/integration/runtime/test_reports_of_a_graph.py": "what a graph tells while it runs, which is in no store",
    "tests/integration/runtime/test_sealed_inboxes.py": "seals of envelope files",
    "tests/integration/runtime/test_forks.py": "forks of an author's graph; on a server: acceptance/test_forks_of_clients.py",
    "tests/integration/runtime/test_state_writes.py": "writes into an author's graph; crashes of turns: test_turns.py",
    "tests/integration/runtime/test_stops_of_a_graph.py": "forms of graphs; their checkpoints: conformance/checkpointer/",
    "tests/integration/runtime/test_streamed_words.py": "what a graph tells while it runs, which is in no store",
    "tests/integration/runtime/test_tool_files.py": "functions of a file, which are called without a store",
    "tests/integration/runtime/test_trail_first.py": "locks the file of a store",
    "tests/integration/runtime/test_turn_kills.py": "kills one machine's runtime; one of several: test_several_machines.py",
    "tests/integration/workspace/test_categories_from_a_fire.py": "the example's categories, one machine's",
    "tests/integration/workspace/test_commands_on_a_daemon.py": "words of commands; their rows: test_workspace_commands.py",
    "tests/integration/workspace/test_deviations_migration.py": "a file of an earlier version",
    "tests/acceptance/test_agents_speak_as_themselves.py": "folders and outboxes of agents in terminals",
    "tests/acceptance/test_audit.py": "puts back the files of a backup",
    "tests/acceptance/test_boundaries.py": "the words and bounds of commands on one home",
    "tests/acceptance/test_built_wheel.py": "what the built package needs and holds",
    "tests/acceptance/test_catch_up.py": "outages in real time on one machine; of several: cluster/test_withdrawal.py",
    "tests/acceptance/test_crashes.py": "dies between steps of a file's way; of a server's: cluster/, test_several_machines.py",
    "tests/acceptance/test_erase.py": "overwrites the files of the stores",
    "tests/acceptance/test_example_project.py": "an author's graph on one machine",
    "tests/acceptance/test_fields_of_requests.py": "each field over a peer's and a file's way",
    "tests/acceptance/test_forms_of_graphs.py": "forms of graphs; their checkpoints: conformance/checkpointer/",
    "tests/acceptance/test_how_do_i.py": "a page of commands, typed into one home",
    "tests/acceptance/test_keys.py": "the key files of one home",
    "tests/acceptance/test_react_hook_in_browsers.py": "what a browser shows; the same answers on both: test_langgraph_clients.py",
    "tests/acceptance/test_kills_of_webhooks.py": "on a server, the lease of a killed process lasts a minute",
    "tests/acceptance/test_kills_of_chained_tasks.py": "on a server, the lease of a killed process lasts a minute",
    "tests/acceptance/test_graphs_without_messages.py": "forms of graphs; their checkpoints: conformance/checkpointer/",
    "tests/acceptance/test_calendar.py": "the calendar file of one home",
    "tests/acceptance/test_tools_of_servers.py": "the servers and kept descriptions of one home",
    "tests/acceptance/test_watched_folders.py": "the folders and files of one home",
    "tests/acceptance/test_webhooks_of_runs.py": "how runs reach the outbox; its rows on a server: test_deliveries.py",
    "tests/acceptance/test_runs_that_begin_later.py": "kills one machine's processes; a task's fires on a server: test_several_machines.py",
    "tests/acceptance/test_langgraph_runs.py": "the queue of one machine's runtime",
    "tests/acceptance/test_locked_stores.py": "locks the files of the stores",
    "tests/acceptance/test_page_outages.py": "processes of one machine that end or hang, whatever their store",
    "tests/acceptance/test_page_questions.py": "a browser and an author's graph on one machine; as rows: test_decision_rows.py",
    "tests/acceptance/test_page_tasks.py": "a browser's forms on one machine; on several, the page is that of test_page.py",
    "tests/acceptance/test_peers.py": "keys and files of the homes that are peers",
    "tests/acceptance/test_questions_of_a_graph.py": "an author's graph on one machine; as rows: test_decision_rows.py",
    "tests/acceptance/test_real_week.py": "steps the machine's clock; on a server the database's counts",
    "tests/acceptance/test_several_graphs.py": "authors' graphs on one machine; of several: runtime/test_owners_of_threads.py",
    "tests/acceptance/test_terminal_agents.py": "folders of agents in terminals",
    "tests/acceptance/test_unanswered_approvals.py": "steps the machine's clock; on a server the database's counts",
    "tests/acceptance/test_upgrade_after_kill.py": "files of earlier versions; a server's: integration/*/test_migrations.py",
    "tests/acceptance/test_upgrades.py": "files of earlier versions; a server's: integration/*/test_migrations.py",
    "tests/acceptance/test_web.py": "processes of one machine; what they show: test_page.py",
    "tests/acceptance/test_what_is_loaded.py": "what an interpreter imports; there is no store",
    "tests/acceptance/test_wrong_input.py": "commands without a daemon, and files of a home that are damaged",
}


class Module(NamedTuple):
    """A collected module of tests.

    Attributes:
        could: True if one of its tests has a store that may be on a server.
        runs: True if one of its tests runs on a server.
    """

    could: bool
    runs: bool


MODULES = pytest.StashKey[Mapping[str, Module]]()


def entry_of(module: str) -> str:
    """Return the entry that restricts a module to SQLite. Empty if there is none."""
    found = [entry for entry in SQLITE_ALONE if module.startswith(entry)]
    return max(found, key=len, default="")


def has_store(item: pytest.Item) -> bool:
    """Return True if a test has a store that may be on a server."""
    return "postgres_server" in getattr(item, "fixturenames", ())


def module_of(item: pytest.Item) -> str:
    """Return the path of a test's module."""
    return item.nodeid.partition("::")[0]


def runs_on_server(item: pytest.Item) -> bool:
    """Return True if a test runs with its stores on a server."""
    return has_store(item) and not entry_of(module_of(item))


def modules(items: Iterable[pytest.Item]) -> Mapping[str, Module]:
    """Return each module of the collected tests."""
    found: dict[str, Module] = {}
    for item in items:
        could, runs = found.get(name := module_of(item), Module(could=False, runs=False))
        here = runs_on_server(item) and item.get_closest_marker("sqlite_only") is None
        found[name] = Module(could=could or has_store(item), runs=runs or here)
    return found
