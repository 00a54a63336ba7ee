"""What runs inside a worker: a bare Python with the standard library, apart from the driver.

Of the rest of the package it may import only `limits` and `isolation` of `caploc.sandbox`.
"""
