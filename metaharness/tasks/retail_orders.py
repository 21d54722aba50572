"""What a retail agent may do to orders, with the policy's conditions (tau2 retail).

Written from the domain's data, policy and gold actions; no code of upstream's. A call
is checked in full before it changes anything.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from metaharness.tasks.domain import Given, Records, Refused, written

ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
# As the policy writes it, so that the model reads one spelling.
MODIFIED = "pending (items modifed)"


class Swap(NamedTuple):
    """place: position in the order's items; variant: what comes there instead."""

    place: int
    variant: Mapping[str, Any]


def find_user(records: Records, user_id: str) -> Mapping[str, Any]:
    user = records.read("users", user_id)
    if user is None:
        raise Refused(f"expected the id of a user, got {user_id!r}; look it up first.")
    return user


def find_order(records: Records, order_id: str) -> Mapping[str, Any]:
    order = records.read("orders", order_id)
    if order is None:
        raise Refused(
            f"expected the id of an order, such as '#W0000000', got {order_id!r}."
        )
    return order


def cancel_pending_order(records: Records, given: Given) -> str:
    """What was paid goes back to where it came from, at once to a gift card."""
    _with_status(records, given["order_id"], "pending")
    order = records.edit("orders", given["order_id"])
    paid: Counter[str] = Counter()
    for entry in order["payment_history"]:
        sign = 1 if entry["transaction_type"] == "payment" else -1
        paid[entry["payment_method_id"]] += sign * entry["amount"]
    for method_id, amount in paid.items():
        if round(amount, 2) > 0:
            _pay(records, order, method_id, -amount)
    order["status"] = "cancelled"
    order["cancel_reason"] = given["reason"]
    return written(order)


def modify_pending_order_address(records: Records, given: Given) -> str:
    _with_status(records, given["order_id"], "pending")
    order = records.edit("orders", given["order_id"])
    order["address"] = {field: given[field] for field in ADDRESS}
    return written(order)


def modify_pending_order_payment(records: Records, given: Given) -> str:
    order = _with_status(records, given["order_id"], "pending")
    method_id = given["payment_method_id"]
    if len(order["payment_history"]) != 1:
        raise Refused("expected an order that was paid once, got one changed before.")
    (payment,) = order["payment_history"]
    if payment["payment_method_id"] == method_id:
        raise Refused(
            f"expected another payment method than the order's, got {method_id!r}."
        )
    _check_method(records, order["user_id"], method_id, payment["amount"])
    order = records.edit("orders", given["order_id"])
    _pay(records, order, method_id, payment["amount"])
    _pay(records, order, payment["payment_method_id"], -payment["amount"])
    return written(order)


def modify_pending_order_items(records: Records, given: Given) -> str:
    order = _with_status(records, given["order_id"], "pending")
    swaps, due = _swaps(records, order, given["item_ids"], given["new_item_ids"])
    _check_method(records, order["user_id"], given["payment_method_id"], due)
    order = records.edit("orders", given["order_id"])
    for place, variant in swaps:
        for field in ("item_id", "price"):
            order["items"][place][field] = variant[field]
        order["items"][place]["options"] = dict(variant["options"])
    if due:
        _pay(records, order, given["payment_method_id"], due)
    order["status"] = MODIFIED
    return written(order)


def exchange_delivered_order_items(records: Records, given: Given) -> str:
    """Notes the exchange; the difference is paid when the items come back."""
    order = _with_status(records, given["order_id"], "delivered")
    swaps, due = _swaps(records, order, given["item_ids"], given["new_item_ids"])
    _check_method(records, order["user_id"], given["payment_method_id"], due)
    order = records.edit("orders", given["order_id"])
    order["status"] = "exchange requested"
    order["exchanged"] = sorted(
        [order["items"][place]["item_id"], variant["item_id"]]
        for place, variant in swaps
    )
    order["exchange_price_difference"] = due
    order["exchange_payment_method_id"] = given["payment_method_id"]
    return written(order)


def return_delivered_order_items(records: Records, given: Given) -> str:
    """Notes the return; the refund comes with the items."""
    order = _with_status(records, given["order_id"], "delivered")
    _places(order, given["item_ids"])
    method_id = given["payment_method_id"]
    method = _check_method(records, order["user_id"], method_id, 0.0)
    original = order["payment_history"][0]["payment_method_id"]
    if method_id != original and method["source"] != "gift_card":
        raise Refused(
            f"expected the original payment method {original!r} or a gift card, got "
            f"{method_id!r}."
        )
    order = records.edit("orders", given["order_id"])
    order["status"] = "return requested"
    order["returned"] = sorted(given["item_ids"])
    order["return_payment_method_id"] = method_id
    return written(order)


def _with_status(records: Records, order_id: str, status: str) -> Mapping[str, Any]:
    order = find_order(records, order_id)
    if order["status"] != status:
        raise Refused(
            f"expected an order with status {status!r}, got {order_id!r} with status "
            f"{order['status']!r}."
        )
    return order


def _places(order: Mapping[str, Any], item_ids: Sequence[str]) -> list[int]:
    """Where each item stands in the order; one that was ordered twice has two places.

    Raises Refused for no item, and for one that is not there often enough.
    """
    if not item_ids:
        raise Refused("expected at least one item, got none.")
    free = list(range(len(order["items"])))
    places = []
    for item_id in item_ids:
        fits = [p for p in free if order["items"][p]["item_id"] == item_id]
        if not fits:
            raise Refused(f"expected items of {order['order_id']}, got {item_id!r}.")
        free.remove(fits[0])
        places.append(fits[0])
    return places


def _swaps(
    records: Records, order: Mapping[str, Any], old: Sequence[str], new: Sequence[str]
) -> tuple[list[Swap], float]:
    """The swaps and what they cost, in dollars, below 0 for a refund.

    Pairs are sorted first, so that their order in the call does not matter. Raises
    Refused for an item that may not take the old one's place.
    """
    if len(old) != len(new):
        raise Refused(f"expected {len(old)} new items, got {len(new)}.")
    pairs = sorted(zip(old, new, strict=True))
    swaps, due = [], 0.0
    places = _places(order, [item_id for item_id, _ in pairs])
    for place, (item_id, new_id) in zip(places, pairs, strict=True):
        item = order["items"][place]
        variant = records.read("products", item["product_id"])["variants"].get(new_id)
        if variant is None:
            raise Refused(f"expected another {item['name']}, got item {new_id!r}.")
        if new_id == item_id:
            raise Refused(f"expected other options, got the same item {new_id!r}.")
        if not variant["available"]:
            raise Refused(f"expected an available item, got {new_id!r}, which is not.")
        swaps.append(Swap(place, variant))
        due += variant["price"] - item["price"]
    return swaps, round(due, 2)


def _check_method(
    records: Records, user_id: str, method_id: str, due: float
) -> Mapping[str, Any]:
    methods = find_user(records, user_id)["payment_methods"]
    if method_id not in methods:
        raise Refused(
            f"expected a payment method of {user_id!r} among {sorted(methods)}, got "
            f"{method_id!r}."
        )
    method = methods[method_id]
    if method["source"] == "gift_card" and method["balance"] < due:
        raise Refused(
            f"expected a gift card with at least {due}, got {method['balance']}."
        )
    return method


def _pay(records: Records, order: Any, method_id: str, amount: float) -> None:
    """Book a payment, or a refund below 0, in dollars; gift cards change at once."""
    amount = round(amount, 2)
    order["payment_history"].append(
        {
            "transaction_type": "payment" if amount > 0 else "refund",
            "amount": abs(amount),
            "payment_method_id": method_id,
        }
    )
    methods = find_user(records, order["user_id"])["payment_methods"]
    if methods.get(method_id, {}).get("source") == "gift_card":
        own = records.edit("users", order["user_id"])["payment_methods"][method_id]
        own["balance"] = round(own["balance"] - amount, 2)
