"""tau2's mock domain: a list of tasks, and users who have them.

Written from the domain's data, policy and gold actions; no code of upstream's.
"""

from metaharness.tasks.domain import (
    Given,
    Records,
    Refused,
    Tool,
    make_tool,
    text,
    written,
)


def get_user(records: Records, given: Given) -> str:
    user = records.read("users", given["user_id"])
    if user is None:
        raise Refused(f"expected the id of a user, got {given['user_id']!r}.")
    return written(user)


def get_task(records: Records, given: Given) -> str:
    task = records.read("tasks", given["task_id"])
    if task is None:
        raise Refused(f"expected the id of a task, got {given['task_id']!r}.")
    return written(task)


def create_task(records: Records, given: Given) -> str:
    """The new id is "task_N", N one more than the number of tasks or the next free."""
    user_id, title = given["user_id"], given["title"]
    if records.read("users", user_id) is None:
        raise Refused(f"expected the id of a user, got {user_id!r}.")
    if not title.strip():
        raise Refused("expected a title, got none; ask for one.")
    number = 1 + sum(1 for _ in records.rows("tasks"))
    while records.read("tasks", f"task_{number}") is not None:
        number += 1
    task = {
        "task_id": f"task_{number}",
        "title": title,
        "description": given.get("description", ""),
        "status": "pending",
    }
    records.add("tasks", task["task_id"], task)
    records.edit("users", user_id)["tasks"].append(task["task_id"])
    return written(task)


def update_task_status(records: Records, given: Given) -> str:
    if records.read("tasks", given["task_id"]) is None:
        raise Refused(f"expected the id of a task, got {given['task_id']!r}.")
    task = records.edit("tasks", given["task_id"])
    task["status"] = given["status"]
    return written(task)


def transfer_to_human_agents(records: Records, given: Given) -> str:
    """Changes nothing: what people do afterwards is not part of the episode."""
    del records, given
    return "The user is being transferred to a human agent."


_USER = {"user_id": text("id of the user")}
_TASK = {"task_id": text("id of the task, such as 'task_1'")}
_STATUS = {"type": "string", "enum": ["pending", "completed"]}

TOOLS: dict[str, Tool] = {
    tool.spec.name: tool
    for tool in (
        make_tool(get_user, "Show a user and the ids of the user's tasks.", _USER),
        make_tool(get_task, "Show a task.", _TASK),
        make_tool(
            create_task,
            "Create a task for a user; its status is 'pending'.",
            {
                **_USER,
                "title": text("what the task is called"),
                "description": text("what is to be done"),
            },
            optional=("description",),
        ),
        make_tool(
            update_task_status,
            "Set the status of a task.",
            {**_TASK, "status": _STATUS},
        ),
        make_tool(
            transfer_to_human_agents,
            "Hand the user over to a human, where no other tool can do what is wanted.",
            {"summary": text("what the user wants")},
        ),
    )
}
