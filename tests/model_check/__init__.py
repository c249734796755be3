"""A model checker over the daemons' own decisions: one aggregator, two sites, every interleaving.

    state.py       what one folder and its two ends hold, what the aggregator holds; all hashable
    exchanges.py   the daemons' reading interfaces over such a state
    hospital.py    what a site may do next, by ``site_client.rounds``
    folder_sync.py what the folder-sync worker of a folder may do next, by ``aggregator.look``
    director.py    what the aggregator may do next, by ``aggregator.rounds``; and what the PI and the clock may
    reduced.py     the same with fewer states, which allows all that the daemons can do, and more
    __main__.py    all models one after the other, for the record
    numbered.py    states as numbers, and what may come next of many at once
    explorer.py    every state that can be reached, breadth first, and from which of them the run can end
    properties.py  what must hold
    rules.py       rules that were mended, put back to show what they allowed
    replay/        random walks through a model, played on the daemons' own objects and files

What happens next is asked of the daemons' own functions; nothing of them is written down here a second time.
"""
