"""The commands: each reads its arguments, asks a function for values, and shows them."""
