"""Mutation testing: small faults are put into the source one at a time, and the tests have to notice them.

    python -m tests.mutation --help     # what `make mutants` runs

`targets` says which files are mutated and which tests see them, `mutants` what the faults are and how a sample of
them is drawn, `coverage` which test executes which line, `trial` runs the tests on one mutant, and `accepted.json`
lists the survivors that may stay, each with its reason.

mutmut and cosmic-ray were tried first. mutmut 3 is fast here, but leaves out module-level values, decorated functions
(all of `methods`) and properties, and cannot remove a statement, a clamp or a word of a seed; most of its mutants
change error messages. cosmic-ray starts Python anew for every mutant.
"""
