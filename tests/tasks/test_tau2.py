"""tau2 tasks: the environment and its reward, the loader, and the real data."""

import copy
import gzip
import json
from pathlib import Path

import pytest

from metaharness.errors import TaskError
from metaharness.tasks import Item, SplitSizes, load_task, retail
from metaharness.tasks.domain import NO_CALL
from metaharness.tasks.tau2 import DOMAINS, load_tau2, read_domain
from metaharness.tasks.tau2_environment import Tau2Environment

DATA = Path(__file__).parents[1] / "data/tasks"
STORE = json.loads((DATA / "retail_store.json").read_text("utf-8"))
HOME = STORE["users"]["ann_1"]["address"]
AWAY = {**HOME, "address1": "2 Elm"}
W1 = {"order_id": "#W1"}
CANCEL = {"reason": "no longer needed"}


def item_of(actions=(), told=(), basis=("DB",), start=None):
    actions = [
        {"name": name, "arguments": arguments, "compare": None}
        for name, arguments in actions
    ]
    meta = {
        "actions": actions,
        "communicate_info": list(told),
        "reward_basis": list(basis),
        "start": start or {"data": {}, "calls": []},
    }
    return Item("1", "q", "a", meta)


def store_of(item=None):
    return Tau2Environment(retail.TOOLS, STORE, item or item_of())


def done(environment, name, arguments):
    """The record that a call gives."""
    reply = environment.call(name, arguments)
    assert not reply.error, reply.text
    return json.loads(reply.text)


@pytest.fixture(autouse=True)
def unchanged():
    before = copy.deepcopy(STORE)
    yield
    assert before == STORE


def test_episodes_share_nothing():
    one, two = store_of(), store_of()
    done(one, "cancel_pending_order", {**W1, **CANCEL})
    done(one, "modify_user_address", {"user_id": "ann_1", **AWAY})
    assert done(two, "get_order_details", W1) == STORE["orders"]["#W1"]
    assert done(store_of(), "get_user_details", {"user_id": "ann_1"})["address"] == HOME


CANCEL_W1 = ("cancel_pending_order", {**W1, **CANCEL})


def test_the_reward_wants_the_state_and_what_is_to_be_told():
    environment = store_of(item_of([CANCEL_W1], ["1234.50", "Blue"]))
    assert environment.reward("1234.50, blue") == 0.0
    environment.call(*CANCEL_W1)
    assert environment.reward("It is $1,234.50 for the BLUE one.") == 1.0
    assert environment.reward("It is 1234.50 for the blue one.") == 1.0
    for wrong in ("", "1234.50", "blue", "1,2,3,4.50 blue"):
        assert environment.reward(wrong) == 0.0


def test_more_than_the_gold_actions_is_wrong():
    environment = store_of(item_of([CANCEL_W1]))
    environment.call(*CANCEL_W1)
    environment.call("get_order_details", W1)
    assert environment.reward("") == 1.0
    environment.call("modify_user_address", {"user_id": "ann_1", **AWAY})
    assert environment.reward("") == 0.0
    environment.call("modify_user_address", {"user_id": "ann_1", **HOME})
    assert environment.reward("") == 1.0


def test_another_way_to_the_same_state_counts():
    other = ("cancel_pending_order", {"order_id": "#W4", **CANCEL})
    environment = store_of(item_of([CANCEL_W1, other]))
    environment.call(*other)
    assert environment.reward("") == 0.0
    environment.call(*CANCEL_W1)
    assert environment.reward("") == 1.0


def test_an_action_that_leaves_no_trace_is_wanted_where_the_basis_says_so():
    transfer = ("transfer_to_human_agents", {"summary": "help"})
    for basis, reward in ((("DB",), 1.0), (("DB", "ACTION"), 0.0)):
        environment = store_of(item_of([transfer], basis=basis))
        assert environment.reward("") == reward
        environment.call("transfer_to_human_agents", {"summary": "other"})
        assert environment.reward("") == reward
        environment.call(*transfer)
        assert environment.reward("") == 1.0


def test_an_episode_starts_from_the_items_own_state():
    start = {
        "data": {"users": {"ann_1": {"address": AWAY}, "new_3": {"user_id": "new_3"}}},
        "calls": [{"name": CANCEL_W1[0], "arguments": CANCEL_W1[1]}],
    }
    environment = store_of(item_of(start=start))
    assert environment.reward("") == 1.0
    user = done(environment, "get_user_details", {"user_id": "ann_1"})
    assert user["address"] == AWAY and user["email"] == "ann@example.com"
    assert done(environment, "get_order_details", W1)["status"] == "cancelled"
    assert done(environment, "get_user_details", {"user_id": "new_3"})


TODO = {
    "tasks": {"task_1": {"task_id": "task_1", "title": "t", "status": "pending"}},
    "users": {"user_1": {"user_id": "user_1", "name": "Ann", "tasks": ["task_1"]}},
}


def brief(number, **more):
    return {
        "id": f"t{number}",
        "user_scenario": {"instructions": f"Please create task number {number}."},
        "evaluation_criteria": {
            "actions": [
                {
                    "name": "create_task",
                    "arguments": {"title": f"T{number}", "user_id": "user_1"},
                }
            ]
        },
        **more,
    }


def save(folder, tasks, places=None):
    folder.mkdir(exist_ok=True)
    (folder / "mock.tasks.json").write_text(json.dumps(tasks))
    (folder / "mock.db.json.gz").write_bytes(gzip.compress(json.dumps(TODO).encode()))
    (folder / "mock.split_tasks.json").write_text(json.dumps(places or {}))
    (folder / "mock.policy.md").write_text("Be kind.")


@pytest.fixture
def local(tmp_path):
    places = {"test": ["t1", "t2", "t3"], "train": [f"t{n}" for n in range(4, 12)]}
    save(tmp_path / "tau2", [brief(n) for n in range(1, 12)], places)
    return tmp_path


def test_a_domain_is_a_task_that_only_its_environment_grades(local):
    task = load_task("tau2_mock", data_dir=local, sizes=SplitSizes(1, 2, 2, 3))
    assert task.scorer is None and task.name == "tau2_mock"
    assert sorted(item.uid for item in task.test) == [
        f"tau2/mock/t{n}" for n in (1, 2, 3)
    ]
    item = task.pool[0]
    number = item.uid.removeprefix("tau2/mock/t")
    assert item.question.endswith(f"Request: Please create task number {number}.")
    assert item.answer == (
        '{"name": "create_task", "arguments": {"user_id": "user_1", "title": '
        f'"T{number}"}}}}'
    )
    assert task.instructions == "Be kind."
    assert play(task.environment(item), item) == (1.0, [])
    assert task.environment(item).reward("") == 0.0


def play(environment, item):
    """Reward and error replies of an episode that makes the gold calls."""
    replies = [
        environment.call(action["name"], action["arguments"])
        for action in item.meta["actions"]
    ]
    answer = "; ".join(item.meta["communicate_info"])
    return environment.reward(answer), [r.text for r in replies if r.error]


def test_the_question_holds_the_whole_brief_and_what_came_before(local):
    told = {
        "persona": "brief",
        "instructions": {
            "known_info": "You are Ann.",
            "reason_for_call": "You want a pot.",
            "task_instructions": ".",
            "unknown_info": None,
        },
    }
    turns = [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "name": "create_task",
                    "arguments": {"user_id": "user_1", "title": "n"},
                }
            ],
        },
        {"role": "tool", "content": "done"},
    ]
    row = brief(1, user_scenario=told, initial_state={"message_history": turns})
    save(local / "tau2", [row])
    found = read_domain(local, "mock")
    (item,) = found.items[""]
    assert item.question.split("\n")[1:] == [
        "Who you are: You are Ann.",
        "Manner: brief",
        "Request: You want a pot.",
        "What was said and done before:",
        "user: Hello",
        'assistant called create_task with {"user_id": "user_1", "title": "n"}',
        "tool: done",
    ]
    environment = Tau2Environment(DOMAINS["mock"], found.tables, item)
    assert done(environment, "get_task", {"task_id": "task_2"})["title"] == "n"
    assert environment.reward("") == 0.0


def test_only_tasks_that_say_nothing_of_actions_are_left_out(local):
    rows = [
        brief(1, evaluation_criteria={"nl_assertions": ["kind"]}),
        brief(2, evaluation_criteria={"actions": []}),
        brief(3),
    ]
    save(local / "tau2", rows)
    items = read_domain(local, "mock").items[""]
    assert [item.uid[-2:] for item in items] == ["t2", "t3"]
    assert items[0].answer == NO_CALL


def test_missing_and_malformed_data_is_named_with_a_remedy(local):
    with pytest.raises(
        TaskError, match="tau2_mock: expected its data, got no --data-d"
    ):
        load_task("tau2_mock")
    with pytest.raises(TaskError, match="no retail.tasks.json in .*; fetch https://"):
        load_task("tau2_retail", data_dir=local)
    with pytest.raises(TaskError, match="a domain among retail, mock, got 'telecom'"):
        load_tau2(data_dir=local, seed=0, sizes=None, domain="telecom")
    unknown = {"actions": [{"name": "fly", "arguments": {}}]}
    save(local / "tau2", [brief(1, evaluation_criteria=unknown)])
    with pytest.raises(TaskError, match="task 't1': expected fields .* at 'fly'"):
        load_task("tau2_mock", data_dir=local)
    save(local / "tau2", ["t1"])
    with pytest.raises(TaskError, match="task 't1': expected fields"):
        load_task("tau2_mock", data_dir=local)
    save(local / "tau2", {})
    with pytest.raises(TaskError, match="expected a JSON list, got dict"):
        load_task("tau2_mock", data_dir=local)
    (local / "tau2/mock.tasks.json").write_text("[")
    with pytest.raises(TaskError, match="mock.tasks.json: expected JSON, got"):
        load_task("tau2_mock", data_dir=local)
    (local / "tau2/mock.db.json.gz").write_bytes(b"no")
    with pytest.raises(TaskError, match="expected a file, packed or not"):
        load_task("tau2_mock", data_dir=local)


@pytest.fixture(scope="module")
def real():
    return {}


@pytest.fixture
def data(request, shared, real):
    if request.param not in real:
        real[request.param] = read_domain(shared, request.param)
    return request.param, real[request.param]


def every(found):
    return [item for rows in found.items.values() for item in rows]


# Upstream's own actions that its policy or its data forbid, each with the reason.
NO_PRODUCT = "asks for an item's id as if it were a product's"
NO_USER = "looks for a user under an email or zip code that nobody has, then goes on"
NO_ORDER = "asks for orders by ids without their 'W'"
GOLD_ERRORS = {
    "retail": {
        **dict.fromkeys((2, 3, 4), NO_PRODUCT),
        **dict.fromkeys((35, 37, 38, 39, 54, 55, 67, 68), NO_USER),
        **dict.fromkeys((46, 47), NO_ORDER),
        64: "exchanges an order that is pending, then modifies it, which is right",
        105: "exchanges for more than the balance of the gift card, all it calls",
    },
    "mock": {},
}
# Solved without any call: nothing is to be changed or told (105: see above).
IDLE = {"retail": {10, 12, 25, 50, 57, 65, 105}, "mock": set()}
NUM_ITEMS = {"retail": 114, "mock": 7}


@pytest.mark.parametrize("data", DOMAINS, indirect=True)
def test_real_gold_actions_solve_every_task(data):
    domain, found = data
    before = hash(json.dumps(found.tables))
    errors = {}
    for item in every(found):
        reward, errors[item.uid] = play(
            Tau2Environment(DOMAINS[domain], found.tables, item), item
        )
        assert reward == 1.0, item.uid
    wrong = {number(uid) for uid, texts in errors.items() if texts}
    assert wrong == set(GOLD_ERRORS[domain])
    assert len(errors) == NUM_ITEMS[domain]
    assert hash(json.dumps(found.tables)) == before


@pytest.mark.parametrize("data", DOMAINS, indirect=True)
def test_real_tasks_are_not_solved_by_doing_nothing_but_for_those_named(data):
    domain, found = data
    idle, told = set(), set()
    for item in every(found):
        environment = Tau2Environment(DOMAINS[domain], found.tables, item)
        answer = "; ".join(item.meta["communicate_info"])
        told |= {item.uid} if environment.reward(answer) else set()
        idle |= {number(item.uid)} if environment.reward("") else set()
        writes = any(a["name"].startswith(WRITES) for a in item.meta["actions"])
        assert not (writes and item.uid in told) or item.uid == "tau2/retail/105"
    assert idle == IDLE[domain]


WRITES = ("cancel", "modify", "exchange", "return", "create", "update")


def number(uid):
    name = uid.rpartition("/")[2]
    return int(name) if name.isdecimal() else name


@pytest.mark.parametrize("data", DOMAINS, indirect=True)
def test_real_tasks_fill_disjoint_splits_within_upstreams(data, shared):
    domain, found = data
    task = load_task(f"tau2_{domain}", data_dir=shared)
    rows = {
        split: [item.uid for item in items] for split, items in task.splits().items()
    }
    assert {split: len(uids) for split, uids in rows.items()} == SIZES[domain]
    uids = [uid for split in rows.values() for uid in split]
    assert len(set(uids)) == len(uids)
    if "test" in found.items:
        assert set(rows["test"]) <= {item.uid for item in found.items["test"]}
    for item in every(found):
        assert json.loads(json.dumps(item.meta)) == item.meta


SIZES = {
    "retail": {"pool": 16, "train": 38, "validation": 20, "test": 40},
    "mock": {"pool": 1, "train": 2, "validation": 1, "test": 2},
}
