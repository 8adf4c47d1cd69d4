"""The skips that continuous integration accepts. Any other fails there, so that nothing is left out unseen."""

ALLOWED = {
    "no real export": "NVIDIA's exports are large and not ours to publish",
    "the real exports are not there": "the same",
    "nsys printed no": "the same: not every report was printed of every export",
    "pip install skypilot": "SkyPilot is as large as all that is locked here; whoever changes the task installs it",
    "needs the right to mount a file system": "a container without privileges has none",
    "the image was not tested: dockerd does not start here": "the same",
    "the Python of this machine does not run on Ubuntu": "it is built for a newer system",
    "Ubuntu's archive gives no": "not every machine reaches it",
}
"""The beginnings of the reasons that tests give, and why that may be so."""


def is_allowed(reason: str) -> bool:
    return reason.startswith(tuple(ALLOWED))
