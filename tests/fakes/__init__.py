"""Test doubles of the driver: machine files and what is built from them."""
