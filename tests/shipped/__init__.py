"""What `site/data` ships: that it is whole, and that pages, baselines, noise bands and guides say what it holds.

Other tests read `tests/data`, so that new recordings change no unit test. What a test here needs of a question in
general is tested in `tests/pages`, on made-up or frozen runs.
"""
