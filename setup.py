"""What pyproject.toml cannot say: the addresses of the project, which come from the environment as in mkdocs.yml."""

import os

from setuptools import setup

LABELS = {"REPOSITORY_URL": "Repository", "SITE_URL": "Documentation"}
setup(project_urls={label: os.environ[name] for name, label in LABELS.items() if os.environ.get(name)})
