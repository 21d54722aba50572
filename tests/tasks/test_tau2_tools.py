"""The tools of tau2's domains: what they do, and what the policies forbid."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.tools import ToolReply
from metaharness.tasks import mock_domain, retail
from metaharness.tasks.domain import Records, call_tool
from metaharness.tasks.retail_orders import MODIFIED

DATA = Path(__file__).parents[1] / "data/tasks"
STORE = json.loads((DATA / "retail_store.json").read_text("utf-8"))
HOME = STORE["users"]["ann_1"]["address"]
AWAY = {**HOME, "address1": "2 Elm"}
W1, W2 = {"order_id": "#W1"}, {"order_id": "#W2"}
CANCEL = {"reason": "no longer needed"}
BY_CARD, BY_GIFT, BY_PAL = (
    {"payment_method_id": name} for name in ("card_1", "gift_1", "pal_1")
)
CUP_TO_BLUE = {"item_ids": ["i1"], "new_item_ids": ["i2"]}


def done(records, name, arguments, tools=retail.TOOLS):
    """The record that a call gives."""
    reply = call_tool(tools, records, name, arguments)
    assert not reply.error, reply.text
    return json.loads(reply.text)


@pytest.fixture(autouse=True)
def unchanged():
    before = copy.deepcopy(STORE)
    yield
    assert before == STORE


def test_users_are_found_whatever_the_case():
    records = Records(STORE)
    name = {"first_name": "ann", "last_name": "ROY", "zip": "89073"}
    assert (
        call_tool(retail.TOOLS, records, "find_user_id_by_name_zip", name).text
        == "ann_1"
    )
    email = {"email": "Bob@Example.com"}
    assert (
        call_tool(retail.TOOLS, records, "find_user_id_by_email", email).text == "bob_2"
    )


def test_products_and_items_are_shown():
    records = Records(STORE)
    assert done(records, "list_all_product_types", {}) == {"Cup": "p1", "Pot": "p2"}
    item = done(records, "get_item_details", {"item_id": "j2"})
    assert item["name"] == "Pot" and item["price"] == 20.0
    product = done(records, "get_product_details", {"product_id": "p1"})
    assert product == STORE["products"]["p1"]


def test_a_cancelled_order_is_refunded_where_it_was_paid():
    records = Records(STORE)
    assert done(records, "cancel_pending_order", {"order_id": "#W4", **CANCEL})[
        "payment_history"
    ][1:] == [
        {"transaction_type": "refund", "amount": 30.0, "payment_method_id": "gift_1"}
    ]
    user = done(records, "get_user_details", {"user_id": "ann_1"})
    assert user["payment_methods"]["gift_1"]["balance"] == 80.0


def test_a_payment_moves_to_another_method_which_a_cancellation_then_refunds():
    records = Records(STORE)
    move = {"order_id": "#W4", "payment_method_id": "card_1"}
    assert (
        len(done(records, "modify_pending_order_payment", move)["payment_history"]) == 3
    )
    cancelled = done(records, "cancel_pending_order", {"order_id": "#W4", **CANCEL})
    (last,) = cancelled["payment_history"][3:]
    assert last["payment_method_id"] == "card_1" and last["amount"] == 30.0
    user = done(records, "get_user_details", {"user_id": "ann_1"})
    assert user["payment_methods"]["gift_1"]["balance"] == 80.0


def test_items_of_a_pending_order_change_once_and_are_paid_for_at_once():
    records = Records(STORE)
    changed = done(
        records, "modify_pending_order_items", {**W1, **CUP_TO_BLUE, **BY_GIFT}
    )
    assert [item["item_id"] for item in changed["items"]] == ["i2", "j1", "i1"]
    assert changed["items"][0]["options"] == {"color": "blue"}
    assert changed["payment_history"][-1]["amount"] == 2.2
    assert changed["status"] == MODIFIED
    user = done(records, "get_user_details", {"user_id": "ann_1"})
    assert user["payment_methods"]["gift_1"]["balance"] == 47.8
    for name, more in (
        ("modify_pending_order_items", {**CUP_TO_BLUE, **BY_GIFT}),
        ("modify_pending_order_address", HOME),
        ("cancel_pending_order", CANCEL),
    ):
        assert (
            f"with status '{MODIFIED}'"
            in call_tool(retail.TOOLS, records, name, {**W1, **more}).text
        )


def test_an_exchange_is_noted_and_not_yet_paid():
    records = Records(STORE)
    swap = {"item_ids": ["i1", "j1"], "new_item_ids": ["i2", "j2"]}
    noted = done(records, "exchange_delivered_order_items", {**W2, **swap, **BY_GIFT})
    assert noted["status"] == "exchange requested"
    assert noted["exchanged"] == [["i1", "i2"], ["j1", "j2"]]
    assert noted["exchange_price_difference"] == -7.8
    assert noted["items"] == STORE["orders"]["#W2"]["items"]
    assert len(noted["payment_history"]) == 1


def test_a_return_goes_to_the_original_method_or_a_gift_card():
    for method in (BY_CARD, BY_GIFT):
        call = {**W2, "item_ids": ["j1", "i1"], **method}
        noted = done(Records(STORE), "return_delivered_order_items", call)
        assert noted["status"] == "return requested"
        assert noted["returned"] == ["i1", "j1"]


def test_addresses_of_order_and_user_change_apart():
    records = Records(STORE)
    done(records, "modify_pending_order_address", {**W1, **AWAY})
    user = done(records, "get_user_details", {"user_id": "ann_1"})
    assert user["address"] == HOME
    done(records, "modify_user_address", {"user_id": "ann_1", **AWAY})
    assert done(records, "get_user_details", {"user_id": "ann_1"})["address"] == AWAY
    assert done(records, "get_order_details", W2)["address"] == HOME


SWAP = "modify_pending_order_items"
BACK = "return_delivered_order_items"
PAY = "modify_pending_order_payment"
REFUSED = [
    ("find_user_id_by_email", {"email": "x"}, "expected the email of a user, got 'x'"),
    (
        "find_user_id_by_name_zip",
        {"first_name": "Ann", "last_name": "Roy", "zip": "1"},
        "got those of nobody",
    ),
    ("get_user_details", {"user_id": "x"}, "expected the id of a user, got 'x'"),
    ("get_order_details", {"order_id": "W1"}, "such as '#W0000000', got 'W1'"),
    ("get_product_details", {"product_id": "i1"}, "product (not of an item), got 'i1'"),
    ("get_item_details", {"item_id": "p1"}, "item (not of a product), got 'p1'"),
    ("calculate", {"expression": "1 / 0"}, "expected a divisor other than 0"),
    ("calculate", {"expression": "__import__('os')"}, "expected an arithmetic expr"),
    ("cancel_pending_order", {**W2, **CANCEL}, "'pending', got '#W2' with status 'del"),
    (
        "cancel_pending_order",
        {**W1, "reason": "dislike"},
        "expected one of ['no longer",
    ),
    ("cancel_pending_order", {"order_id": "x", **CANCEL}, "got 'x'"),
    ("modify_pending_order_address", {**W2, **HOME}, "with status 'delivered'"),
    ("modify_user_address", {"user_id": "x", **HOME}, "expected the id of a user"),
    (PAY, {**W1, **BY_CARD}, "expected another payment method than the order's"),
    (PAY, {**W1, **BY_GIFT}, "expected a gift card with at least 50.2, got 50.0"),
    (PAY, {**W1, "payment_method_id": "card_2"}, "a payment method of 'ann_1' among"),
    (SWAP, {**W2, **CUP_TO_BLUE, **BY_CARD}, "with status 'delivered'"),
    (SWAP, {**W1, "item_ids": [], "new_item_ids": [], **BY_CARD}, "at least one item"),
    (SWAP, {**W1, "item_ids": ["i1"], "new_item_ids": [], **BY_CARD}, "1 new items"),
    (
        SWAP,
        {**W1, "item_ids": ["i1"] * 3, "new_item_ids": ["i2"] * 3, **BY_CARD},
        "expected items of #W1, got 'i1'",
    ),
    (
        SWAP,
        {**W1, "item_ids": ["i1"], "new_item_ids": ["j2"], **BY_CARD},
        "expected another Cup, got item 'j2'",
    ),
    (
        SWAP,
        {**W1, "item_ids": ["i1"], "new_item_ids": ["i1"], **BY_CARD},
        "expected other options",
    ),
    (
        SWAP,
        {**W1, "item_ids": ["i1"], "new_item_ids": ["i3"], **BY_CARD},
        "expected an available item, got 'i3'",
    ),
    (
        SWAP,
        {**W1, "item_ids": ["i1"], "new_item_ids": ["i4"], **BY_GIFT},
        "expected a gift card with at least 489.9, got 50.0",
    ),
    (
        "exchange_delivered_order_items",
        {**W1, **CUP_TO_BLUE, **BY_CARD},
        "with status 'pending'",
    ),
    (
        "exchange_delivered_order_items",
        {**W2, "item_ids": ["i1"], "new_item_ids": ["i3"], **BY_CARD},
        "expected an available item",
    ),
    (BACK, {**W1, "item_ids": ["i1"], **BY_CARD}, "with status 'pending'"),
    (BACK, {**W2, "item_ids": ["i2"], **BY_CARD}, "expected items of #W2, got 'i2'"),
    (BACK, {**W2, "item_ids": ["i1"], **BY_PAL}, "payment method 'card_1' or a gift"),
    (BACK, {**W2, "item_ids": ["i1"], "payment_method_id": "x"}, "got 'x'"),
    (
        BACK,
        {**W2, "item_ids": "i1", **BY_CARD},
        "expected array of string in 'item_ids', got 'i1'",
    ),
    (BACK, {**W2, **BY_CARD}, "payment_method_id; got no 'item_ids'"),
    ("get_order_details", {**W1, "x": 1}, "expected the arguments order_id; got 'x'"),
    ("fly", {}, "expected a tool among find_user_id_by_email, "),
]


@pytest.mark.parametrize("name,arguments,said", REFUSED)
def test_what_the_policy_forbids_is_refused_and_changes_nothing(name, arguments, said):
    records = Records(STORE)
    reply = call_tool(retail.TOOLS, records, name, arguments)
    assert reply.error and said in reply.text
    assert records.changes() == {}


@pytest.mark.parametrize(
    "first,second", [("#W1", SWAP), ("#W2", "exchange_delivered_order_items")]
)
def test_the_order_of_the_items_in_a_call_does_not_matter(first, second):
    pairs = [("i1", "i2"), ("i1", "i5"), ("j1", "j2")]
    states = []
    for shuffled in (pairs, pairs[::-1], [pairs[1], pairs[2], pairs[0]]):
        records = Records(STORE)
        old, new = (list(ids) for ids in zip(*shuffled, strict=True))
        call = {"order_id": first, "item_ids": old, "new_item_ids": new, **BY_CARD}
        assert not call_tool(retail.TOOLS, records, second, call).error
        states.append(records.changes())
    assert states[0] and all(state == states[0] for state in states)


def test_a_new_item_is_not_taken_for_an_old_one():
    store = copy.deepcopy(STORE)
    store["orders"]["#W1"]["items"][2]["item_id"] = "i2"
    records = Records(store)
    call = {**W1, "item_ids": ["i1", "i2"], "new_item_ids": ["i2", "i5"], **BY_CARD}
    assert not call_tool(retail.TOOLS, records, SWAP, call).error
    items = records.read("orders", "#W1")["items"]
    assert [item["item_id"] for item in items] == ["i2", "j1", "i5"]


IDS = ["#W1", "#W2", "#W4", "i1", "i2", "j1", "j2", "ann_1", "card_1", "gift_1", "p1"]
VALUE = st.recursive(
    st.sampled_from([*IDS, ["i1"], ["i2"], ["j1", "i1"], "no longer needed"])
    | st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)  # fmt: skip
ARGUMENTS = sorted({n for tool in retail.TOOLS.values() for n in tool.spec.arguments})


@st.composite
def calls(draw):
    """A tool with its own arguments, mostly; each with any value."""
    name = draw(st.sampled_from(sorted(retail.TOOLS)))
    own = retail.TOOLS[name].spec.arguments
    some = {argument: draw(VALUE) for argument in own}
    wild = st.dictionaries(st.sampled_from(ARGUMENTS) | st.text(), VALUE)
    return draw(st.sampled_from([name, name, "x", 5])), draw(
        st.just(some) | wild | VALUE
    )


@settings(max_examples=200)
@given(call=calls())
def test_any_call_gives_a_reply_and_an_error_changes_nothing(call):
    records = Records(STORE)
    reply = call_tool(retail.TOOLS, records, *call)
    assert isinstance(reply, ToolReply) and reply.text
    if reply.error:
        assert records.changes() == {}


TODO = {
    "tasks": {"task_1": {"task_id": "task_1", "title": "t", "status": "pending"}},
    "users": {"user_1": {"user_id": "user_1", "name": "Ann", "tasks": ["task_1"]}},
}


def mock(records, name, arguments):
    return done(records, name, arguments, mock_domain.TOOLS)


def test_mock_tasks_are_created_with_new_ids_and_completed():
    records = Records(TODO)
    for number in (2, 3):
        made = mock(records, "create_task", {"user_id": "user_1", "title": "new"})
        assert made["task_id"] == f"task_{number}" and made["status"] == "pending"
    completed = {"task_id": "task_3", "status": "completed"}
    assert mock(records, "update_task_status", completed)["status"] == "completed"
    assert mock(records, "get_task", {"task_id": "task_3"})["status"] == "completed"
    user = mock(records, "get_user", {"user_id": "user_1"})
    assert user["tasks"] == ["task_1", "task_2", "task_3"]
    assert TODO["users"]["user_1"]["tasks"] == ["task_1"]


@pytest.mark.parametrize(
    "name,arguments",
    [
        ("create_task", {"user_id": "x", "title": "t"}),
        ("create_task", {"user_id": "user_1", "title": " "}),
        ("create_task", {"user_id": "user_1"}),
        ("update_task_status", {"task_id": "task_9", "status": "completed"}),
        ("update_task_status", {"task_id": "task_1", "status": "deleted"}),
        ("get_task", {"task_id": "x"}),
        ("get_user", {"user_id": "x"}),
        ("delete_task", {"task_id": "task_1"}),
    ],
)
def test_mock_refuses_what_its_policy_forbids(name, arguments):
    records = Records(TODO)
    assert call_tool(mock_domain.TOOLS, records, name, arguments).error
    assert records.changes() == {}


@given(name=st.sampled_from(sorted(mock_domain.TOOLS)), arguments=st.dictionaries(
    st.sampled_from(["user_id", "task_id", "title", "status", "summary"]),
    st.sampled_from(["user_1", "task_1", "completed", ""]) | VALUE,
))  # fmt: skip
def test_mock_replies_to_any_call(name, arguments):
    records = Records(TODO)
    reply = call_tool(mock_domain.TOOLS, records, name, arguments)
    if reply.error:
        assert records.changes() == {}
