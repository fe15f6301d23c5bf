"""The history of a store: observations of each night, and the timelines made from them."""
