"""Stands in for the package pulumi_kubernetes: prints each object that is created, on a line of its own."""

import json
from types import SimpleNamespace


class Secret:
    def __init__(self, name, metadata, string_data):
        self.metadata = metadata
        print(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": string_data}))


class CustomResource:
    def __init__(self, name, api_version, kind, metadata, spec):
        self.metadata = metadata
        print(json.dumps({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}))


core = SimpleNamespace(v1=SimpleNamespace(Secret=Secret))
apiextensions = SimpleNamespace(CustomResource=CustomResource)
