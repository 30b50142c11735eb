"""The front end: flags, rules and the plan. Imports no tensor library, so that a wrong flag answers at once.

`flags/` is the one table of flags; `arguments` parses it, `resolve` fills in what follows from the machine,
`rules/` checks that the values fit each other, `plan` says what a run will do, `cli` puts them in order.
"""
