"""Tasks that follow other tasks, with their answers, and values in the prompts of tasks."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="flows",
    offers={
        "answers": "task_runner.dispatcher.flows.answers:answers",
        "followed": "task_runner.dispatcher.flows.prompts:followed",
        "paused followers": "task_runner.dispatcher.flows.prompts:paused_followers",
        "tasks before": "task_runner.dispatcher.flows.answers:explained",
        "missing before": "task_runner.dispatcher.flows.answers:missing",
        "all before succeeded": "task_runner.dispatcher.flows.answers:is_whole",
        "variables of a prompt": "task_runner.dispatcher.flows.prompts:check",
        "prompt with an event": "task_runner.dispatcher.flows.prompts:with_event",
        "prompt as sent": "task_runner.dispatcher.flows.prompts:completed",
        "a run as asked": "task_runner.dispatcher.flows.prompts:as_asked",
        "rendered prompt": "task_runner.dispatcher.flows.prompts:rendered",
    },
)
