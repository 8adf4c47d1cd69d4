"""Secrets that nobody has, of each kind that must not be published. A | breaks each that a scanner of git hosts would
take for a real one."""

_HEX = "0123456789abcdef"

PLANTED = {
    kind: [text.replace("|", "") for text in texts]
    for kind, texts in {
        "AWS key": ["AK|IAIOSFODNN7EXAMPLE was refused", "key AS|IAIOSFODNN7EXAMPLE"],
        "AWS secret": ["signed with wJalrXUtnFEMI|/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY=wJalr|XUtnFEMI"],
        "Google": [
            "AI|zaSyA1234567890abcdefghijklmnopqrstuv",
            "GOC|SPX-abcdefghijklmnopqrstuvwx",
            "ya|29.a0AfH6SMBabcdefgh",
        ],
        "Azure": [
            "DefaultEndpointsProtocol=https;Account|Key=abcdefgh0123456789+/abcd==",
            "si|g=abcdefghijklmnopqrstuvwx%3D",
            "https://x.blob.core.windows.net/c?sv=2025&si|g=abcdefghijklmnopqrstuvwx%3D",
            "abc8|Q~abcdefghijklmnopqrstuvwxyz012345678",
        ],
        "Slack": ["xo|xb-123456789012-abcdefghijkl", "https://hooks.sl|ack.com/services/T000/B000/XXXX"],
        "Discord": ["https://example.org/api/web|hooks/1234567890/abcdefghijk"],
        "npm": [
            "np|m_abcdefghijklmnopqrstuvwxyz0123456789",
            "//registry.npmjs.org/:_auth|Token=abcdef",
            "_au|th=YWRhOnBhc3M=",
        ],
        "Docker": [
            "dck|r_pat_abcdefghijklmnopqrstuvwxyz",
            "dck|r_oat_abcdefghijklmnopqrstuvwxyz",
            '"au|th": "YWRhOmxvdmVsYWNl"',
        ],
        "PyPI": ["py|pi-AgEIcHlwaS5vcmcCJGFiY2RlZmdo"],
        "Stripe": [
            "s|k_live_abcdefghijklmnopqrstuvwx",
            "r|k_test_abcdefghijklmnopqrstuvwx",
            "wh|sec_abcdefghijklmnopqrs",
        ],
        "JWT": ["ey|JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk"],
        "Bearer": [
            "Bea|rer abcdef0123456789",
            "Bea|rer abcdef012",
            "bea|rer: abcdef0123456789",
            "Authorization Bea|rer abcdefghij",
            "Coo|kie: session=abcdef",
            "curl -u ada:love|lace",
            "Authorization: Ba|sic dXNlcjpwYXNz",
            "Ba|sic dXNlcjpwYXNz",
            "ba|sic YWRhOmxvdmVsYWNl",
            "Ba|sic YTpiY2RlZg==",
            "?X-Amz-Sig|nature=0123456789abcdef",
        ],
        "Hugging Face": ["h|f_abcdefghijklmnopqrstuvwx"],
        "GitHub": ["gh|p_abcdefghijklmnopqrstuvwxyz0123456789", "github|_pat_11ABCDEFG0abcdefghijklmn"],
        "further services": [
            "tsk|ey-auth-kABCDEF1CNTRL-abcdefghijklmnop",
            "hv|s.CAESIJ-abcdefghijklmnopqrstuvw",
            "da|pi0123456789abcdef0123456789abcdef",
            "gl|sa_abcdefghijklmnopqrstuvwxyz012345_01234567",
            "pp|lx-abcdefghijklmnopqrstuvwxyz",
            "ATA|TT3xFfGF0abcdefghijklmnop",
            "rubyg|ems_0123456789abcdef0123456789abcdef",
            "sntr|ys_eyJpYXQiOjE2OTg3NjU0MzIx",
        ],
        "W&B": ["wan|db login 0123456789abcdef0123456789abcdef01234567", f"key {_HEX}{_HEX}01234567"],
        "GitLab": ["gl|pat-abcdefghijklmnopqrst"],
        "language models": [
            "s|k-proj-abcdefghijklmnopqrstuvwxyz",
            "s|k-ant-api03-abcdefghijklmnop",
            "nva|pi-abcdefghijklmnopqrst",
        ],
        "private key": [
            "-----BE|GIN RSA PRIVATE KEY",
            "-----BE|GIN OPENSSH PRIVATE KEY-----",
            "ssh-|ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabcdefgh",
        ],
        "password": [
            "https://ada:lovelace@example.org/x",
            "pass|word: hunter2",
            "pass|phrase=hunter2",
            "X-Api-K|ey: abcdefgh",
            "API k|ey: abcdefgh",
            "{'api_|key': 'abc'}",
            "train.py --api-tok|en hunter2",
            "my_p|wd = 'hunter2'",
            "'hunter2' == db_pa|ss",
            "private_k|ey `abc`;",
            "auth_k|ey => 'abc'",
            "db_pa|ss := 'abc'",
            "client_k|ey: 'abc'",
        ],
        "environment": ["WORLD_SIZE_X=4 is wrong", "HOME=home-of-ada"],
        "path": [
            "file:///home/x",
            "error:/home/x/y.py",
            "host:/export/scratch/ada",
            "in /home/ada/model.py:12",
            "~ada/run.py",
            r"C:\Users\ada\model.py",
            r"\\server\share\ada",
            ">/home/x",
            "//home/ada/x",
            "../../home/ada/x.py",
            "-I/home/ada/include",
            "ä/home/ada",
            "FILE:///home/x",
            r"\/home\/ada\/x",
            "open)/home/x",
            "log>/scratch/ada",
            "?file=%2Fhome%2Fx",
            "file%3A%2F%2F%2Fhome%2Fx",
            "%252Fhome%252Fada",
        ],
        "cloud storage": [
            "s3://adas-bucket/run",
            "gs://adas-bucket/run",
            "oss://adas-bucket/run",
            "arn:aws:iam::123456789012:role/ada",
        ],
        "IPv4": [
            "no route to 10.1.2.3",
            "tcp://192.168.4.17:29500",
            "peer=172.16.0.9",
            "ip_10.1.2.3_",
            "at_192.168.4.17_x",
        ],
        "IPv6": ["fe80::1ff:fe23:4567:890a%eth0", "[2001:db8::8a2e:370:7334]:29500", "fd12:3456:789a:1:0:0:0:1"],
        "MAC": [
            "eth0 0c:42:a1:9f:be:01",
            "0C-42-A1-9F-BE-01",
            "hwaddr 0c42a19fbe01",
            "mac=0c42a19fbe01",
            "link/ether: 0C42A19FBE01",
            "0c42.a19f.be01",
        ],
        "GPU UUID": [
            f"GPU-{_HEX[:8]}-{_HEX[:4]}-{_HEX[4:8]}-{_HEX[8:12]}-{_HEX[:12]}",
            f"GPU-{_HEX}{_HEX}",
            f"MIG-{_HEX[:8]}-{_HEX[:4]}-{_HEX[4:8]}-{_HEX[8:12]}-{_HEX[:12]}",
        ],
        "host": [
            *("box-7.internal is down", "ip-10-1-2-3", "ip_10_1_2_3", "gpu17.cs.example.edu", "db.corp:5432"),
            *("box.intra", "gpu1.cluster is down", "tcp://gpu17:29500", "http://box.unlisted.zone:8888/x"),
            *("gpu[001-004]", "gpu-a[01,07-12]", "hostname: gpu17", "http://gpu17/x", "MASTER_ADDR gpu17"),
            *("failed to connect to [gpu17]:29500", "addresses of (gpu17, 29500) cannot", "connect to gpu17:29500"),
            *("i-0123456789abcdef0", "ocid1.instance.oc1.phx.abcdef"),
        ],
        "user and host": ["ada@box-7", "ada@example.org", "who=ada%40example.org", "username: ada", "uid=1000(ada)"],
        "name of the machine": [
            "lost BOX-OF-ADA",
            "box-of-ada.cluster:29500",
            "/ada.lovelace",
            "job_ada.lovelace_3",
            "BOX_OF_ADA",
            "ada-lovelace",
        ],
    }.items()
}

NAMES = ("box-of-ada", "ada.lovelace")
"""What the machine that measured is called, and its user."""

ALL = [text for texts in PLANTED.values() for text in texts]
