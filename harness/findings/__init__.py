"""Bugs of SGLang that were found here: their files, and the pages that are made from them."""
