"""What happened over the nights: observations from a store, and what they come to."""
