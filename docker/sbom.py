"""Prints the software bill of materials of the system it runs on, in CycloneDX: `sbom.py BASE_IMAGE`.

It lists the Python packages of the interpreter that runs it, the packages of dpkg, and nsys, which is unpacked from
a package into a folder. It needs nothing but the standard library, and the same image gives the same file.
"""

import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

NSYS_CONTROL = Path("/opt/nsys/control")
"""The fields of the package that nsys was unpacked from, as dpkg prints them."""


def component(kind: str, name: str, version: str, qualifiers: str = "") -> dict[str, str]:
    """A package as CycloneDX describes it, with the purl that tells scanners where it comes from."""
    purl = f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}{qualifiers}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def python_packages() -> list[dict[str, str]]:
    versions = {re.sub("[-_.]+", "-", one.name).lower(): one.version for one in metadata.distributions()}
    return [component("pypi", name, version) for name, version in sorted(versions.items())]


def system_packages() -> list[dict[str, str]]:
    release = platform.freedesktop_os_release()
    system = f"{release['ID']}-{release['VERSION_ID']}"
    query = ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\t${Status}\n"]
    lines = [line.split("\t") for line in subprocess.check_output(query, text=True).splitlines()]
    return [
        component(f"deb/{release['ID']}", name, version, f"?arch={architecture}&distro={system}")
        for name, version, architecture, status in sorted(lines)
        if status == "install ok installed"
    ]


def nsys_packages(control: Path = NSYS_CONTROL) -> list[dict[str, str]]:
    if not control.is_file():
        return []
    fields = dict(re.findall(r"^([\w-]+): (.*)$", control.read_text(), re.MULTILINE))
    return [component("deb/nvidia", fields["Package"], fields["Version"], f"?arch={fields['Architecture']}")]


def bill_of_materials(base_image: str) -> dict:
    base = {"name": "org.opencontainers.image.base.name", "value": base_image}
    image = {"type": "container", "name": "profiler-job", "bom-ref": "profiler-job", "properties": [base]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": python_packages() + system_packages() + nsys_packages(),
    }


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(sys.argv[1]), indent=1))
