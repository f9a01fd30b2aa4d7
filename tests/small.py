"""`fastweights` with the runs of Table 1 small enough for tests; its imports and all else are the real ones."""

import dataclasses

from fastweights import __main__ as program


def small(words: list[str]) -> int:
    from fastweights.paper.retrieval import table1

    full = table1.config

    def config(*arguments, **options):
        run = full(*arguments, **options)
        recipe = dataclasses.replace(run.training, epochs=4)
        return dataclasses.replace(run, pairs=1, examples=2000, training=recipe)

    table1.config = config
    return run(words)


run, program._run = program._run, small

if __name__ == "__main__":
    program.main()
