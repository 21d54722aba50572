"""The tools of tau2's retail domain: who and what there is, and what may be done.

Written from the domain's data, policy and gold actions; no code of upstream's. The
tools keep what the policy says of orders, items and payments. That the user is
identified first and agrees to each action is the agent's part and is not enforced: the
gold actions of 48 of the 114 tasks look no user up.
"""

from components.arithmetic import ExpressionError, evaluate_expression
from metaharness.tasks.domain import (
    Given,
    Records,
    Refused,
    Tool,
    make_tool,
    text,
    texts,
    written,
)
from metaharness.tasks.retail_orders import (
    ADDRESS,
    cancel_pending_order,
    exchange_delivered_order_items,
    find_order,
    find_user,
    modify_pending_order_address,
    modify_pending_order_items,
    modify_pending_order_payment,
    return_delivered_order_items,
)

REASONS = ("no longer needed", "ordered by mistake")


def find_user_id_by_email(records: Records, given: Given) -> str:
    wanted = given["email"].strip().casefold()
    for user_id, user in records.rows("users"):
        if user["email"].casefold() == wanted:
            return user_id
    raise Refused(f"expected the email of a user, got {given['email']!r}.")


def find_user_id_by_name_zip(records: Records, given: Given) -> str:
    fields = ("first_name", "last_name", "zip")
    wanted = [given[field].strip().casefold() for field in fields]
    for user_id, user in records.rows("users"):
        own = {**user["name"], "zip": user["address"]["zip"]}
        if [own[field].casefold() for field in fields] == wanted:
            return user_id
    raise Refused("expected the name and zip code of a user, got those of nobody.")


def get_user_details(records: Records, given: Given) -> str:
    return written(find_user(records, given["user_id"]))


def get_order_details(records: Records, given: Given) -> str:
    return written(find_order(records, given["order_id"]))


def get_product_details(records: Records, given: Given) -> str:
    product = records.read("products", given["product_id"])
    if product is None:
        raise Refused(
            f"expected the id of a product (not of an item), got "
            f"{given['product_id']!r}; see list_all_product_types."
        )
    return written(product)


def get_item_details(records: Records, given: Given) -> str:
    for product_id, product in records.rows("products"):
        variant = product["variants"].get(given["item_id"])
        if variant is not None:
            name = {"name": product["name"], "product_id": product_id}
            return written({**name, **variant})
    raise Refused(
        f"expected the id of an item (not of a product), got {given['item_id']!r}."
    )


def list_all_product_types(records: Records, given: Given) -> str:
    del given
    ids = {product["name"]: key for key, product in records.rows("products")}
    return written(dict(sorted(ids.items())))


def calculate(records: Records, given: Given) -> str:
    del records
    try:
        return evaluate_expression(given["expression"])
    except ExpressionError as error:
        raise Refused(str(error)) from error


def modify_user_address(records: Records, given: Given) -> str:
    find_user(records, given["user_id"])
    user = records.edit("users", given["user_id"])
    user["address"] = {field: given[field] for field in ADDRESS}
    return written(user)


def transfer_to_human_agents(records: Records, given: Given) -> str:
    """Changes nothing: what people do afterwards is not part of the episode."""
    del records, given
    return "The user is being transferred to a human agent."


_USER = {"user_id": text("id of the user")}
_ORDER = {"order_id": text("id of the order, with its '#'")}
_ITEMS = {"item_ids": texts("ids of the items, one twice where it was ordered twice")}
_NEW = {"new_item_ids": texts("ids of the new items, in the order of item_ids")}
_METHOD = {"payment_method_id": text("id of a payment method of the user")}
_ADDRESS = {field: text(field) for field in ADDRESS}

TOOLS: dict[str, Tool] = {
    tool.spec.name: tool
    for tool in (
        make_tool(
            find_user_id_by_email,
            "Find a user's id by email.",
            {"email": text("email of the user")},
        ),
        make_tool(
            find_user_id_by_name_zip,
            "Find a user's id by name and zip code.",
            {field: text(field) for field in ("first_name", "last_name", "zip")},
        ),
        make_tool(
            get_user_details,
            "Show a user: address, email, payment methods, ids of orders.",
            _USER,
        ),
        make_tool(
            get_order_details,
            "Show an order: items, status, address, fulfilments, payments.",
            _ORDER,
        ),
        make_tool(
            get_product_details,
            "Show a type of product with all its variant items.",
            {"product_id": text("id of the product, which is no item's")},
        ),
        make_tool(
            get_item_details,
            "Show one variant item: options, price, availability.",
            {"item_id": text("id of the item, which is no product's")},
        ),
        make_tool(
            list_all_product_types, "List all types of products with their ids.", {}
        ),
        make_tool(
            calculate,
            "The value of an arithmetic expression.",
            {"expression": text("such as '2 * (3.5 + 1)'")},
        ),
        make_tool(
            cancel_pending_order,
            "Cancel a pending order and refund it.",
            {**_ORDER, "reason": {"type": "string", "enum": list(REASONS)}},
        ),
        make_tool(
            modify_pending_order_address,
            "Change the shipping address of a pending order.",
            {**_ORDER, **_ADDRESS},
        ),
        make_tool(
            modify_pending_order_payment,
            "Change the payment method of a pending order.",
            {**_ORDER, **_METHOD},
        ),
        make_tool(
            modify_pending_order_items,
            "Change items of a pending order to others of the same product; once.",
            {**_ORDER, **_ITEMS, **_NEW, **_METHOD},
        ),
        make_tool(
            modify_user_address,
            "Change a user's default address.",
            {**_USER, **_ADDRESS},
        ),
        make_tool(
            return_delivered_order_items,
            "Return items of a delivered order; once.",
            {**_ORDER, **_ITEMS, **_METHOD},
        ),
        make_tool(
            exchange_delivered_order_items,
            "Exchange items of a delivered order for others of the same product; once.",
            {**_ORDER, **_ITEMS, **_NEW, **_METHOD},
        ),
        make_tool(
            transfer_to_human_agents,
            "Hand the user over to a human, where no other tool can do what is wanted.",
            {"summary": text("what the user wants")},
        ),
    )
}
