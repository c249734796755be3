"""Random walks through the model, each step of which is played on the daemons' own objects, on real files.

    walk.py        takes steps at random until the run's end, the likely ones more often
    looks.py       the looks of the model that a folder-sync worker can have
    play.py        one step of the model, done by the daemons
    compare.py     what lies on the disk, and what daemons remember, against the model
    aggregator.py  the aggregator's daemon and folder-sync workers, taken step by step
    site.py        a site's daemon, likewise
    line.py        a folder as one end sees it
    stubs.py       time, training and scoring
    __main__.py    many walks, for the record

After every step folders, mirrors and the aggregator's record must hold what the model says, and the site's daemon must
want to do what the model's would; where the run is over both sides, the audit and the model must have one end of it.

Two steps of the model are not walked, for no daemon takes them in a folder that shows again what it has shown:

- a look that accepts a message and in the same moment holds the one after the next for a gap that is there to stay: the
  folder-sync worker looks a second time first, and that look accepts nothing (``looks.py``);
- a site that has read a round whose verdict was there already misses that verdict (``site.py``).
"""
