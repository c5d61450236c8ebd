"""Mistakes that type checkers must see; test_types.py counts them by their comments."""

import forebay

with forebay.open("file", "cached") as file:  # wrong
    file.read_into(0, 5)  # wrong
    file.write(0, "text")  # wrong
    file.read_many([("0", 10)])  # wrong
    data: str = file.read(0, 10)  # wrong
