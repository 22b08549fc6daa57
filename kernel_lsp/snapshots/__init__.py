"""Calls of a real program, kept so that another process can make them again.

A *call snapshot* is one file: the object that was called and the call's arguments as the program
had them, pickled by cloudpickle, with every tensor replaced by a description of it. Opening one
runs no constructor and gives tensors of the same shapes, layout, sharing and history with other
numbers in them.

keeping.py   writes one inside of the user's program (loaded by path, under another name)
format.py    the file: a header in JSON, pickles, values that carry meaning; standard library only
describing.py  a tensor as plain values, and which values are kept
unusual.py   what pickle refuses, as parts that it takes; remaking.py makes it again from these
opening.py   opens one in a confined process, with tensors of making.py
sources.py   has an edited text stand in the place of a file of the program
script.py    the definitions of a script, without what it does when it is run
store.py     where snapshots lie, how much room they may take, and when they are deleted

An object that pickle does not take is named in keeping.py and made anew by opening.py (a device, a
generator, a lock), or taken apart in unusual.py: a new type of object goes to one of the two.

A pickle can run any code when it is loaded, so only confined processes open snapshots.
"""
